"""A name in a saved model downloads nothing; a name that the user gives may."""

import hashlib
import importlib.util
import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from gpcache import ImageClassifier, load_encoder
from gpcache.encoders.hub import NotDownloadedError, loading, no_downloads
from gpcache.encoders.open_clip import find_source
from gpcache.errors import EncoderError

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

NAME = "hf:someone/x"
PICTURES = np.random.default_rng(0).integers(0, 256, (4, 20, 20, 3), dtype=np.uint8)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def asked(monkeypatch):
    """The hosts that somebody looked up; nobody answers."""
    hosts = []

    def refuse(host, *_, **__):
        hosts.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return hosts


@pytest.fixture
def model(tmp_path):
    """A model folder whose maker names an encoder of the hub."""
    folder = tmp_path / "pets.gpc"
    classifier = ImageClassifier(tiny.ColourEncoder(), device="cpu")
    classifier.fit(list(zip(PICTURES, "abab", strict=True))).save(folder)
    return renamed(folder, NAME)


def renamed(folder, encoder):
    config = json.loads((folder / "config.json").read_bytes()) | {"sha256": ""}
    config["encoder"]["name"] = encoder
    text = json.dumps(config)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "config.json").write_text(text.replace('""', f'"{digest}"', 1))
    return folder


def download_into(cache, folder, *names):
    """Put files where the hub's library keeps those of someone/x."""
    repository = cache / "models--someone--x"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True, exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text("0" * 40)
    for name in names:
        shutil.copy(folder / name, snapshot / name)


@pytest.mark.usefixtures("cache")
def test_a_loaded_model_does_not_ask_the_hub_for_its_encoder(model, asked):
    loaded = ImageClassifier.load(model, device="cpu")
    with pytest.raises(EncoderError) as caught:
        list(loaded.predict(list(PICTURES)))
    assert str(caught.value) == (
        "The encoder 'hf:someone/x' is not on this machine, and a saved model does not download "
        "it: run gpcache fetch hf:someone/x to download it."
    )
    assert asked == []


@pytest.mark.usefixtures("cache")
def test_a_workspace_does_not_ask_the_hub_for_its_encoder(model, asked, tmp_path):
    pytest.importorskip("fastapi", reason="needs the extra serve")
    from gpcache.web.open_workspace import open_workspace

    with pytest.raises(EncoderError, match="run gpcache fetch hf:someone/x to download"):
        open_workspace(tmp_path / "work", model=model, device="cpu")
    assert asked == []


@pytest.mark.usefixtures("cache")
def test_a_hub_that_cannot_be_reached_is_asked_for_once(asked):
    """The hub's own library would retry for half a minute."""
    with pytest.raises(EncoderError, match="hub cannot be reached: connect once"):
        load_encoder(NAME, device="cpu")
    assert asked == ["huggingface.co"]


@pytest.mark.parametrize("download", [False, True])
def test_what_was_downloaded_before_is_used_and_nobody_is_asked(download, cache, asked, save_model):
    folder = save_model("clip")
    download_into(cache, folder, *(path.name for path in folder.iterdir()))
    here = load_encoder(NAME, device="cpu", download=download)
    assert here.fingerprint == load_encoder(str(folder), device="cpu").fingerprint
    assert asked == []


@pytest.mark.usefixtures("cache")
def test_a_name_of_no_encoder_asks_nobody(asked):
    with pytest.raises(EncoderError, match="There is no encoder 'lit'"):
        load_encoder("lit", device="cpu")
    assert asked == []


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_half_a_download_is_not_completed(missing, cache, asked, save_model):
    folder = save_model("clip")
    names = {path.name for path in folder.iterdir()} - {missing}
    download_into(cache, folder, *names)
    with pytest.raises(EncoderError, match=r"^[^\n]+\.?$"):
        load_encoder(NAME, device="cpu", download=False)
    assert asked == []
    with pytest.raises(EncoderError, match=r"^[^\n]+\.?$"):  # nobody answers
        load_encoder(NAME, device="cpu")
    assert asked == ["huggingface.co"]


class FakeOpenCLIP:
    """As much of open_clip as says where the weights of a tag are."""

    def list_models(self):
        return ["ViT-B-32"]

    def list_pretrained_tags_by_model(self, _):
        return ["tag"]

    def is_pretrained_cfg(self, *_):
        return True

    def get_pretrained_cfg(self, *_):
        return {"hf_hub": "someone/x/"}

    def get_model_config(self, _):
        return {}


@pytest.mark.usefixtures("cache")
def test_the_weights_of_open_clip_are_not_asked_for_either(asked):
    with no_downloads(), pytest.raises(NotDownloadedError):
        find_source(FakeOpenCLIP(), "ViT-B-32", "tag")
    assert asked == []


@pytest.mark.usefixtures("cache")
def test_the_network_is_back_afterwards_and_a_local_failure_is_no_missing_download(tmp_path):
    with pytest.raises(NotDownloadedError), no_downloads(), loading("someone/x"):
        raise OSError("not there")
    assert not constants.is_offline_mode()
    with pytest.raises(EncoderError) as caught, no_downloads(), loading(str(tmp_path)):
        raise OSError("damaged")
    assert not isinstance(caught.value, NotDownloadedError)
