"""Class names as the community cleans them: what a sentence calls a class, by data set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gpcache.encoders.prompts import clean_class_name

CALTECH = {
    "airplanes": "airplane",
    "Faces": "face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
}
EUROSAT = {
    "AnnualCrop": "Annual Crop Land",
    "Forest": "Forest",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "River": "River",
    "SeaLake": "Sea or Lake",
}


def spoken_name(dataset: str, name: str) -> str:
    """The name of a class as sentences have it; a name that is clean already stays as it is.

    Split files hold cleaned names, but for underscores; folders and lists hold the owners' own.
    """
    clean = _CLEANED.get(dataset)
    return clean_class_name(clean(name) if clean else name)


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with its number behind each that several classes share: "sunglasses (836)"."""
    times = Counter(names)
    return tuple(
        f"{name} ({number})" if times[name] > 1 else name for number, name in enumerate(names)
    )


def _car(name: str) -> str:
    """The year goes to the front: "Audi TTS Coupe 2012" → "2012 Audi TTS Coupe"."""
    found = re.fullmatch(r"(.+) (\d{4})", name)
    return f"{found[2]} {found[1]}" if found else name


def _scene(name: str) -> str:
    """The letter goes, and the finer word comes first: "a/archive/indoor" → "indoor archive"."""
    _, *words = name.strip("/").split("/")
    return " ".join(reversed(words)) if words else name


def _action(name: str) -> str:
    """The words of a name in camel case come apart."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)


_CLEANED: Mapping[str, Callable[[str], str]] = {
    "caltech101": lambda name: CALTECH.get(name, name),
    "eurosat": lambda name: EUROSAT.get(name, name),
    "oxford_pets": str.lower,
    "stanford_cars": _car,
    "sun397": _scene,
    "ucf101": _action,
}
