"""The data sets of the paper: what is expected where, how much of it, and who publishes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpcache.encoders.prompts import TEMPLATES

SPLIT_FILES = "its split file is published with CoOp, https://github.com/KaiyangZhou/CoOp"


class Counts(NamedTuple):
    """Classes, and images in each part; 0 where there is no such part."""

    classes: int
    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class DatasetEntry:
    """What is known of a data set.

    `folder` is its place below the root of all data sets, `images` the place of its images in
    there, in `parts` of it where these have fixed names; `lists` are the files that say which
    image is what. `known` counts a whole copy.
    """

    name: str
    title: str
    layout: Literal["split file", "variants", "imagenet", "imagenetv2", "imagenet-sketch"]
    folder: str
    images: str
    lists: tuple[str, ...]
    known: Counts
    published: str
    parts: tuple[str, ...] = ("",)

    @property
    def templates(self) -> tuple[str, ...]:
        """The community's templates; those of ImageNet for what is tested with its classes."""
        return TEMPLATES.get(self.name, TEMPLATES["imagenet"])

    @property
    def expected(self) -> tuple[str, ...]:
        """The paths, below the root of all data sets, that loading needs."""
        images = [f"{self.images}/{part}".strip("/") for part in self.parts]
        return tuple(f"{self.folder}/{name}" for name in (*images, *self.lists))


def catalogue() -> dict[str, DatasetEntry]:
    """The eleven data sets of the paper and its two for domain generalisation, by name."""
    return {entry.name: entry for entry in _ENTRIES}


def _with_split_file(
    name: str,
    title: str,
    folder: str,
    images: str,
    split: str,
    known: Counts,
    owners: str,
    parts: tuple[str, ...] = ("",),
) -> DatasetEntry:
    lists = (f"split_zhou_{split}.json",)
    published = f"{owners}; {SPLIT_FILES}"
    return DatasetEntry(name, title, "split file", folder, images, lists, known, published, parts)


_ENTRIES = (
    DatasetEntry(
        "imagenet",
        "ImageNet",
        "imagenet",
        "imagenet",
        "images",
        (),
        Counts(1000, 1_281_167, 0, 50_000),
        "ILSVRC 2012 at https://www.image-net.org (free account), val sorted into class folders",
        ("train", "val"),
    ),
    _with_split_file(
        "caltech101",
        "Caltech101",
        "caltech-101",
        "101_ObjectCategories",
        "Caltech101",
        Counts(100, 4128, 1649, 2465),
        "https://data.caltech.edu/records/mzrjq-6wc02",
    ),
    _with_split_file(
        "oxford_pets",
        "OxfordPets",
        "oxford_pets",
        "images",
        "OxfordPets",
        Counts(37, 2944, 736, 3669),
        "https://www.robots.ox.ac.uk/~vgg/data/pets",
    ),
    _with_split_file(
        "stanford_cars",
        "StanfordCars",
        "stanford_cars",
        "",
        "StanfordCars",
        Counts(196, 6509, 1635, 8041),
        "https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        ("cars_train", "cars_test"),
    ),
    _with_split_file(
        "oxford_flowers",
        "Flowers102",
        "oxford_flowers",
        "jpg",
        "OxfordFlowers",
        Counts(102, 4093, 1633, 2463),
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
    ),
    _with_split_file(
        "food101",
        "Food101",
        "food-101",
        "images",
        "Food101",
        Counts(101, 50_500, 20_200, 30_300),
        "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101",
    ),
    DatasetEntry(
        "fgvc_aircraft",
        "FGVCAircraft",
        "variants",
        "fgvc_aircraft",
        "images",
        (
            "variants.txt",
            "images_variant_train.txt",
            "images_variant_val.txt",
            "images_variant_test.txt",
        ),
        Counts(100, 3334, 3333, 3333),
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft (the content of its folder data)",
    ),
    _with_split_file(
        "sun397",
        "SUN397",
        "sun397",
        "SUN397",
        "SUN397",
        Counts(397, 15_880, 3970, 19_850),
        "https://vision.princeton.edu/projects/2010/SUN",
    ),
    _with_split_file(
        "dtd",
        "DTD",
        "dtd",
        "images",
        "DescribableTextures",
        Counts(47, 2820, 1128, 1692),
        "https://www.robots.ox.ac.uk/~vgg/data/dtd",
    ),
    _with_split_file(
        "eurosat",
        "EuroSAT",
        "eurosat",
        "2750",
        "EuroSAT",
        Counts(10, 13_500, 5400, 8100),
        "https://github.com/phelber/EuroSAT (the RGB images)",
    ),
    _with_split_file(
        "ucf101",
        "UCF101",
        "ucf101",
        "UCF-101-midframes",
        "UCF101",
        Counts(101, 7639, 1898, 3783),
        "https://www.crcv.ucf.edu/data/UCF101.php (videos; their middle frames come with CoOp)",
    ),
    DatasetEntry(
        "imagenetv2",
        "ImageNetV2",
        "imagenetv2",
        "imagenetv2",
        "imagenetv2-matched-frequency-format-val",
        (),
        Counts(1000, 0, 0, 10_000),
        "https://github.com/modestyachts/ImageNetV2 (matched frequency)",
    ),
    DatasetEntry(
        "imagenet_sketch",
        "ImageNet-Sketch",
        "imagenet-sketch",
        "imagenet-sketch",
        "images",
        (),
        Counts(1000, 0, 0, 50_889),
        "https://github.com/HaohanWang/ImageNet-Sketch",
    ),
)
