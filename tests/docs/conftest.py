"""The folder that the documented commands run in: drawn pictures and a model of them."""

import shutil
import subprocess
import sys

import pytest

from gpcache.images.drawn import draw_picture, draw_pictures

CLASSES = ("bricks", "marble", "wood")


def draw_flat(folder, names, numbers):
    """Draw pictures without labels: all in one folder."""
    folder.mkdir()
    for name in names:
        for number in numbers:
            draw_picture(name, number).save(folder / f"{name}-{number}.jpg", quality=90)


@pytest.fixture(scope="session")
def drawn_folder(tmp_path_factory):
    """What the pages assume: photos, test photos, further ones, and the model of the first page."""
    folder = tmp_path_factory.mktemp("drawn")
    draw_pictures(folder / "photos", CLASSES, each=8)
    draw_pictures(folder / "test_photos", CLASSES, each=4, seed=1)
    draw_pictures(folder / "more_photos", ["grass"], each=3)
    draw_flat(folder / "new_photos", CLASSES, [40])
    draw_flat(folder / "pool", CLASSES, range(60, 64))
    draw_flat(folder / "other_photos", ["clock"], range(3))
    draw_picture("wood", 80).save(folder / "photo.jpg", quality=90)
    command = [sys.executable, "-m", "gpcache", "fit", "photos", "-o", "materials.gpc"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    shutil.copytree(folder / "materials.gpc", folder / "pets.gpc")
    return folder


@pytest.fixture
def page_folder(drawn_folder, tmp_path):
    """A copy of it for one page."""
    place = tmp_path / "page"
    shutil.copytree(drawn_folder, place)
    return place
