"""Files to decode, made once; scripts of this folder; and a look at this process's children."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from gpcache import DataError

HERE = Path(__file__).parent


def load(name):
    """A script of this folder as a module: test files cannot import each other."""
    spec = importlib.util.spec_from_file_location(f"images_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def goldens():
    return load("make_goldens")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """The hostile corpus: its module, and the folder it was written to."""
    module = load("hostile_corpus")
    folder = tmp_path_factory.mktemp("hostile")
    module.write_images(folder)
    return SimpleNamespace(folder=folder, module=module)


@pytest.fixture
def photo():
    """An image with every colour at a place of its own."""
    return Image.merge(
        "RGB",
        [
            Image.linear_gradient("L").resize((90, 60)),
            Image.radial_gradient("L").resize((90, 60)),
            Image.linear_gradient("L").rotate(90).resize((90, 60)),
        ],
    )


@pytest.fixture
def measured():
    """Run a script in a fresh interpreter; it prints JSON."""

    def run(script, *arguments):
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def children():
    """The decoding workers that this process has now."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc to see the children of a process")

    def workers(parent=None):
        found = []
        for entry in Path("/proc").iterdir():
            try:
                state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            mine = int(ppid) == (parent or os.getpid())
            if mine and state != "Z" and b"gpcache.images.worker" in command:
                found.append(int(entry.name))
        return sorted(found)

    return workers


@pytest.fixture
def tree(tmp_path, photo):
    """Write files below a root; an image where the suffix says so, text elsewhere."""
    root = tmp_path / "root"
    root.mkdir()

    def write(*names):
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in (".png", ".jpg"):
                photo.save(path)
            elif name.endswith("/"):
                path.mkdir(exist_ok=True)
            else:
                path.write_text("text")
        return root

    return write


def one_sentence(call, *parts):
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def names(source):
    return [record.name for record in source.records]


def refusals(source):
    return {entry.name: entry.reason for entry in source.refused}


@pytest.fixture(scope="session")
def tools():
    """The helpers of this file: test files cannot import a conftest."""
    return SimpleNamespace(one_sentence=one_sentence, names=names, refusals=refusals)
