"""Encoders: images and text → unit vectors of one space."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gpcache.encoders.lite_recipes import RECIPES
from gpcache.errors import EncoderError

if TYPE_CHECKING:
    import torch

    from gpcache.encoders.base import Encoder, TokenText
else:
    # On first use: the cached graph of `lite` needs no torch.
    def __getattr__(name: str) -> object:
        if name not in ("Encoder", "TokenText"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from gpcache.encoders import base

        return getattr(base, name)


__all__ = ["Encoder", "TokenText", "load_encoder", "load_same_encoder"]

# What a name begins with that is followed by a model of the hub, or a folder.
FAMILIES = ("hf", "open_clip")


def load_encoder(
    name: str, *, device: str | torch.device = "auto", download: bool = True
) -> Encoder:
    """Load an encoder by its name.

    ======================================  ============================================
    name                                    encoder
    ======================================  ============================================
    "lite"                                  works offline (extra `lite`)
    "lite0"                                 smaller, twice as fast (extra `lite0`)
    "clip-rn50", "clip-rn101",              OpenAI's CLIP (extra `clip`)
    "clip-vit-b-32", "clip-vit-b-16"
    "open_clip:MODEL/WEIGHTS"               any model of open_clip (extra `clip`)
    "open_clip:FOLDER"                      a local model of open_clip (extra `clip`)
    "hf:MODEL", or a folder                 CLIP, SigLIP or SigLIP 2 (extra `hf`)
    ======================================  ============================================

    Parameters
    ----------
    name : str
        Name of the encoder.
    device : str or torch.device, default="auto"
        Device to compute on; "auto" takes a GPU if there is one.
    download : bool, default=True
        Whether weights may be downloaded. Use False for a name that comes from a file, not from
        the user: an encoder that is not on this machine is then an error.

    Returns
    -------
    Encoder
        The encoder.

    Raises
    ------
    EncoderError
        If there is no such encoder, or it is not on this machine and may not be downloaded.
    MissingExtraError
        If a package of the extra is not installed.

    Examples
    --------
    >>> from gpcache import load_encoder
    >>> load_encoder("lite").dim
    1664
    """
    if name in RECIPES:
        from gpcache.encoders.lite import LiteEncoder

        return LiteEncoder(device, name=name)
    from gpcache.encoders.hub import NotDownloadedError, hub_is_reachable, no_downloads

    try:
        with no_downloads():  # what is on this machine needs no network
            return _load(name, device)
    except EncoderError as error:
        if download and (_is_local(name) or (_is_on_hub(name) and hub_is_reachable())):
            return _load(name, device)
        if download or not isinstance(error, NotDownloadedError):
            raise
        command = shlex.join(["gpcache", "fetch", name])
        raise EncoderError(
            f"The encoder {name!r} is not on this machine, and a saved model does not download "
            f"it: run {command} to download it."
        ) from None


def _is_local(name: str) -> bool:
    """Whether a name means a folder; its model may need a tokenizer of the hub."""
    family, _, rest = name.partition(":")
    return Path(rest if family in FAMILIES else name).is_dir()


def _is_on_hub(name: str) -> bool:
    """Whether a name may mean a model of the hub."""
    from gpcache.encoders.open_clip import PAPER_MODELS

    return name in PAPER_MODELS or name.partition(":")[0] in FAMILIES


def _load(name: str, device: str | torch.device) -> Encoder:
    # Imported here because they import the base class from this package, and are slow to import.
    from gpcache.encoders.hugging_face import HuggingFaceEncoder
    from gpcache.encoders.open_clip import PAPER_MODELS, OpenCLIPEncoder

    family, _, rest = name.partition(":")
    if name in PAPER_MODELS:
        return OpenCLIPEncoder(name, device=device)
    if family == "open_clip":
        model, _, weights = rest.partition("/") if not Path(rest).exists() else (rest, "", "")
        return OpenCLIPEncoder(model, weights or None, device=device)
    if family == "hf" or (name and Path(name).is_dir()):
        return HuggingFaceEncoder(rest if family == "hf" else name, device=device)
    known = ", ".join(repr(short) for short in (*RECIPES, *PAPER_MODELS))
    raise EncoderError(
        f"There is no encoder {name!r}: use {known}, 'open_clip:MODEL/WEIGHTS', 'hf:MODEL' or a "
        "folder with a model."
    )


def load_same_encoder(name: str, *, device: str, fingerprint: str) -> Encoder:
    """Load the encoder that another machine of a cluster uses.

    Parameters
    ----------
    name : str
        Name of the encoder.
    device : str
        Device to compute on.
    fingerprint : str
        Fingerprint that it must have.

    Returns
    -------
    Encoder
        The encoder.

    Raises
    ------
    EncoderError
        If it has another fingerprint here.

    Examples
    --------
    >>> from gpcache import load_encoder
    >>> from gpcache.encoders import load_same_encoder
    >>> print_of = load_encoder("lite").fingerprint
    >>> load_same_encoder("lite", device="cpu", fingerprint=print_of).name
    'lite'
    """
    encoder = load_encoder(name, device=device, download=False)
    if encoder.fingerprint != fingerprint:
        raise EncoderError(
            f"The encoder {name!r} differs on the Ray cluster (fingerprint "
            f"{encoder.fingerprint[:12]}, here {fingerprint[:12]}): install the same packages and "
            "weights there."
        )
    return encoder
