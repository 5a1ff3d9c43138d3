"""Features made elsewhere: .npz files as they are, damaged ones, and feature stores."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from gpcache import GPCacheClassifier, Prompts, TextPrior
from gpcache.benchmark.datasets.stored_features import open_features
from gpcache.errors import DataError
from gpcache.features.splits import draw_shots
from gpcache.features.store import FeatureStore, Item
from gpcache.methods import ZeroShotClassifier

NAMES = np.array(["oak", "ash", "elm"])


def rows(count, seed=0, width=8):
    """Unit rows in half precision, `count` of each class."""
    x = np.random.default_rng(seed).normal(size=(3 * count, width))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float16), np.repeat(np.arange(3), count)


def arrays(**changes):
    """A whole file; a change of None leaves an array out."""
    found = {"classnames": NAMES, "text": rows(1)[0]}
    for part, count in (("train1", 1), ("train4", 4), ("val", 5), ("test", 6)):
        found[f"{part}_x"], found[f"{part}_y"] = rows(count, seed=count)
    found["test_path"] = np.array([f"{row}.jpg" for row in range(18)])
    return {key: value for key, value in (found | changes).items() if value is not None}


@pytest.fixture
def write(tmp_path):
    def written(**changes):
        file = tmp_path / "trees.npz"
        np.savez(file, **arrays(**changes))
        return file

    return written


def test_a_file_of_features(write):
    file = write()
    found = open_features(file)
    assert (found.name, found.class_names) == ("trees", NAMES.tolist())
    assert found.prior.class_names == tuple(NAMES)
    assert list(found.given) == [1, 4]
    given = arrays()
    for part, X, y in (
        ("train4", *found.given[4][:2]),
        ("val", *found.validation[:2]),
        ("test", *found.test[:2]),
    ):
        np.testing.assert_allclose(X, given[f"{part}_x"], atol=1e-3)
        assert (y == NAMES[given[f"{part}_y"]]).all()
        np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, atol=1e-6)
    assert found.test.names[:2].tolist() == ["0.jpg", "1.jpg"]
    assert (found.pool, found.notes) == (None, ())
    assert found.fingerprint == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_hash_is_of_rows_and_names(write):
    first = open_features(write()).split_hash
    assert open_features(write(text=None)).split_hash == first
    assert open_features(write(classnames=NAMES[::-1])).split_hash != first
    assert open_features(write(test_y=arrays()["test_y"][::-1])).split_hash != first


def test_without_text_there_is_no_prior(write):
    text = rows(1)[0][:2]
    assert open_features(write(text=None)).prior is None
    # The methods compare all classes: text of some is of no use to them.
    some = write(text=None, sub_text=text, sub_labels=np.array([2, 0]))
    assert open_features(some).prior is None


def test_training_rows_are_to_draw_from(write):
    x, y = rows(7)
    found = open_features(write(train_x=x, train_y=y))
    assert (found.pool.labels == NAMES[y]).all()
    assert found.validation is not None
    assert len(set(found.pool.names)) == 21
    assert draw_shots(found.pool.labels, found.pool.names, 5).short == {}


def test_without_test_rows_validation_is_the_test(write):
    found = open_features(write(test_x=None, test_y=None))
    assert (found.validation, found.pool) == (None, None)
    assert (found.test.labels == NAMES[arrays()["val_y"]]).all()
    assert "its validation rows are the test rows" in found.notes[0]


def test_rows_to_draw_from_are_not_chosen_on(write):
    """With at most one ready-made shot, shots come from the validation rows: all of them."""
    found = open_features(write(train4_x=None, train4_y=None))
    assert (found.given, found.validation) == ({}, None)
    assert (found.pool.labels == NAMES[arrays()["val_y"]]).all()
    assert "drawn from its validation" in found.notes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classnames": None}, "lacks the array 'classnames'"),
        ({"classnames": np.array(["oak", "ash", "oak"])}, "class name more than once"),
        ({"test_y": None}, "lacks the array 'test_y'"),
        ({"test_y": rows(5)[1]}, "'test_x' and 'test_y' .* as many rows.*: got 18 and 15"),
        ({"test_y": np.full(18, 3)}, "'test_y' .* must lie between 0 and 2"),
        ({"test_y": np.full(18, -1)}, "'test_y' .* must lie between 0 and 2"),
        ({"test_y": np.full(18, 0.5)}, "'test_y' .* must hold class numbers, got float64"),
        ({"test_path": np.array(["a.jpg"])}, "'test_path' .* must name 18 rows"),
        ({"val_x": np.full((15, 8), np.nan)}, "'val_x' .* must hold finite floating-point numbers"),
        ({"val_x": np.zeros((15, 8))}, "Row 0 of 'val_x' .* is all zeros"),
        ({"val_x": rows(5)[0][0]}, r"'val_x' .* must have 2 axes, got the shape \(8,\)"),
        ({"val_x": rows(5, width=9)[0]}, "different widths.*val 9"),
        ({"text": rows(1, width=7)[0]}, "different widths.*text 7"),
        ({"text": rows(2)[0]}, "'text' .* must have 3 rows, got 6"),
        (
            {"test_x": None, "test_y": None, "val_x": None, "val_y": None},
            "no rows to test on: it needs 'test_x' and 'test_y'",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(changes, message, write):
    with pytest.raises(DataError, match=message) as caught:
        open_features(write(**changes))
    assert "trees.npz" in str(caught.value)


def test_a_damaged_file_is_named(write, tmp_path):
    file = write()
    whole = file.read_bytes()
    for damaged in (b"", b"no zip", whole[: len(whole) // 2], whole.replace(b"NUMPY", b"numpy")):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"trees.npz cannot be read"):
            open_features(file)
    np.savez(file, **arrays(), extra=np.array([{"pickled": 1}], dtype=object))
    with pytest.raises(
        DataError, match=r"trees.npz cannot be read: it is not an .npz file of plain"
    ):
        open_features(file)
    with file.open("wb") as stream:
        np.save(stream, rows(1)[0])
    with pytest.raises(
        DataError, match=r"trees.npz cannot be read: it is not an .npz file of plain"
    ):
        open_features(file)
    with pytest.raises(DataError, match="There is no file"):
        open_features(tmp_path / "none.npz")
    with pytest.raises(DataError, match=r"neither an .npz file of features nor a feature store"):
        open_features(tmp_path)


@pytest.fixture
def store(tmp_path):
    """A store with three rows of each class and split, of what stands in for an encoder."""
    encoder = SimpleNamespace(name="tiny", fingerprint="f" * 64, logit_scale=100.0, dim=8)
    found = FeatureStore.create(tmp_path / "trees.store", encoder)
    for seed, split in enumerate(("train", "val", "test")):
        x, y = rows(3, seed)
        hashes = [hashlib.sha256(f"{split}{row}".encode()).hexdigest() for row in range(9)]
        found.append(hashes, x.astype(np.float32))
        items = [
            Item(split, f"{row:02d}.jpg", hashes[row], label=NAMES[y[row]], split=split)
            for row in range(9)
        ]
        found.record(split, items, [])
    return found


def test_a_store_of_features(store):
    found = open_features(store.folder)
    assert (found.name, found.class_names) == ("trees", ["ash", "elm", "oak"])
    everything = np.arange(9)
    pool = found.pool.labelled(everything, found.pool.keys(everything))
    for seed, part in enumerate((pool, found.validation, found.test)):
        x, y = rows(3, seed)
        np.testing.assert_array_equal(part.features, x.astype(np.float32))
        assert part.labels.tolist() == NAMES[y].tolist()
    assert found.pool.names[0] == "00.jpg"
    assert (found.given, found.prior, found.fingerprint) == ({}, None, "f" * 64)


def test_a_store_has_the_text_of_the_default_prompts(store):
    text = rows(1)[0].astype(np.float32)
    store.cache_text(Prompts.from_templates(["ash", "elm", "oak"], "{} leaf").digest, text)
    assert open_features(store.folder).prior is None
    store.cache_text(Prompts.from_templates(["ash", "elm", "oak"]).digest, text)
    found = open_features(store.folder)
    assert found.prior.class_names == ("ash", "elm", "oak")
    expected = TextPrior(found.class_names, text).vectors
    np.testing.assert_array_equal(found.prior.vectors, expected)


def test_a_store_without_test_images(store):
    store.record("test", [], [])
    with pytest.raises(DataError, match="needs images of the splits train and test"):
        open_features(store.folder)


def test_real_features_give_the_published_zero_shot(shared):
    """44.8 % on the test images of DTD, and shots of the ready-made draws fit."""
    dtd = open_features(shared / "features/dtd_vitb32.npz")
    X, y = dtd.pool.keys(np.arange(len(dtd.pool.names))), dtd.pool.labels
    zero_shot = ZeroShotClassifier(text_prior=dtd.prior).fit(X, y)
    accuracy = zero_shot.score(dtd.test.features, dtd.test.labels)
    assert accuracy == pytest.approx(0.448, abs=0.001)
    caltech = open_features(shared / "features/caltech101_vitb32.npz")
    # Its text is of 39 classes only.
    assert (caltech.prior, list(caltech.given)) == (None, [1, 2, 4, 8, 16])
    X, y, _ = caltech.given[1]
    assert GPCacheClassifier().fit(X, y).score(caltech.test.features, caltech.test.labels) > 0.6
