"""The feature store: what goes in comes out, by content, and what is damaged is found and named."""

import json
import shlex
import shutil

import numpy as np
import pytest
from safetensors.numpy import save

from gpcache.errors import DataError, StoreError
from gpcache.features.store import FeatureStore, Item
from gpcache.images.augment import Views
from gpcache.images.records import Refused
from gpcache.support.files import sha256

A, B, C = (sha256(name) for name in (b"a", b"b", b"c"))


def rows(*hashes, dim=16):
    """A vector for each hash that depends on it alone."""
    return np.stack(
        [np.random.default_rng(int(key, 16)).normal(size=dim) for key in hashes]
    ).astype(np.float32)


@pytest.fixture
def store(tmp_path, encoder):
    store = FeatureStore.create(tmp_path / "store", encoder)
    store.append([A, B], rows(A, B))
    return store


def test_vectors_come_back_in_the_order_asked_for(store):
    np.testing.assert_array_equal(store.vectors([B, A, B]), rows(B, A, B))
    again = FeatureStore.open(store.folder)
    np.testing.assert_array_equal(again.vectors([A, B]), rows(A, B))
    assert len(again) == 2
    assert again.hashes() == {A, B}


def test_an_image_is_stored_once(store):
    assert store.append([B, C, C], rows(B, C, C)) == 1
    assert len(FeatureStore.open(store.folder)) == 3
    assert store.append([A], rows(A)) == 0
    assert sum(shard.rows for shard in store.manifest.shards) == 3


def test_two_writers_see_each_other(store, encoder):
    other = FeatureStore.create(store.folder, encoder)
    assert store.append([C], rows(C)) == 1
    assert other.append([C], rows(C)) == 0
    np.testing.assert_array_equal(other.vectors([C, A]), rows(C, A))


def test_unknown_images_are_said_to_be(store):
    with pytest.raises(StoreError, match="no features of 1 of the images"):
        store.vectors([A, C])


@pytest.mark.parametrize(
    "features", [np.zeros((1, 15)), np.zeros((2, 16)), np.full((1, 16), np.nan)]
)
def test_features_that_do_not_fit_are_refused(store, features):
    with pytest.raises(StoreError, match="do not belong"):
        store.append([C], features.astype(np.float32))


def test_items_of_a_source_are_replaced_by_its_next_extraction(store):
    store.record("one", [Item("one", "a", A, "cat"), Item("one", "b", B)], [Refused("x", "bad")])
    store.record("two", [Item("two", "a", A, "dog", "test", "burst")], [Refused("y", "worse")])
    store.record("one", [Item("one", "b", B, "cat\u2028\nnew line")], [])
    store = FeatureStore.open(store.folder)
    assert store.items() == [
        Item("one", "b", B, "cat\u2028\nnew line"),
        Item("two", "a", A, "dog", "test", "burst"),
    ]
    assert store.refused() == [{"source": "two", "path": "y", "reason": "worse"}]
    assert store.read(split="test").labels.tolist() == ["dog"]
    np.testing.assert_array_equal(store.read(source="one").features, rows(B))
    assert store.read().paths == ["b", "a"]


def test_labels_of_unlabelled_images_are_an_error(store):
    store.record("one", [Item("one", "a", A, "cat"), Item("one", "b", B)], [])
    with pytest.raises(DataError, match="1 images have no label, the first is 'b'"):
        _ = store.read().labels


def test_class_vectors_are_kept(store):
    assert store.text("digest") is None
    store.cache_text("digest", rows(A, B))
    np.testing.assert_array_equal(FeatureStore.open(store.folder).text("digest"), rows(A, B))


def test_another_encoder_is_refused(store, other_encoder):
    with pytest.raises(StoreError, match=r"made by the encoder 'colour' .*do not mix"):
        FeatureStore.create(store.folder, other_encoder)


def test_other_views_are_refused(store, encoder, tmp_path):
    with pytest.raises(StoreError, match="holds one centre view an image, not 3 views"):
        FeatureStore.create(store.folder, encoder, Views(3))
    FeatureStore.create(tmp_path / "views", encoder, Views(3, seed=4))
    FeatureStore.create(tmp_path / "views", encoder, Views(3, seed=4))
    with pytest.raises(StoreError, match=r"seed 4, not 3 views an image, averaged.*seed 5"):
        FeatureStore.create(tmp_path / "views", encoder, Views(3, seed=5))


def test_views_kept_apart_have_a_dimension_of_their_own(tmp_path, encoder):
    store = FeatureStore.create(tmp_path / "views", encoder, Views(3, average=False))
    features = np.arange(48, dtype=np.float32).reshape(1, 3, 16)
    store.append([A], features)
    np.testing.assert_array_equal(FeatureStore.open(store.folder).vectors([A]), features)


def test_a_folder_with_other_things_is_left_alone(tmp_path, encoder):
    (tmp_path / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(StoreError, match=r"not a feature store and not empty .*'holiday.jpg'"):
        FeatureStore.create(tmp_path, encoder)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_no_store_is_one_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"is not a feature store: it has no store\.json"):
        FeatureStore.open(tmp_path)


@pytest.fixture
def full(store):
    store.record("one", [Item("one", "a", A, "cat")], [Refused("x", "bad")])
    store.cache_text("digest", rows(A))
    return store


def files_of(store):
    return sorted(
        path for path in store.folder.rglob("*") if path.is_file() and path.stat().st_size
    )


def test_every_flipped_bit_is_found_and_named(full):
    generator = np.random.default_rng(0)
    names = set()
    for path in files_of(full):
        names.add(path.name)
        content = path.read_bytes()
        for _ in range(25):
            broken = bytearray(content)
            broken[generator.integers(len(content))] ^= 1 << generator.integers(8)
            path.write_bytes(broken)
            if path.name == "store.json":
                with pytest.raises(StoreError, match=r"store\.json"):
                    FeatureStore.open(full.folder)
            else:
                assert [
                    full.folder / name for name in FeatureStore.open(full.folder).damaged()
                ] == [path]
        path.write_bytes(content)
    assert len(names) == 5
    assert FeatureStore.open(full.folder).damaged() == []


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_reading_what_is_damaged_names_it_and_the_way_out(full, damage):
    (shard,) = (full.folder / "shards").iterdir()
    content = shard.read_bytes()
    if damage == "flip":
        shard.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage == "cut":
        shard.write_bytes(content[:-10])
    else:
        shard.unlink()
    with pytest.raises(StoreError, match=rf"{shard.name}.*gpcache store verify --repair") as caught:
        FeatureStore.open(full.folder).read()
    command = shlex.split(str(caught.value).split("'")[3])
    assert command[-1] == str(full.folder)
    repaired = FeatureStore.open(command[-1])  # which the command opens, too
    repaired.drop(repaired.damaged())
    assert FeatureStore.open(full.folder).damaged() == []


def test_what_cannot_be_read_is_not_called_damaged(full):
    (full.folder / "store.json").rename(full.folder / "store.bak")
    (full.folder / "store.json").mkdir()
    with pytest.raises(StoreError, match=r"store.json' cannot be read \(Is a directory\)"):
        FeatureStore.open(full.folder)


def sealed(store, **changes):
    """Write a manifest with other content under a checksum that is right."""
    path = store.folder / "store.json"
    content = json.loads(path.read_text()) | changes
    content.pop("sha256")
    seal = sha256(json.dumps(content, sort_keys=True).encode())
    path.write_text(json.dumps(content | {"sha256": seal}))


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


VIEWS = {"count": 2, "scale": [0.5, 1.0], "seed": 0, "average": True}
SHARD = {"name": "shards/x.safetensors", "sha256": "0", "rows": 1}
FORGED = {
    "nested": {"views": nested(300)},
    "views without a count": {"views": {"average": False}},
    "views of another kind": {"views": VIEWS | {"count": "2"}},
    "no dimension": {"dim": 0},
    "a negative dimension": {"dim": -3},
    "text for a number": {"dim": "many"},
    "an endless scale": {"logit_scale": 1e999},
    "a file elsewhere": {"shards": [SHARD | {"name": "../../x.safetensors"}]},
    "negative rows": {"shards": [SHARD | {"rows": -1}]},
    "shards that are none": {"shards": {"a": 1}},
    "items that are none": {"items": "x"},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_a_forged_manifest_is_damaged_whatever_its_checksum(full, changes):
    sealed(full, **changes)
    with pytest.raises(StoreError, match=r"store\.json.*damaged") as caught:
        FeatureStore.open(full.folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arrays",
    [
        {"features": rows(A)},
        {"features": rows(A, B), "hashes": np.zeros((1, 32), np.uint8)},
        {"features": rows(A), "hashes": np.zeros((1, 31), np.uint8)},
        {"features": rows(A).astype(np.float64), "hashes": np.zeros((1, 32), np.uint8)},
    ],
    ids=["no hashes", "other rows", "short hashes", "another type"],
)
def test_a_forged_shard_is_damaged_whatever_its_checksum(full, arrays):
    data = save(arrays)
    (full.folder / "shards" / "x.safetensors").write_bytes(data)
    sealed(full, shards=[SHARD | {"sha256": sha256(data)}])
    with pytest.raises(StoreError, match=r"x\.safetensors.*damaged"):
        FeatureStore.open(full.folder).vectors(["00" * 32])


@pytest.mark.parametrize("line", ["{}", "[", '{"source": 1, "path": 2, "hash": 3}', "[" * 9_000])
def test_a_forged_list_of_images_is_damaged_whatever_its_checksum(full, line):
    (full.folder / "items-x.jsonl").write_text(line)
    entry = {"name": "items-x.jsonl", "sha256": sha256(line.encode()), "rows": 1}
    sealed(full, items=entry)
    with pytest.raises(StoreError, match="list of images"):
        FeatureStore.open(full.folder).items()


@pytest.mark.parametrize("verify", [True, False])
def test_a_list_of_images_that_is_not_utf8_is_damaged(full, verify):
    data = b"\xff\xfe"
    (full.folder / "items-x.jsonl").write_bytes(data)
    sealed(full, items={"name": "items-x.jsonl", "sha256": sha256(data), "rows": 1})
    with pytest.raises(StoreError, match=r"items-x\.jsonl' is damaged"):
        FeatureStore.open(full.folder, verify=verify).items()


def test_what_was_damaged_can_be_forgotten_and_made_again(full, encoder):
    for path in files_of(full):
        if path.name != "store.json":
            path.write_bytes(path.read_bytes()[:-1])
    damaged = full.damaged()
    assert len(damaged) == 4
    full.drop(damaged)
    assert full.damaged() == []
    assert len(full) == 0
    store = FeatureStore.create(full.folder, encoder)
    assert store.append([A, B], rows(A, B)) == 2
    np.testing.assert_array_equal(store.vectors([A]), rows(A))
    assert store.items() == []
    assert store.text("digest") is None


def test_a_newer_store_says_to_upgrade(full):
    content = json.loads((full.folder / "store.json").read_text())
    (full.folder / "store.json").write_text(json.dumps(content | {"schema": 99}))
    with pytest.raises(StoreError, match="newer gpcache: upgrade"):
        FeatureStore.open(full.folder)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"schema": 1}', '{"sha256": "x"}', "[" * 100_000],
    ids=lambda content: content[:20],
)
def test_a_manifest_that_is_none_is_damaged(full, content):
    (full.folder / "store.json").write_text(content)
    # `gpcache store verify --repair` needs the manifest, so it is not the advice here.
    with pytest.raises(StoreError, match=r"store\.json.*damaged.*delete the folder"):
        FeatureStore.open(full.folder)


def test_what_a_killed_writer_left_is_removed_and_nothing_else(full):
    left = [
        full.folder / "shards" / "0123.safetensors",
        full.folder / "shards" / ".0123.safetensors.abcd",
        full.folder / "items-0123.jsonl",
        full.folder / ".items-0123.jsonl.abcd",
    ]
    kept = [full.folder / "my notes.txt", full.folder / "shards" / "mine.csv"]
    for path in [*left, *kept]:
        path.write_text("half")
    full.append([C], rows(C))
    assert [path for path in left if path.exists()] == []
    assert all(path.exists() for path in kept)
    assert full.damaged() == []


def test_a_store_can_be_moved(full, tmp_path):
    shutil.move(full.folder, tmp_path / "elsewhere")
    store = FeatureStore.open(tmp_path / "elsewhere")
    np.testing.assert_array_equal(store.read().features, rows(A))
