"""The folder that the documented commands run in: drawn pictures and a model of them."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

CLASSES = ("bricks", "marble", "wood")


def draw(name, number):
    """A picture of stripes, clouds or rings; light, scale and noise vary with its number."""
    rng = np.random.default_rng([number, *name.encode()])
    rows, columns = np.mgrid[0:96, 0:128] / rng.uniform(8, 14)
    shade = {
        "bricks": np.sign(np.sin(3 * rows)) + np.sign(np.sin(columns + np.floor(rows))),
        "marble": 2 * np.sin(rows + columns + 2 * np.sin(columns * 0.7)),
        "wood": 2 * np.sin(np.hypot(rows * 0.4, columns * 2)),
        "grass": rng.normal(size=rows.shape) * 2,
    }[name]
    colour = {
        "bricks": (170, 80, 60),
        "marble": (210, 210, 220),
        "wood": (150, 110, 60),
        "grass": (60, 150, 50),
    }[name]
    light = rng.uniform(0.8, 1.1)
    pixels = light * np.array(colour) + 18 * shade[..., None] + rng.normal(0, 6, (96, 128, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_folder(folder, names, numbers, *, in_classes=True):
    for name in names:
        place = folder / name if in_classes else folder
        place.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            file = f"{number:02}.jpg" if in_classes else f"{name}-{number:02}.jpg"
            draw(name, number).save(place / file, quality=90)


@pytest.fixture(scope="session")
def drawn_folder(tmp_path_factory):
    """What the pages assume: photos, test photos, further ones, and the model of the first page."""
    folder = tmp_path_factory.mktemp("drawn")
    draw_folder(folder / "photos", CLASSES, range(8))
    draw_folder(folder / "test_photos", CLASSES, range(20, 26))
    draw_folder(folder / "new_photos", CLASSES, range(40, 42), in_classes=False)
    draw_folder(folder / "pool", CLASSES, range(60, 68), in_classes=False)
    draw_folder(folder / "other_photos", ["grass"], range(4), in_classes=False)
    draw_folder(folder / "more_photos", ["grass"], range(10, 14))
    draw("wood", 80).save(folder / "photo.jpg")
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
