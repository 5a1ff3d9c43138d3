"""What else is given as a source of images: other files, iterables and datasets."""

from itertools import islice

import numpy as np
import pytest

from gpcache.images import decode
from gpcache.images.sources import any_source, from_datasets, from_iterable, open_source

CAFE_DECOMPOSED = "cafe\u0301"


@pytest.mark.parametrize("name", ["a.zip", "a.7z", "a.rar", "a.gz", "a.tar.zst"])
def test_other_archives_are_to_be_unpacked(name, tree, tools):
    root = tree(name)
    tools.one_sentence(lambda: open_source(root / name), "unpack it", name)


def test_other_files(tree, tools):
    root = tree("a.png")
    tools.one_sentence(lambda: open_source(root / "a.png"), "neither a folder", "a.png")


# Iterables and datasets.


def test_iterables_are_read_one_at_a_time(photo, tree):
    path = tree("a.png") / "a.png"

    def endless():
        yield photo, "cat"
        yield np.asarray(photo)
        yield path, 7
        yield str(path)
        yield path.read_bytes(), None
        raise AssertionError("read too far")

    source = from_iterable(endless(), "mine")
    taken = list(islice(source.records, 5))
    assert [record.label for record in taken] == ["cat", None, "7", None, None]
    assert [record.name for record in taken] == [
        "item 0000000",
        "item 0000001",
        path.as_posix(),
        path.as_posix(),
        "item 0000004",
    ]
    assert (source.name, source.total) == ("mine", None)
    assert all(np.array_equal(decode(record.content).image, photo) for record in taken)


def test_iterables_keep_labels_as_they_are(photo, tools):
    source = from_iterable([(photo, "A"), (photo, "a"), (photo, CAFE_DECOMPOSED)])
    assert [record.label for record in source.records] == ["A", "a", CAFE_DECOMPOSED]
    assert source.total == 3
    tools.one_sentence(lambda: from_iterable("a.png"), "list")


def test_labels_go_with_images_one_to_one(photo, tools):
    source = any_source([photo, np.asarray(photo)], labels=np.array([7, 8]))
    assert [record.label for record in source.records] == ["7", "8"]
    assert source.total == 2
    tools.one_sentence(lambda: any_source([photo], labels=[1, 2]), "1 images", "2 labels")
    tools.one_sentence(lambda: any_source("a.png", labels=["cat"]), "leave labels out")
    tools.one_sentence(lambda: any_source(photo), "put it in a list")


class Labels:
    """What a ClassLabel column of the datasets library offers."""

    names = ("dog", "cat")

    def int2str(self, number):
        return self.names[number]


class Dataset(list):
    """What a Dataset of the datasets library offers: rows, a length and its columns."""

    def __init__(self, rows, **features):
        super().__init__(rows)
        self.features = features


def test_datasets(photo, tree):
    path = tree("a.png") / "a.png"
    rows = [
        {"image": photo, "label": 1},
        {"image": {"bytes": path.read_bytes(), "path": None}, "label": 0},
        {"image": {"bytes": None, "path": str(path)}, "label": -1},
        {"image": np.asarray(photo), "label": None},
    ]
    source = from_datasets(Dataset(rows, image=object(), label=Labels()))
    records = list(source.records)
    assert [record.label for record in records] == ["cat", "dog", None, None]
    assert (source.total, source.classes) == (4, ["cat", "dog"])
    assert all(np.array_equal(decode(record.content).image, photo) for record in records)


def test_datasets_by_split_and_column(photo, tools):
    rows = Dataset([{"photo": photo, "kind": "oak"}], photo=object(), kind=object())
    both = {"train": rows, "test": rows}
    source = from_datasets(both, image="photo", label="kind", split="test")
    assert [(r.label, r.split) for r in source.records] == [("oak", "test")]
    assert [r.label for r in from_datasets(rows, image="photo").records] == [None]
    tools.one_sentence(lambda: from_datasets(both), "'train', 'test'")
    tools.one_sentence(lambda: from_datasets(rows), "'image'", "'photo', 'kind'")
    stream = from_datasets(iter([{"x": 1}]))
    assert stream.total is None
    tools.one_sentence(lambda: list(stream.records), "Row 0", "'image'")
    hollow = Dataset([{"image": {"bytes": None, "path": None}}])
    tools.one_sentence(lambda: list(from_datasets(hollow).records), "Row 0")
