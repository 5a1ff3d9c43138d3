"""Draws that depend on their own class alone, and published split files."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpcache.errors import DataError
from gpcache.features.splits import Part, SplitFile, draw_shots, read_split_file

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared")) / "splits"
PUBLISHED = {  # classes, train, val, test, fewest training images of a class
    "Caltech101": (100, 4128, 1649, 2465, 16),
    "DescribableTextures": (47, 2820, 1128, 1692, 60),
    "EuroSAT": (10, 13500, 5400, 8100, 1000),
    "OxfordFlowers": (102, 4093, 1633, 2463, 20),
    "OxfordPets": (37, 2944, 736, 3669, 74),
    "StanfordCars": (196, 6509, 1635, 8041, 19),
    "UCF101": (101, 7639, 1898, 3783, 58),
}
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA} is absent: set GPCACHE_DEV_DATA to the development data"
)

# Ten images each of three trees, and two of a rare one.
TREES = [(f"{tree}/{i}.jpg", tree) for tree in ("oak", "ash", "elm") for i in range(10)]
TREES += [("yew/0.jpg", "yew"), ("yew/1.jpg", "yew")]
GOLDEN = {
    "oak": ["oak/8.jpg", "oak/9.jpg", "oak/4.jpg"],
    "ash": ["ash/5.jpg", "ash/3.jpg", "ash/1.jpg"],
}


def drawn(pairs, shots=4, seed=0):
    """Label → the names that were drawn, in order."""
    names, labels = zip(*pairs, strict=True)
    found = {}
    for row in draw_shots(labels, names, shots, seed).indices:
        found.setdefault(labels[row], []).append(names[row])
    return found


def test_a_draw_takes_so_many_of_each_class():
    names, labels = zip(*TREES, strict=True)
    draw = draw_shots(labels, names, 4, 7)
    taken = [labels[row] for row in draw.indices]
    assert taken == ["ash"] * 4 + ["elm"] * 4 + ["oak"] * 4 + ["yew"] * 2
    assert (draw.shots, draw.seed, draw.short) == (4, 7, {"yew": 2})
    assert sorted([*draw.indices, *draw.rest]) == list(range(32))
    assert list(draw.rest) == sorted(draw.rest)


def test_a_draw_is_the_same_for_good():
    """These names are what seed 0 means; another answer would break every published draw."""
    assert drawn(TREES, 3)["oak"] == GOLDEN["oak"]
    assert drawn(TREES, 3)["ash"] == GOLDEN["ash"]


@given(st.permutations(TREES), st.integers(0, 2**40), st.integers(1, 12))
def test_the_order_of_rows_means_nothing(pairs, seed, shots):
    assert drawn(pairs, shots, seed) == drawn(TREES, shots, seed)


@given(st.integers(0, 99), st.sets(st.sampled_from(["oak", "ash", "elm"]), min_size=1))
def test_other_classes_mean_nothing(seed, kept):
    whole = drawn(TREES, 4, seed)
    part = drawn([pair for pair in TREES if pair[1] in kept], 4, seed)
    assert part == {label: whole[label] for label in part}


@given(st.integers(0, 99), st.integers(1, 9))
def test_fewer_shots_are_a_part_of_more(seed, shots):
    more = drawn(TREES, shots + 1, seed)
    assert drawn(TREES, shots, seed) == {label: names[:shots] for label, names in more.items()}


def test_seeds_and_classes_draw_differently():
    seeds = {tuple(drawn(TREES, 4, seed)["oak"]) for seed in range(50)}
    assert len(seeds) > 45  # 5,040 ordered draws are possible
    places = {tuple(name[4:] for name in names) for names in drawn(TREES, 10).values()}
    assert len(places) == 4


def test_every_row_is_drawn_equally_often():
    """1,000 seeds, two of ten rows: 200 times each, give or take five standard deviations."""
    counts = dict.fromkeys((name for name, label in TREES if label == "oak"), 0)
    for seed in range(1000):
        for name in drawn(TREES, 2, seed)["oak"]:
            counts[name] += 1
    assert len(counts) == 10
    assert all(137 <= count <= 263 for count in counts.values())


def test_rows_without_a_label_are_never_drawn():
    labels = [None, "a", "a", None, "b"]
    draw = draw_shots(labels, ["0", "1", "2", "3", "4"], 9)
    assert sorted(draw.indices) == [1, 2, 4]
    assert draw.rest.tolist() == [0, 3]
    assert draw.short == {"a": 2, "b": 1}


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_numbers_are_labels_too(kind):
    labels = kind([10, 9, 10, 9, 2])
    draw = draw_shots(labels, [Path("e"), Path("d"), Path("c"), Path("b"), Path("a")], 2)
    assert [int(labels[row]) for row in draw.indices] == [2, 9, 9, 10, 10]
    assert draw.short == {2: 1}


@pytest.mark.parametrize(
    ("labels", "names", "shots", "seed", "message"),
    [
        (["a"], ["1"], 0, 0, "shots must be a whole number above zero, got 0"),
        (["a"], ["1"], 1.5, 0, "shots must be a whole number above zero, got 1.5"),
        (["a"], ["1"], True, 0, "shots must be a whole number"),
        (["a"], ["1"], 1, -1, "seed must be a whole number of 0 or more, got -1"),
        (["a"], ["1", "2"], 1, 0, "1 labels and 2 names"),
        ([], [], 1, 0, "no row has one"),
        ([None, None], ["1", "2"], 1, 0, "no row has one"),
        (["a", "b", "a"], ["1", "1", "1"], 1, 0, "class 'a' has the name '1' twice"),
        (["a", 3], ["1", "2"], 1, 0, "all text, or all numbers"),
        ([1.0, float("nan")], ["1", "2"], 1, 0, "label of row 1 is NaN"),
        ([["a"]], ["1"], 1, 0, r"label of row 0 must be text or a number, got \['a'\]"),
    ],
)
def test_a_draw_that_cannot_be_made(labels, names, shots, seed, message):
    with pytest.raises(DataError, match=message):
        draw_shots(labels, names, shots, seed)


@needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_splits(name):
    split = read_split_file(DATA / f"split_zhou_{name}.json")
    classes, *sizes, fewest = PUBLISHED[name]
    assert len(split.class_names) == classes
    assert [len(split.parts[part].names) for part in ("train", "val", "test")] == sizes
    for part in split.parts.values():
        assert set(part.labels) == set(split.class_names)
    labels = split.parts["train"].labels
    assert min(labels.count(label) for label in split.class_names) == fewest


@needs_data
def test_sixteen_shots_of_a_published_split():
    split = read_split_file(DATA / "split_zhou_OxfordPets.json")
    assert split.class_names[0] == "abyssinian"
    train = split.parts["train"]
    draw = draw_shots(train.labels, train.names, 16, 1)
    assert (len(draw.indices), draw.short) == (37 * 16, {})
    # The breed is in the name of each file: an independent witness of path and label.
    assert all(
        train.names[row].rsplit("_", 1)[0].lower() == train.labels[row] for row in draw.indices
    )


@pytest.fixture
def write(tmp_path):
    def written(content):
        file = tmp_path / "split.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return written


def split_of(train, val=(), test=()):
    return {"train": train, "val": list(val), "test": list(test)}


def test_class_names_are_in_the_order_of_their_numbers(write):
    split = read_split_file(write(split_of([["p", 1, "ash"], ["q", 0, "oak"]], [["r", 1, "ash"]])))
    assert split == SplitFile(
        ("oak", "ash"),
        {
            "train": Part(("p", "q"), ("ash", "oak")),
            "val": Part(("r",), ("ash",)),
            "test": Part((), ()),
        },
    )


GOOD = ["p", 0, "oak"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ([GOOD], "one object with the parts train, val, test"),
        ({"train": [GOOD]}, "one object with the parts train, val, test"),
        (split_of([GOOD]) | {"more": []}, "one object with the parts"),
        (split_of(None), "part 'train' of .* must be a list of images"),
        (split_of([GOOD], [["q", 0]]), "part 'val' of .* must be a list of images"),
        (split_of([["p", "0", "oak"]]), "must be a list of images"),
        (split_of([["p", True, "oak"]]), "must be a list of images"),
        (split_of([["p", 0, ""]]), "must be a list of images"),
        (split_of([["", 0, "oak"]]), "must be a list of images"),
        (split_of([]), "run from 0 to the last without gaps"),
        (split_of([GOOD, ["q", 2, "ash"]]), "run from 0 to the last without gaps"),
        (split_of([["p", -1, "oak"]]), "run from 0 to the last without gaps"),
        (split_of([GOOD], [["q", 0, "ash"]]), "two class names for the label 0: 'oak' and 'ash'"),
        (split_of([GOOD], [["q", 1, "oak"]]), "class name 'oak' for the labels 0 and 1"),
        (split_of([GOOD], [], [GOOD]), "'p' twice: in 'train' and in 'test'"),
        (split_of([GOOD, GOOD]), "'p' twice: in 'train' and in 'train'"),
    ],
)
def test_a_split_file_that_cannot_be_used(content, message, write):
    with pytest.raises(DataError, match=message) as caught:
        read_split_file(write(content))
    assert "\n" not in str(caught.value)
