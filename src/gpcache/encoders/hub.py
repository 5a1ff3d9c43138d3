"""Files of the Hugging Face hub, with one sentence for each error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from gpcache.errors import EncoderError, GPCacheError
from gpcache.support.checks import first_line

# The offline mode of huggingface_hub is one setting for the whole process.
_SWITCHING = threading.RLock()


class NotDownloadedError(EncoderError):
    """A model of the hub is not, or not completely, on this machine, and was not downloaded."""


@contextmanager
def no_downloads() -> Iterator[None]:
    """Let the libraries of Hugging Face read only local files."""
    with _SWITCHING:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


def hub_is_reachable(seconds: float = 3.0) -> bool:
    """Whether the hub accepts a connection; its own library would retry for half a minute."""
    if constants.is_offline_mode():
        return False
    if getproxies():  # a proxy may reach the hub although this machine cannot
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def fetch(repository: str, name: str, *, missing: str) -> Path:
    """A file of a repository on the Hugging Face hub, downloaded on first use.

    `missing` is the sentence for a repository that has no such file.
    """
    try:
        return Path(hf_hub_download(repository, name))
    except HFValidationError:
        sentence = (
            f"{repository!r} is neither a folder here nor a model id such as "
            "'openai/clip-vit-base-patch32'."
        )
    except GatedRepoError:
        sentence = (
            f"The model {repository!r} is gated: accept its terms on "
            f"https://huggingface.co/{repository}, then log in with 'hf auth login'."
        )
    except RepositoryNotFoundError:
        sentence = (
            f"The Hugging Face hub shows no model {repository!r}: check the name, log in with "
            "'hf auth login' if it is private, or give a local folder."
        )
    except LocalEntryNotFoundError:
        raise NotDownloadedError(
            f"The model {repository!r} is not on this machine and the Hugging Face hub cannot be "
            "reached: connect once to download it, or give a local folder."
        ) from None
    except EntryNotFoundError:
        sentence = missing
    except OSError as error:
        sentence = f"The model {repository!r} could not be downloaded: {first_line(error)}"
    raise EncoderError(sentence)


@contextmanager
def loading(source: str) -> Iterator[None]:
    """Turn any error of the libraries while they load `source` into one sentence."""
    try:
        yield
    except GPCacheError:
        raise
    except Exception as error:
        offline = constants.is_offline_mode() and not Path(source).exists()
        kind = NotDownloadedError if offline else EncoderError
        raise kind(f"The model {source!r} cannot be loaded: {first_line(error)}") from error
