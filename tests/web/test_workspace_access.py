"""A workspace shows photos of people: it is for its owner alone."""

import os
import stat

import numpy as np
import pytest

from gpcache import ImageClassifier
from gpcache.support.temporary import SUFFIX
from gpcache.web.batch_files import BatchFiles
from gpcache.web.open_workspace import open_workspace
from gpcache.web.workspace_folder import EncodedPhoto

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
PICTURES = np.random.default_rng(0).integers(0, 256, (4, 20, 20, 3), dtype=np.uint8)


def readable(folder):
    """What others than the owner may read or enter in a folder, itself included."""
    paths = [folder, *folder.rglob("*")]
    return [str(path) for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077]


@pytest.fixture
def model(encoder, tmp_path):
    folder = tmp_path / "model.gpc"
    classifier = ImageClassifier(encoder, device="cpu")
    classifier.fit(list(zip(PICTURES, "abab", strict=True))).save(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize("begun_with", ["nothing", "a model that everybody may read"])
def test_a_workspace_is_for_its_owner_alone(begun_with, model, encoder, tmp_path):
    work = tmp_path / "work"
    given = None if begun_with == "nothing" else model
    opened = open_workspace(work, model=given, encoder=encoder, device="cpu")
    opened.folder.put(EncodedPhoto("0" * 64, np.zeros(16, np.float32), b"picture"))
    opened.folder.write(opened.document)
    BatchFiles(opened.folder.batches).begin("csv")
    opened.folder.close()
    assert len(list(work.rglob("*"))) >= 6
    assert readable(work) == []


def test_a_workspace_that_the_owner_has_opened_to_a_group_stays_so(encoder, tmp_path):
    work = tmp_path / "work"
    work.mkdir(mode=0o750)
    work.chmod(0o750)
    opened = open_workspace(work, encoder=encoder, device="cpu")
    (work / "workspace.json").chmod(0o640)
    opened.folder.write(opened.document)
    opened.folder.close()
    assert stat.S_IMODE(work.stat().st_mode) == 0o750
    assert stat.S_IMODE((work / "workspace.json").stat().st_mode) == 0o640


def test_opening_removes_what_a_killed_server_left(encoder, tmp_path):
    work = tmp_path / "work"
    open_workspace(work, encoder=encoder, device="cpu").folder.close()
    left = [
        work / f".workspace.json.0123abcd{SUFFIX}",
        work / "photos" / f".00.safetensors.0123abcd{SUFFIX}",
        work / "batches" / f".00.jsonl.0123abcd{SUFFIX}",
    ]
    for path in left:
        path.write_bytes(bytes(1000))
    open_workspace(work, encoder=encoder, device="cpu").folder.close()
    assert [path for path in left if path.exists()] == []
