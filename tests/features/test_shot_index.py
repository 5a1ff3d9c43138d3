"""The index of shots on disk: the rows that count for a class, and one sentence for damage."""

import numpy as np
import pytest

from gpcache import ModelFileError
from gpcache.features import shot_index
from gpcache.features.shot_index import Residuals, Seal, ShotIndex, index_bytes, write_index

CLASSES = 7


def drawn(n):
    """Rows of length one, their classes, and what a fit has left of them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 16)).astype(np.float32)
    labels = rng.integers(CLASSES - 1, size=n)  # the last class has no row
    own, wrong = rng.random((2, n), dtype=np.float32)
    wrong_class = (labels + rng.integers(1, CLASSES - 1, size=n)) % (CLASSES - 1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, labels, Residuals(own, wrong_class, wrong)


def written(folder, rows, labels, residuals, names=None):
    path = folder / "shots.safetensors"
    names = [f"{row}.jpg" for row in range(len(rows))] if names is None else names
    return ShotIndex(path, write_index(path, rows, labels, names, residuals, CLASSES))


def test_a_class_lists_its_rows_and_those_it_is_confused_with(tmp_path, monkeypatch):
    monkeypatch.setattr(shot_index, "BATCH", 64)
    rows, labels, residuals = drawn(300)
    names = [f"{'é' * (row % 3)}/{row}\udcff.jpg" for row in range(300)]
    index = written(tmp_path, 5 * rows, labels, residuals, names)
    assert (index.shape, index.n_classes) == ((300, 16), CLASSES)
    for label in range(CLASSES):
        numbers, found = index.counting(label)
        assert (np.diff(np.abs(found)) <= 0).all()
        given = [names.index(index.name(number)) for number in numbers.tolist()]
        expected = np.where(labels == label, residuals.own, 0)
        expected = expected - np.where(residuals.wrong_class == label, residuals.wrong, 0)
        assert sorted(given) == np.flatnonzero(expected).tolist()
        np.testing.assert_array_equal(found, expected[given])
        assert [index.label(number) for number in numbers.tolist()] == labels[given].tolist()
        if given:
            np.testing.assert_allclose(index.rows(numbers), rows[given], atol=1e-3)


def test_one_row_and_one_class(tmp_path):
    none = Residuals(np.ones(1, np.float32), np.zeros(1, int), np.zeros(1, np.float32))
    index = written(tmp_path, np.ones((1, 4)), np.zeros(1, int), none)
    assert [part.tolist() for part in index.counting(0)] == [[0], [1.0]]
    assert index.counting(3)[0].shape == (0,)


def test_its_size_is_known_beforehand(tmp_path):
    sizes = [
        written(tmp_path, *drawn(n), names=["name"] * n).n_bytes - index_bytes(n, 16, 4 * n)
        for n in (100, 5000)
    ]
    lists = 2 * 8 * (CLASSES + 1)
    assert all(0 < size - lists < 1000 for size in sizes)  # what is left is the header
    assert abs(sizes[0] - sizes[1]) < 100


@pytest.mark.parametrize("where", ["head", "rows", "names"])
def test_damage_is_one_sentence(tmp_path, where):
    index = written(tmp_path, *drawn(100))
    content = bytearray(index.path.read_bytes())
    place = {"head": index.seal.n_bytes - 1, "rows": index.seal.n_bytes + 7, "names": -1}[where]
    content[place] ^= 1
    index.path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"shots.safetensors' is damaged.*fit the model again"):
        ShotIndex(index.path, index.seal).rows(np.arange(100))


def test_a_file_that_is_short_missing_or_another_is_one_sentence(tmp_path):
    index = written(tmp_path, *drawn(100))
    content = index.path.read_bytes()
    for short in (content[:-1], content[:9], b""):
        index.path.write_bytes(short)
        with pytest.raises(ModelFileError, match="is damaged"):
            ShotIndex(index.path, index.seal).counting(0)
    index.path.write_bytes(content)
    with pytest.raises(ModelFileError, match="is damaged"):
        ShotIndex(index.path, Seal("0" * 64, index.seal.n_bytes)).counting(0)
    index.path.unlink()
    with pytest.raises(ModelFileError, match=r"is missing.*--why-from"):
        ShotIndex(index.path, index.seal).counting(0)
    with pytest.raises(ModelFileError, match="is missing"):
        index.write(tmp_path / "other")
