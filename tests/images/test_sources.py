"""What else is given as a source of images: other files, iterables and datasets."""

import io
import os
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from gpcache.images import decode
from gpcache.images.sources import any_source, from_datasets, from_iterable, open_source

CAFE, CAFE_DECOMPOSED = "café", "cafe\u0301"


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


def test_iterables_name_classes_as_folders_do(photo, tools):
    source = from_iterable([(photo, "A"), (photo, CAFE), (photo, CAFE_DECOMPOSED)])
    assert [record.label for record in source.records] == ["A", CAFE, CAFE]
    assert source.total == 3
    assert any("merged" in notice for notice in source.notices)
    cases = from_iterable([(photo, "A"), (photo, "a")])
    tools.one_sentence(lambda: list(cases.records), "upper and lower")
    tools.one_sentence(lambda: from_iterable("a.png"), "list")


SPELLINGS = ["black cat", " black  cat", "black\tcat ", "black\u00a0cat"]
PERSIAN, ENGLAND = "می\u200cخواهم", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


def sources_of(names, photo, folder):
    """The same images with these class names, from every kind of source."""
    for number, name in enumerate(names):
        for place in (folder / "folders" / name, folder / "list"):
            place.mkdir(parents=True, exist_ok=True)
            photo.save(place / f"{number}.png")
    rows = [f'{number}.png,"{name}"' for number, name in enumerate(names)]
    (folder / "list" / "list.csv").write_text("path,label\n" + "\n".join(rows), encoding="utf-8")
    with tarfile.open(folder / "shard.tar", "w") as shard:
        for number, name in enumerate(names):
            picture = (folder / "list" / f"{number}.png").read_bytes()
            for suffix, data in (("png", picture), ("cls", name.encode())):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    return {
        "folders": open_source(folder / "folders"),
        "list": open_source(folder / "list" / "list.csv"),
        "shard": open_source(folder / "shard.tar"),
        "pairs": from_iterable([(photo, name) for name in names]),
        "arrays": any_source([photo] * len(names), labels=np.array(names)),
    }


def test_names_that_differ_in_white_space_are_one_class_everywhere(photo, tmp_path):
    for kind, source in sources_of(SPELLINGS, photo, tmp_path).items():
        assert [record.label for record in source.records] == ["black cat"] * 4, kind


def test_persian_names_and_emoji_are_kept_everywhere(photo, tmp_path):
    names = [PERSIAN, "👩‍🔬", "🐈‍⬛", ENGLAND]
    for kind, source in sources_of(names, photo, tmp_path).items():
        assert {record.label for record in source.records} == set(names), kind


def test_nan_is_no_class_anywhere(photo, tmp_path, tools):
    nan = float("nan")
    table = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    photo.save(tmp_path / "a.png")
    parquet.write_table(table.table({"path": ["a.png"], "label": [nan]}), tmp_path / "a.parquet")
    for wrong in (
        lambda: list(from_iterable([(photo, nan)]).records),
        lambda: any_source([photo, photo], labels=["cat", nan]),
        lambda: any_source([photo, photo], labels=np.array(["cat", nan], dtype=object)),
        lambda: any_source([photo, photo], labels=np.array([1.0, nan])),
        lambda: open_source(tmp_path / "a.parquet"),
        lambda: list(from_datasets([{"image": photo, "label": nan}]).records),
    ):
        tools.one_sentence(wrong, "NaN")
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        shard.add(tmp_path / "a.png", "a.png")
        member = tarfile.TarInfo("a.json")
        member.size = 14
        shard.addfile(member, io.BytesIO(b'{"label": NaN}'))
    source = open_source(tmp_path / "a.tar")
    assert list(source.records) == []
    assert "NaN" in source.refused[0].reason


def test_paths_that_are_no_utf8_have_names_that_can_be_written(photo, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    photo.save(path)
    for source in (any_source(path), any_source([path]), from_iterable([str(path)])):
        (record,) = source.records
        assert record.name.encode().endswith(rb"/caf\xe9.png")
        assert decode(record.content).notes == ()
    shard = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tar"))
    with tarfile.open(shard, "w") as opened:
        opened.add(path, "a.png")
    (record,) = open_source(shard).records
    assert record.name.encode() == rb"caf\xe9.tar/a"


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
