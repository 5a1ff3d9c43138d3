"""Miniature copies of the data sets, each in its true layout, with real JPEG files."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from gpcache.benchmark.datasets.catalogue import Counts

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared"))

# Folder, folder of images, split file, and an image and raw class name of each of two classes.
MINIATURES = {
    "caltech101": (
        "caltech-101",
        "101_ObjectCategories",
        "Caltech101",
        ["Faces/image_{:04d}.jpg", "car_side/image_{:04d}.jpg"],
        ["face", "car_side"],
        ("face", "car side"),
    ),
    "oxford_pets": (
        "oxford_pets",
        "images",
        "OxfordPets",
        ["Abyssinian_{}.jpg", "american_bulldog_{}.jpg"],
        ["abyssinian", "american_bulldog"],
        ("abyssinian", "american bulldog"),
    ),
    "stanford_cars": (
        "stanford_cars",
        "",
        "StanfordCars",
        ["cars_train/{:05d}.jpg", "cars_test/{:05d}.jpg"],
        ["2012 Audi TTS Coupe", "Suzuki Aerio Sedan 2007"],
        ("2012 Audi TTS Coupe", "2007 Suzuki Aerio Sedan"),
    ),
    "oxford_flowers": (
        "oxford_flowers",
        "jpg",
        "OxfordFlowers",
        ["image_0{:04d}.jpg", "image_1{:04d}.jpg"],
        ["pink primrose", "colt's foot"],
        ("pink primrose", "colt's foot"),
    ),
    "food101": (
        "food-101",
        "images",
        "Food101",
        ["apple_pie/{}.jpg", "sushi/{}.jpg"],
        ["apple_pie", "sushi"],
        ("apple pie", "sushi"),
    ),
    "sun397": (
        "sun397",
        "SUN397",
        "SUN397",
        ["a/abbey/sun_{}.jpg", "a/archive/indoor/sun_{}.jpg"],
        ["abbey", "indoor archive"],
        ("abbey", "indoor archive"),
    ),
    "dtd": (
        "dtd",
        "images",
        "DescribableTextures",
        ["banded/banded_{:04d}.jpg", "dotted/dotted_{:04d}.jpg"],
        ["banded", "dotted"],
        ("banded", "dotted"),
    ),
    "eurosat": (
        "eurosat",
        "2750",
        "EuroSAT",
        ["AnnualCrop/AnnualCrop_{}.jpg", "SeaLake/SeaLake_{}.jpg"],
        ["AnnualCrop", "Sea or Lake"],
        ("Annual Crop Land", "Sea or Lake"),
    ),
    "ucf101": (
        "ucf101",
        "UCF-101-midframes",
        "UCF101",
        ["Apply_Eye_Makeup/v_ApplyEyeMakeup_g{:02d}_c01.jpg", "Archery/v_Archery_g{:02d}_c01.jpg"],
        ["Apply_Eye_Makeup", "Archery"],
        ("Apply Eye Makeup", "Archery"),
    ),
}
# Images of a class in train, val and test.
SIZES = {"train": 3, "val": 1, "test": 2}


def write_image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path, "JPEG")


def write_miniature(root, name):
    """Six images of each class, split 3/1/2; returns the content of the split file."""
    folder, images, _, patterns, names, _ = MINIATURES[name]
    content = {}
    number = 0
    for part, size in SIZES.items():
        content[part] = []
        for _ in range(size):
            for label, pattern in enumerate(patterns):
                number += 1
                path = pattern.format(number)
                write_image(root / folder / images / path)
                content[part].append([path, label, names[label]])
    write_split(root, name, content)
    return content


def write_split(root, name, content):
    folder, _, split, *_ = MINIATURES[name]
    (root / folder / f"split_zhou_{split}.json").write_text(json.dumps(content))


def write_aircraft(root):
    folder = root / "fgvc_aircraft"
    folder.mkdir()
    variants = ["707-320", "Cessna 172", "F-16A/B"]
    (folder / "variants.txt").write_text("".join(f"{name}\n" for name in variants))
    number = 1_000_000
    for part, size in SIZES.items():
        lines = []
        for name in variants * size:
            number += 1
            write_image(folder / "images" / f"{number}.jpg")
            lines.append(f"{number} {name}\n")
        (folder / f"images_variant_{part}.txt").write_text("".join(lines))
    return folder


def write_imagenet(root, wnids, *, train=3, test=2):
    for wnid in wnids:
        for number in range(train):
            write_image(root / f"imagenet/images/train/{wnid}/{wnid}_{number}.JPEG")
        for number in range(test):
            write_image(root / f"imagenet/images/val/{wnid}/ILSVRC2012_val_{wnid}{number}.JPEG")


def counts(dataset):
    validation = len(dataset.validation) if dataset.validation else 0
    return Counts(len(dataset.class_names), len(dataset.train), validation, len(dataset.test))


@pytest.fixture(scope="session")
def miniature():
    """What writes the miniatures, and what they hold."""
    return SimpleNamespace(
        known=MINIATURES,
        image=write_image,
        write=write_miniature,
        split=write_split,
        aircraft=write_aircraft,
        imagenet=write_imagenet,
        counts=counts,
    )


@pytest.fixture(scope="session")
def shared():
    """The development data beside the project."""
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is absent: set GPCACHE_DEV_DATA to the development data")
    return DATA
