"""Class names as the community cleans them, held against the files that it publishes."""

import json

import pytest

from gpcache.benchmark.datasets.catalogue import catalogue
from gpcache.benchmark.datasets.dataset import number_duplicates
from gpcache.benchmark.datasets.published_layouts import spoken_name


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("caltech101", lambda path: path.split("/")[0]),
        ("dtd", lambda path: path.split("/")[0]),
        ("eurosat", lambda path: path.split("/")[0]),
        ("oxford_pets", lambda path: path.rsplit("_", 1)[0]),
        ("ucf101", lambda path: path.split("_")[-3]),
    ],
)
def test_raw_names_become_those_of_the_split_file(name, raw, miniature, shared):
    """Folders and file names carry the owners' names: witnesses of the clean-up."""
    split = miniature.known[name][2]
    content = json.loads((shared / "splits" / f"split_zhou_{split}.json").read_text())
    odd = set()
    for path, _, published in (row for rows in content.values() for row in rows):
        cleaned = spoken_name(catalogue()[name], published)
        if spoken_name(catalogue()[name], raw(path)) != cleaned:
            odd.add(cleaned)
        assert spoken_name(catalogue()[name], cleaned) == cleaned
    # The owners write this one in two ways.
    assert odd == ({"Handstand Pushups"} if name == "ucf101" else set())


@pytest.mark.parametrize(
    ("name", "raw", "cleaned"),
    [
        ("stanford_cars", "AM General Hummer SUV 2000", "2000 AM General Hummer SUV"),
        ("stanford_cars", "2000 AM General Hummer SUV", "2000 AM General Hummer SUV"),
        ("sun397", "/a/abbey", "abbey"),
        ("sun397", "/t/theater/indoor_procenium", "indoor procenium theater"),
        ("ucf101", "YoYo", "Yo Yo"),
        ("caltech101", "Motorbikes", "motorbike"),
        ("imagenet", "great white shark", "great white shark"),
    ],
)
def test_names_are_cleaned_as_the_community_does(name, raw, cleaned):
    assert spoken_name(catalogue()[name], raw) == cleaned
    assert spoken_name(catalogue()[name], cleaned) == cleaned


def test_names_that_several_classes_share():
    assert number_duplicates(["a", "b", "a"]) == ("a (0)", "b", "a (2)")
