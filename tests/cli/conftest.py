"""Photos of shapes, a model fitted once, and ways to run a command."""

import contextlib
import io
import itertools
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw

from gpcache import ImageClassifier
from gpcache.cli.app import main

SHAPES = ("circle", "square", "triangle")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `gpcache ...` in this process and return (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpcache", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def prepare():
    """Run a `gpcache ...` that tests begin with: in this process, and it must succeed."""

    def prepare(*arguments):
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            patch.setattr(sys, "argv", ["gpcache", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code

    return prepare


@pytest.fixture(scope="session")
def shell():
    """Run `gpcache ...` as a process of its own; text goes in and out as bytes."""

    def shell(*arguments, stdin=None, **options):
        return subprocess.run(
            [sys.executable, "-m", "gpcache", *map(str, arguments)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"},
            check=False,
            timeout=300,
            **options,
        )

    return shell


@pytest.fixture
def mistake(run):
    """Run a command that must fail: exit code 2, nothing on stdout, and this one sentence."""

    def mistake(*arguments):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("gpcache: ")
        assert err.count("\n") == 1
        return err

    return mistake


def draw(shape, seed):
    """A bright shape somewhere on dark noise."""
    random = np.random.default_rng(seed)
    image = Image.fromarray(random.integers(0, 90, (96, 96, 3), dtype=np.uint8))
    left, top = random.integers(8, 30, 2).tolist()
    size = int(random.integers(45, 60))
    right, bottom = left + size, top + size
    colour = tuple(random.integers(150, 255, 3).tolist())
    pen = ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse((left, top, right, bottom), fill=colour)
    elif shape == "square":
        pen.rectangle((left, top, right, bottom), fill=colour)
    else:
        pen.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], fill=colour)
    return image


@pytest.fixture(scope="session")
def write_shapes():
    """A function that writes `count` photos of each shape into class folders."""

    def write_shapes(folder, count, seed, shapes=SHAPES):
        for shape in shapes:
            (folder / shape).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                image = draw(shape, (seed, SHAPES.index(shape), number))
                image.save(folder / shape / f"{number}.png")
        return folder

    return write_shapes


@pytest.fixture(scope="session")
def shapes(tmp_path_factory, write_shapes):
    """The training photos: four of each shape."""
    return write_shapes(tmp_path_factory.mktemp("data") / "shapes", 4, 1)


@pytest.fixture(scope="session")
def unseen(tmp_path_factory, write_shapes):
    """Three more of each shape."""
    return write_shapes(tmp_path_factory.mktemp("data") / "unseen", 3, 2)


@pytest.fixture(scope="session")
def shapes_store(tmp_path_factory, shapes, prepare):
    """The features of the training photos; not to be changed."""
    store = tmp_path_factory.mktemp("stored") / "shapes.store"
    prepare("extract", shapes, "-o", store)
    return store


@pytest.fixture(scope="session")
def fitted(tmp_path_factory, shapes, shell):
    """The model folder, and what `gpcache fit -v` said while it made it."""
    model = tmp_path_factory.mktemp("model") / "shapes.gpc"
    return model, shell("fit", shapes, "-o", model, "-v")


@pytest.fixture(scope="session")
def model(fitted):
    """The fitted model folder; not to be changed."""
    return fitted[0]


@pytest.fixture
def own_model(model, tmp_path):
    """A copy of the fitted model, to be changed."""
    return shutil.copytree(model, tmp_path / "own.gpc")


@pytest.fixture(scope="session")
def text_model(tmp_path_factory, write_shapes):
    """A model of text alone, which keeps no training image."""
    folder = tmp_path_factory.mktemp("text")
    photos = write_shapes(folder / "photos", 1, 3)
    ImageClassifier(method="zero-shot").fit(photos).save(folder / "text.gpc")
    return folder / "text.gpc"


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """Photos in folders and files whose names steer terminals or run in spreadsheets."""
    folder = tmp_path_factory.mktemp("hostile") / "photos"
    names = ["=1+1", "\x1b[31mred", "two\nlines", "\x9b2J", "\u202eright to left", "<b>🐈"]
    for row, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            draw("circle", (row, number)).save(folder / name / f"{name} {number}.png")
    return folder


@pytest.fixture
def hostile_classes(hostile, tmp_path):
    """The same photos in folders whose names are legal classes; those of the files stay."""
    classes = itertools.cycle(["=1+1", "two\nlines", "<b>🐈"])
    for folder, name in zip(sorted(hostile.iterdir()), classes, strict=False):
        shutil.copytree(folder, tmp_path / "classes" / name, dirs_exist_ok=True)
    return tmp_path / "classes"


@pytest.fixture
def broken(tmp_path, write_shapes):
    """Two photos of each shape, and files that are none."""
    folder = write_shapes(tmp_path / "broken", 2, 4)
    whole = (folder / "circle" / "0.png").read_bytes()
    (folder / "circle" / "half.png").write_bytes(whole[: len(whole) // 2])
    (folder / "circle" / "empty.jpg").write_bytes(b"")
    (folder / "square" / "evil\x1b[31m.jpg").write_bytes(b"<svg/>")
    (folder / "square" / "eps.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    )
    (folder / "square" / "notes.txt").write_text("not a photo")
    return folder


BROKEN = {
    "circle/half.png": "truncated",
    "circle/empty.jpg": "it is empty",
    "square/evil\x1b[31m.jpg": "it is not an image",
    "square/eps.jpg": "it is not an image",
}


@pytest.fixture
def reasons():
    """Each broken file and what its refusal says."""
    return BROKEN


@pytest.fixture
def tree():
    """A function that reads a folder: every file below it with its bytes."""

    def tree(folder):
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return tree
