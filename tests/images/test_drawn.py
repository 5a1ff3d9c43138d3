"""Drawn pictures: the same for the same seed, all different, and files as a camera makes them."""

import re
import subprocess
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from PIL import Image

from gpcache.errors import DataError
from gpcache.images.drawn import DRAWN_CLASSES, DRAWN_OTHERS, draw_picture, draw_pictures
from gpcache.images.records import IMAGE_SUFFIXES

ROOT = Path(__file__).resolve().parents[2]
ALL = DRAWN_CLASSES + DRAWN_OTHERS


@pytest.mark.parametrize("name", ALL)
def test_a_seed_decides_the_picture(name):
    first = np.asarray(draw_picture(name, 3, seed=1))
    assert first.shape == (240, 320, 3)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, np.asarray(draw_picture(name, 3, seed=1)))
    for number, seed in ((4, 1), (3, 2)):
        other = np.asarray(draw_picture(name, number, seed=seed))
        assert np.abs(first.astype(int) - other).mean() > 5
    # Something can be seen on it: neither black nor white nor one colour.
    assert 20 < first.mean() < 235
    assert first.std() > 5


def test_ten_classes_and_two_others_have_names_of_their_own():
    assert (len(DRAWN_CLASSES), len(DRAWN_OTHERS), len(set(ALL))) == (10, 2, 12)


def test_a_folder_for_each_class_holds_jpeg_files(tmp_path):
    assert draw_pictures(tmp_path / "new", ["wood", "clock"], each=2, seed=5) == tmp_path / "new"
    files = sorted((tmp_path / "new").rglob("*.*"))
    names = ["clock/00.jpg", "clock/01.jpg", "wood/00.jpg", "wood/01.jpg"]
    assert [str(file.relative_to(tmp_path / "new")) for file in files] == names
    before = [file.read_bytes() for file in files]
    assert len(set(before)) == 4
    for file in files:
        with Image.open(file) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (320, 240))
    draw_pictures(tmp_path / "new", ["wood", "clock"], each=2, seed=5)
    assert [file.read_bytes() for file in files] == before


def test_files_that_were_there_stay(tmp_path):
    own = tmp_path / "wood" / "mine.jpg"
    own.parent.mkdir()
    own.write_bytes(b"mine")
    draw_pictures(tmp_path, ["wood"], each=1)
    assert own.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"names": ["wood", "cat"]}, "name must be one of 'bricks', .*, got 'cat'."),
        ({"each": 0}, "each must be a whole number above zero, got 0."),
        ({"seed": -1}, "seed must be a whole number of 0 or more, got -1."),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(tmp_path, options, sentence):
    with pytest.raises(DataError) as error:
        draw_pictures(tmp_path, **{"names": ["wood"], "each": 1} | options)
    assert re.fullmatch(sentence, str(error.value))


def test_drawing_is_quick():
    """The demo's 200 pictures take a few seconds of one core; a busy machine takes some more."""
    start = process_time()
    for name in DRAWN_CLASSES:
        draw_picture(name, 7)
    assert process_time() - start < 2


def test_the_repository_holds_no_photographs():
    """Its images are plots of results, or screenshots of drawn pictures that a script takes."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("This is no clone: what belongs to the repository is not known.")
    images = [Path(name) for name in listed.stdout.splitlines()]
    images = [file for file in images if file.suffix.lower() in IMAGE_SUFFIXES]
    script = (ROOT / "benchmarks" / "screenshots.py").read_text()
    taken = {file for file in images if re.search(rf'"{file.stem}(\{file.suffix})?"', script)}
    assert taken
    assert {file.parts[:2] for file in set(images) - taken} <= {("docs", "results")}
