"""Tar shards as streams: labels, keys, and a hostile corpus that must leave no trace."""

import os
import tarfile

import pytest

from gpcache import DataError
from gpcache.images import decode
from gpcache.images.shards import from_webdataset
from gpcache.images.sources import open_source

# Case → what is refused (a part of the reason); the image "good" is read all the same.
REFUSED = {
    "parent": {"parent.tar/../evil": "is an absolute path or contains .."},
    "deep_parent": {"deep_parent.tar/a/../../evil": "is an absolute path or contains .."},
    "absolute": {"absolute.tar//tmp/evil": "is an absolute path or contains .."},
    "no_image": {"no_image.tar/evil": "no image"},
    "duplicate_member": {"duplicate_member.tar/evil": "two images"},
    "two_images": {"two_images.tar/evil": "two images"},
    "too_large": {"too_large.tar/evil": "larger than 20 MB"},
    "large_label": {"large_label.tar/evil": "larger than 1 MB"},
    "bad_label": {"bad_label.tar/evil": ".cls"},
    "bad_json": {"bad_json.tar/evil": ".json"},
    "sparse": {"sparse.tar/evil": "sparse"},
    "cut_in_member": {"cut_in_member.tar": "unexpected end"},
    "cut_in_header": {"cut_in_header.tar": "truncated header"},
    "no_end_mark": {"no_end_mark.tar": "end is missing"},
    "garbage_header": {"garbage_header.tar": "invalid header"},
    "lying_size": {"lying_size.tar": "100 times"},
    "negative_size": {"negative_size.tar": "impossible size"},
    "name_bomb": {"name_bomb.tar": "impossible size"},
    "gzip_bomb": {"gzip_bomb.tar": "100 times"},
}
# Nothing at all can be read of these.
LOST = {"not_a_tar", "empty"}
# Links and devices: passed over with a notice.
IGNORED = {
    "symlink",
    "hardlink",
    "link_to_parent",
    "character_device",
    "block_device",
    "fifo",
    "through_link",
}
# More images than "good", and nothing to complain about.
MORE = {"through_link": {"evil/x"}, "no_utf8_name": {r"evil\xff"}}


@pytest.fixture(scope="session")
def shards(hostile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return folder, hostile.module.write_shards(folder)


def snapshot(*folders):
    """Every file below these folders, with its size and time."""
    return {
        (path, os.lstat(path).st_size, os.lstat(path).st_mtime_ns)
        for folder in folders
        for root, _, files in os.walk(folder)
        for path in (os.path.join(root, file) for file in files)
    }


def test_the_corpus_is_read_as_it_should_be_and_nothing_is_written(shards, tmp_path, monkeypatch):
    folder, cases = shards
    assert len(cases) >= 20
    monkeypatch.chdir(tmp_path)

    def forbidden(*arguments, **_):
        raise AssertionError(arguments)

    for name in ("extract", "extractall", "_extract_member", "makefile", "makelink"):
        monkeypatch.setattr(tarfile.TarFile, name, forbidden)
    before = snapshot(folder, tmp_path)
    for case in cases:
        source = open_source(folder / f"{case}.tar")
        records = {record.name.removeprefix(f"{case}.tar/"): record for record in source.records}
        refused = {entry.name: entry.reason for entry in source.refused}
        if case in LOST:
            assert (records, list(refused)) == ({}, [f"{case}.tar"]), case
            continue
        if case == "duplicate_key":
            assert refused == {"duplicate_key.tar/evil": "its key occurs twice in the shard"}
            assert set(records) == {"good", "evil"}
            continue
        if case == "cut_gzip":
            assert "broken" in refused["cut_gzip.tar"]
            assert "first" in records
            continue
        if f"{case}.tar" in REFUSED.get(case, {}):
            # The last group of a shard that breaks off may lack a member, so it is not given.
            assert {"first"} <= set(records) <= {"first", "good"}, case
        else:
            assert set(records) == {"good"} | MORE.get(case, set()), case
        assert set(refused) == set(REFUSED.get(case, {})), (case, refused)
        for name, part in REFUSED.get(case, {}).items():
            assert part in refused[name], (case, refused)
        assert any("Links and devices" in notice for notice in source.notices) == (case in IGNORED)
        if "good" in records:
            assert records["good"].label == "cat"
            assert decode(records["good"].content).image.size == (90, 60)
    assert snapshot(folder, tmp_path) == before


def test_a_bomb_of_names_needs_no_memory(shards, measured):
    """Its header promises a name of two gigabytes; a gzip file of zeros could deliver it."""
    script = """
import json, resource, sys
from gpcache.images.shards import from_webdataset
source = from_webdataset(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = len(list(source.records))
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    for case in ("name_bomb", "gzip_bomb", "too_large"):
        assert measured(script, shards[0] / f"{case}.tar") < 20_000


@pytest.fixture
def write(hostile, tmp_path):
    """Write a shard of {member: content}; None stands for a sound image."""
    image = hostile.module.encoded(hostile.module.photo(), "PNG")

    def written(members, name="a.tar", mode="w"):
        with tarfile.open(tmp_path / name, mode) as archive:
            for member, content in members.items():
                (tmp_path / "content").write_bytes(image if content is None else content)
                archive.add(tmp_path / "content", member)
        (tmp_path / "content").unlink()
        return tmp_path / name

    return written


def read(*paths):
    source = from_webdataset(paths)
    return source, {record.name: record.label for record in source.records}


def test_keys_and_labels(write):
    path = write(
        {
            "./one.png": None,
            "./one.cls": b" 3\n",
            "./one.txt": b"a caption",
            "dir/two.jpg": None,
            "dir/two.txt": "café".encode(),
            "dir.x/three.PNG": None,
            "dir.x/three.json": b'{"label": "dog", "other": [1]}',
            "four.seg.png": None,
            "four.png": None,
            "four.json": b'{"label": 12}',
            "five.png": None,
            "six.png": None,
            "six.json": b'["label"]',
        }
    )
    source, labels = read(path)
    assert labels == {
        "a.tar/one": "3",
        "a.tar/dir/two": "café",
        "a.tar/dir.x/three": "dog",
        "a.tar/four": "12",
        "a.tar/five": None,
        "a.tar/six": None,
    }
    assert source.refused == []
    assert source.total is None
    assert source.classes == ["12", "3", "café", "dog"]
    assert "Labels were read from .cls, .json, .txt members." in source.notices


def test_several_shards_a_folder_of_them_and_compression(write, tmp_path):
    first = write({"x.png": None, "x.cls": b"cat"}, "b.tar")
    second = write({"x.png": None, "x.cls": b"dog"}, "a.tgz", "w:gz")
    _, labels = read(first, second)
    assert labels == {"b.tar/x": "cat", "a.tgz/x": "dog"}
    folder = open_source(tmp_path)
    assert [record.name for record in folder.records] == ["a.tgz/x", "b.tar/x"]
    (tmp_path / "photo.png").write_bytes(b"")
    assert [record.name for record in open_source(tmp_path).records] == ["photo.png"]


def test_labels_that_differ_in_case_are_an_error(write):
    path = write({"x.png": None, "x.cls": b"cat", "y.png": None, "y.cls": b"Cat"})
    with pytest.raises(DataError, match="'cat' and 'Cat'"):
        read(path)


def test_no_shard(tmp_path):
    with pytest.raises(DataError, match="at least one"):
        from_webdataset([])
    with pytest.raises(DataError, match="no shard"):
        from_webdataset(tmp_path / "absent.tar")


def test_a_stream_is_lazy(write):
    """The first record comes before a later shard is opened."""
    good = write({"x.png": None}, "a.tar")
    later = write({"y.png": None}, "b.tar")
    source = from_webdataset([good, later])
    first = next(iter(source.records))
    later.unlink()
    assert first.name == "a.tar/x"
    assert list(source.records) == []
    assert "broken" in source.refused[0].reason
