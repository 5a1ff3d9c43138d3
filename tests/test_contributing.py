"""The map in CONTRIBUTING.md names what is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
MAP = TEXT.split("## Five ways through the code")[1].split("\n## ")[0]
PACKAGES = {path.name for path in (Path(__file__).parents[1] / "src" / "gpcache").iterdir()}
NAMES = sorted(
    name
    for name in set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", MAP))
    if name.split(".")[0] in PACKAGES
)


def resolved(name):
    """The module, class or function of a dotted name below gpcache."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(["gpcache", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_the_map_names_places():
    assert len(NAMES) > 25


@pytest.mark.parametrize("name", NAMES)
def test_every_place_on_the_map_exists(name):
    assert resolved(name) is not None
