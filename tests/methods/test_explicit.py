"""GPCache in explicit features: near the exact model, from any source of rows, and as a model."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache import (
    DataError,
    FeatureStore,
    GPCacheClassifier,
    NumericalError,
    ProtocolError,
    TextPrior,
)
from gpcache.features.shot_index import ShotIndex, write_index
from gpcache.features.store import Item
from gpcache.features.stored_rows import StoredRows
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.methods import Explicit, Regression, restore, state_of
from gpcache.methods.cache import (
    explicit,
    explicit_choice,
    explicit_reasons,
    explicit_rows,
    passes,
    row_stream,
    setup,
)

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
Rows = tuple[NDArray[np.float32], NDArray[np.str_]]
DATA = os.environ.get("GPCACHE_DEV_DATA", Path(__file__).parents[3] / "shared")
CALTECH = Path(DATA) / "features" / "caltech101_vitb32.npz"


def rows_of(n: int, seed: int, n_classes: int = 6, width: int = 16) -> Rows:
    """Rows around two modes of each class."""
    modes = np.random.default_rng(0).normal(size=(n_classes, 2, width))
    rng = np.random.default_rng(seed)
    labels, mode = np.arange(n) % n_classes, rng.integers(2, size=n)
    found = modes[labels, mode] + 1.3 * rng.normal(size=(n, width))
    names = np.array([f"class {number}" for number in labels])
    return found.astype(np.float32), names


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and samples so small that 600 rows count as many."""
    monkeypatch.setattr(explicit_choice, "PART_ROWS", 200)
    monkeypatch.setattr(explicit_choice, "PART_PER_CLASS", 40)
    monkeypatch.setattr(setup, "EXACT_ROWS", 500)


def test_few_rows_are_answered_as_by_the_exact_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explicit_choice, "PART_ROWS", 4_000)
    X, y = rows_of(240, 1)
    queries, _ = rows_of(200, 2)
    exact = GPCacheClassifier(dtype="float64").fit(X, y)
    model = GPCacheClassifier(approximation=Explicit(300), dtype="float64").fit(X, y)
    assert np.abs(model.predict_proba(queries) - exact.predict_proba(queries)).max() < 1e-3
    assert np.abs(model.novelty(queries) - exact.novelty(queries)).max() < 1e-3
    assert model.loo_.accuracy == pytest.approx(exact.loo_.accuracy, abs=0.02)
    assert model.loo_.protocol.endswith("by exact models")


def test_shares_of_all_shots_sum_to_the_cache_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explicit_reasons, "CANDIDATES", 600)
    X, y = rows_of(600, 1)
    queries, _ = rows_of(7, 2)
    text = TextPrior([f"class {number}" for number in range(6)], X[:6], 10.0)
    model = GPCacheClassifier(text_prior=text, approximation=Explicit(200), dtype="float64").fit(
        X, y
    )
    why = model.explain(queries, top=None, shots=(X, y))
    assert why.shares.shape == (7, 600)
    np.testing.assert_allclose(why.shares.sum(1), why.cache_logit, atol=1e-3)
    parts = why.cache_logit + why.text_logit + why.discriminant_logit
    np.testing.assert_allclose(parts, model.decision_function(queries).max(1), atol=1e-6)

    monkeypatch.setattr(explicit_reasons, "CANDIDATES", 60)
    nearest = model.explain(queries, top=3, shots=(X, y))
    assert (nearest.shares == why.shares[:, :3]).mean() > 0.5
    monkeypatch.setattr(explicit, "BATCH_ELEMENTS", {"cpu": 2**11, "cuda": 2**11})
    in_batches = model.explain(queries, top=3, shots=(X, y))
    np.testing.assert_array_equal(in_batches.shots, nearest.shots)
    np.testing.assert_allclose(in_batches.shares, nearest.shares, rtol=1e-9)
    one = model.explain(queries[2:3], top=3, labels=y[:1], shots=(X, y))
    assert one.labels.tolist() == ["class 0"]


def test_all_shots_of_the_class_may_explain_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows_of(1_200, 1, n_classes=60)
    queries, _ = rows_of(60, 2, n_classes=60)
    model = GPCacheClassifier(approximation=Explicit(200), dtype="float64").fit(X, y)
    monkeypatch.setattr(explicit_reasons, "CANDIDATES", 1_200)
    true = model.explain(queries, top=5, shots=(X, y)).shots
    monkeypatch.setattr(explicit_reasons, "CANDIDATES", 50)
    found = model.explain(queries, top=5, shots=(X, y)).shots
    assert same_shots(found, true) > 0.95  # of the nearest shots of all classes: 0.81
    for count in (1, 2, 3, 4):
        monkeypatch.setattr(explicit_reasons, "CANDIDATES", count)
        assert model.explain(queries, top=5, shots=(X, y)).shots.shape == (60, count)


def same_shots(found: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """The share of the true shots (m, k) that were found (m, k)."""
    return float((true[:, :, None] == found[:, None, :]).any(2).mean())


def index_of(folder: Path, model: GPCacheClassifier, X: Any, y: Any) -> ShotIndex:
    """The index of the shots of a fit, named by their row numbers."""
    rows, fitted = model.shots_elsewhere(X, y), model.fitted_
    residuals = explicit_reasons.residuals_of(fitted.model, fitted.streamed, rows)
    names = [str(number) for number in range(len(X))]
    path, labels = folder / "shots.safetensors", rows.labels.numpy()
    return ShotIndex(path, write_index(path, X, labels, names, residuals, rows.n_classes))


def test_an_index_finds_the_shots_that_count_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explicit_reasons, "READ", 16)
    monkeypatch.setattr(explicit_reasons, "CANDIDATES", 600)
    X, y = rows_of(600, 1)
    queries, labels = rows_of(40, 2)  # all of classes that have shots
    text = TextPrior([f"class {number}" for number in range(7)], X[:7], 10.0)
    model = GPCacheClassifier(text_prior=text, approximation=Explicit(200)).fit(X, y)
    index = index_of(tmp_path, model, X, y)
    true = model.explain(queries, top=5, labels=labels, shots=(X, y))
    found = model.explain(queries, top=5, labels=labels, shots=index)
    names = np.array([[int(index.name(row)) for row in rows] for rows in found.shots.tolist()])
    assert same_shots(names, true.shots) > 0.98
    np.testing.assert_allclose(found.shares, true.shares, rtol=5e-3)
    np.testing.assert_array_equal(found.cache_logit, true.cache_logit)
    alone = model.explain(queries[3:4], top=5, labels=labels[3:4], shots=index)
    np.testing.assert_array_equal(alone.shots[0], found.shots[3])
    # A class that is known by its text alone is explained by the shots that resemble it, if any.
    bare = model.explain(queries[:2], top=5, labels=["class 6", "class 0"], shots=index)
    known = bare.shots[0][bare.shots[0] >= 0].tolist()
    assert all(index.label(row) != 6 for row in known)
    assert (bare.shares[0][len(known) :] == 0).all()
    with pytest.raises(DataError, match="belongs to another model"):
        GPCacheClassifier(approximation=Explicit(20)).fit(X, y).explain(queries, shots=index)


@pytest.mark.skipif(not CALTECH.exists(), reason=f"{CALTECH} is absent: set GPCACHE_DEV_DATA")
def test_an_index_finds_the_shots_that_count_most_among_real_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = np.load(CALTECH)
    X, y = stored["train16_x"].astype(np.float32), stored["train16_y"]
    queries = stored["val_x"][::16].astype(np.float32)
    model = GPCacheClassifier(approximation=Explicit(256)).fit(X, y)
    index = index_of(tmp_path, model, X, y)
    monkeypatch.setattr(explicit_reasons, "CANDIDATES", len(X))
    true = model.explain(queries, top=5, shots=(X, y))
    found = model.explain(queries, top=5, shots=index)
    names = np.array([[int(index.name(row)) for row in rows] for rows in found.shots.tolist()])
    assert same_shots(names, true.shots) > 0.98
    np.testing.assert_allclose(found.shares, true.shares, rtol=5e-3)


def test_shots_that_cannot_explain_are_a_sentence() -> None:
    X, y = rows_of(600, 1)
    kept, model = GPCacheClassifier().fit(X[:60], y[:60]), GPCacheClassifier().fit(X, y)
    with pytest.raises(ProtocolError, match="keeps its shots"):
        kept.explain(X[:1], shots=(X, y))
    with pytest.raises(ProtocolError, match="must keep its shots"):
        model.explain(X[:1])
    with pytest.raises(DataError, match=r"of shape \(600, 16\), got \(600, 15\)"):
        model.explain(X[:1], shots=(X[:, 1:], y))
    with pytest.raises(DataError, match="class 9"):
        model.explain(X[:1], shots=(X, np.where(y == y[0], "class 9", y)))


def test_auto_is_exact_for_few_shots_and_explicit_for_many() -> None:
    X, y = rows_of(600, 1)
    few, many = GPCacheClassifier().fit(X[:120], y[:120]), GPCacheClassifier().fit(X, y)
    assert few.fitted_.approximation == "exact"
    assert repr(many.fitted_).startswith("Fitted(explicit features (466), 600 shots")
    same = GPCacheClassifier(approximation="exact").fit(X[:120], y[:120])
    np.testing.assert_array_equal(few.logits(X), same.logits(X))


def test_many_rows_are_held_out_weighed_and_let_in() -> None:
    X, y = rows_of(900, 1)
    queries, truth = rows_of(600, 2)
    exact = GPCacheClassifier(approximation="exact").fit(X, y)
    model = GPCacheClassifier().fit(X, y)
    assert model.loo_.protocol == "225 of 900 shots held out; 200 others chose"
    assert model.loo_.counted.sum() == 225
    assert len(model.fitted_.shots) == 225
    assert model.score(queries, truth) > exact.score(queries, truth) - 0.03
    assert abs(model.loo_.accuracy - model.score(queries, truth)) < 0.08
    assert model.held_out_novelty_.shape == (225,)
    # The held-out rows are what they were in the input.
    kept = model.fitted_.kept_rows.numpy()
    unit = X[kept] / np.linalg.norm(X[kept], axis=1, keepdims=True)
    np.testing.assert_allclose(model.fitted_.shots.features.numpy(), unit, atol=1e-6)


def test_a_part_of_the_classes_chooses_for_all() -> None:
    X, y = rows_of(960, 1, n_classes=24)
    model = GPCacheClassifier().fit(X, y)
    assert model.fitted_.streamed.n_part < 250
    queries, truth = rows_of(480, 2, n_classes=24)
    exact = GPCacheClassifier(approximation="exact").fit(X, y)
    assert model.score(queries, truth) > exact.score(queries, truth) - 0.05


def test_text_and_classes_that_are_known_by_text_alone() -> None:
    X, y = rows_of(600, 1)
    names = [f"class {number}" for number in range(7)]
    vectors = np.random.default_rng(0).normal(size=(7, 2, 16)).mean(1)
    vectors[:6] = [X[y == name].mean(0) for name in names[:6]]
    model = GPCacheClassifier(text_prior=TextPrior(names, vectors, logit_scale=10.0)).fit(X, y)
    assert model.classes_.tolist() == names
    probabilities = model.predict_proba(vectors)
    assert probabilities[6].argmax() == 6
    assert model.gain_ == 1.0


def test_rows_that_are_read_at_every_pass_give_the_same_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = rows_of(600, 1)
    expected = GPCacheClassifier().fit(X, y).logits(X[:20])
    monkeypatch.setattr(row_stream, "KEPT_SHARE", 10**15)
    monkeypatch.setattr(row_stream, "BATCH_ELEMENTS", {"cpu": 1})
    found = GPCacheClassifier().fit(X, y).logits(X[:20])
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_features_are_computed_once_and_the_model_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = rows_of(600, 1)
    computed = 0

    def counted(*given: Any) -> Tensor:
        nonlocal computed
        computed += len(given[0])
        return kernel(*given)

    monkeypatch.setattr(explicit_rows, "kernel", counted)
    options: dict[str, Any] = {"approximation": Explicit(50), "kernel_space": "raw"}
    expected = GPCacheClassifier(**options).fit(X, y).logits(X[:20])
    assert computed == 450 + 600  # a solve without the held-out rows, and one of all
    monkeypatch.setattr(explicit_rows, "MANY_CLASSES", 0)
    found = GPCacheClassifier(**options).fit(X, y).logits(X[:20])
    assert computed == 450 + 600
    np.testing.assert_array_equal(found, expected)


def test_batches_of_many_classes_have_enough_rows() -> None:
    cpu = torch.device("cpu")
    assert explicit.batch_rows(1_000, 1_024, cpu) == 4_096
    assert explicit.batch_rows(2_500, 1_024, cpu) == 2_048
    assert explicit.batch_rows(10_000, 1_024, cpu) == 4 * (2**22 // 10_000)
    assert explicit.batch_rows(10**6, 1_024, cpu) == 256


def test_a_mapped_file_and_a_store_give_the_same_model(tmp_path: Path) -> None:
    X, y = rows_of(600, 1)
    expected = GPCacheClassifier().fit(X, y).logits(X[:20])
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    np.testing.assert_array_equal(GPCacheClassifier().fit(mapped, y).logits(X[:20]), expected)

    encoder = tiny.ColourEncoder()
    store = FeatureStore.create(tmp_path / "store", encoder)
    hashes = [f"{row:064x}" for row in range(len(X))]
    items = [
        Item("rows", f"{row}.png", key, label)
        for row, (key, label) in enumerate(zip(hashes, y.tolist(), strict=True))
    ]
    for first in range(0, len(X), 250):
        store.append(hashes[first : first + 250], X[first : first + 250])
    stored = StoredRows(store, items[::-1])
    labels = [item.label for item in stored.items]
    np.testing.assert_array_equal(stored[3:9], store.vectors([i.hash for i in stored.items[3:9]]))
    assert stored[np.array([5, 2])].shape == (2, encoder.dim)
    few = GPCacheClassifier(kernel_space="raw").fit(stored, labels)
    order = [int(item.path.removesuffix(".png")) for item in stored.items]
    array = GPCacheClassifier(kernel_space="raw").fit(X[order], labels)
    np.testing.assert_array_equal(few.logits(X[:20]), array.logits(X[:20]))


def test_a_model_comes_back_from_its_state() -> None:
    X, y = rows_of(600, 1)
    model = GPCacheClassifier().fit(X, y)
    state = state_of(model)
    again = restore(state)
    assert np.abs(again.predict_proba(X) - model.predict_proba(X)).max() < 1e-5
    assert np.abs(again.novelty(X) - model.novelty(X)).max() < 1e-5
    assert again.loo_.protocol == model.loo_.protocol
    assert repr(again.fitted_) == repr(model.fitted_)
    # Its size does not depend on the number of shots.
    more = GPCacheClassifier(approximation=Explicit(600 - 150)).fit(*rows_of(5_000, 1))
    sizes = [sum(array.nbytes for array in one.arrays.values()) for one in (state, state_of(more))]
    assert sizes[1] < 2.5 * sizes[0]
    del state.arrays["landmarks"]
    with pytest.raises(DataError, match="landmarks"):
        restore(state)


def test_rows_are_added_without_the_old_ones() -> None:
    X, y = rows_of(600, 1)
    new, labels = rows_of(300, 3)
    queries, truth = rows_of(600, 2)
    model = restore(state_of(GPCacheClassifier().fit(X, y)))
    before, seen = model.score(queries, truth), model.score(new, labels)
    model.add(new, labels, refit=False)
    assert model.fitted_.n_rows == 900
    assert model.score(new, labels) > seen
    assert model.score(queries, truth) > before - 0.02
    assert len(model.loo_.counted) == len(model.fitted_.shots)
    again = restore(state_of(model))
    assert np.abs(again.predict_proba(X) - model.predict_proba(X)).max() < 1e-4


def test_a_mapped_file_and_a_store_are_added_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows_of(600, 1, width=16)
    new, labels = rows_of(700, 3, width=16)
    state = state_of(GPCacheClassifier(dtype="float64").fit(X, y))
    monkeypatch.setattr(explicit, "LEAST_BATCHES", 1)
    monkeypatch.setattr(explicit, "batch_rows", lambda *_: 128)
    monkeypatch.setattr(row_stream, "KEPT_SHARE", 10**9)  # read again in every pass
    np.save(tmp_path / "new.npy", new)
    mapped = np.load(tmp_path / "new.npy", mmap_mode="r")
    encoder = tiny.ColourEncoder()
    store = FeatureStore.create(tmp_path / "a.store", encoder)
    pixels = np.random.default_rng(4).integers(0, 255, (30, 8, 8, 3), dtype=np.uint8)
    hashes = [f"{row:064x}" for row in range(30)]
    store.append(hashes, encoder.encode_images(pixels))
    rows = StoredRows(store, [Item("drawn", f"{h}.png", h) for h in hashes])

    at_once = restore(state).add(new, labels, refit=False)
    model = restore(state).add(mapped, labels, refit=False)
    assert np.abs(model.predict_proba(X) - at_once.predict_proba(X)).max() < 1e-9
    assert model.fitted_.n_rows == 1_300
    # The shots that the fit held out are all that the model keeps.
    assert len(model.fitted_.shots) == len(model.loo_.labels) < 600

    known = rows[:]
    small = GPCacheClassifier(approximation=Explicit(20), dtype="float64")
    small.fit(np.tile(known, (10, 1)), np.tile(np.arange(30) % 3, 10))
    state = state_of(small)
    at_once = restore(state).add(known, np.arange(30) % 3, refit=False)
    monkeypatch.setattr(StoredRows, "__array__", lambda *_, **__: pytest.fail("read at once"))
    model = restore(state).add(rows, np.arange(30) % 3, refit=False)
    assert np.abs(model.predict_proba(known) - at_once.predict_proba(known)).max() < 1e-6
    assert model.fitted_.n_rows == 330


def test_an_update_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows_of(600, 1)
    model = GPCacheClassifier().fit(X, y)
    before = model.predict_proba(X)
    monkeypatch.setattr("gpcache.support.devices.has_memory", lambda *_: False)
    with pytest.raises(NumericalError, match=r"Adding 10 shots to a model of 6 classes"):
        model.add(X[:10], y[:10])
    monkeypatch.undo()
    assert model.fitted_.n_rows == 600
    assert np.array_equal(model.predict_proba(X), before)


def test_what_needs_the_old_shots_is_refused() -> None:
    X, y = rows_of(600, 1)
    model = GPCacheClassifier().fit(X, y)
    for change in (
        lambda: model.remove([0]),
        lambda: model.relabel([0], ["class 1"]),
        lambda: model.add(X[:1], ["class 9"]),
        lambda: model.explain(X[:1]),
    ):
        with pytest.raises(ProtocolError, match="must keep its shots"):
            change()
    with pytest.warns(UserWarning, match="fit on all shots"):
        model.refit()
    assert not model.has_keys


def test_a_validation_set_weighs_and_calibrates() -> None:
    X, y = rows_of(600, 1)
    queries, truth = rows_of(300, 2)
    model = GPCacheClassifier().fit(X, y, validation=rows_of(200, 3))
    assert model.score(queries, truth) > 0.6
    assert "validation" in model.loo_.protocol


def test_a_projection_and_float64() -> None:
    X, y = rows_of(600, 1)
    matrix = 0.1 * np.random.default_rng(0).normal(size=(16, 16))
    one = GPCacheClassifier(projection=matrix).fit(X, y)
    other = GPCacheClassifier(projection=matrix, dtype="float64").fit(X, y)
    assert np.abs(one.predict_proba(X) - other.predict_proba(X)).max() < 0.02


def test_bad_rows_and_options_are_said_in_one_sentence() -> None:
    X, y = rows_of(600, 1)
    with pytest.raises(ProtocolError, match="likelihood='softmax'"):
        GPCacheClassifier(approximation="explicit", likelihood=Regression()).fit(X, y)
    bad = X.copy()
    bad[577] = np.nan
    with pytest.raises(DataError, match="row 577"):
        GPCacheClassifier().fit(bad, y)
    with pytest.raises(DataError, match="n_features"):
        GPCacheClassifier(approximation=Explicit(0)).fit(X, y)


def test_no_warning_and_the_caller_sees_no_change() -> None:
    X, y = rows_of(600, 1)
    before = X.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GPCacheClassifier().fit(X, y)
    np.testing.assert_array_equal(X, before)


def test_modes_of_a_class_are_told_apart_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    modes = rng.normal(size=(6, 2, 16))
    modes[:, 1] = -modes[:, 0]  # the mean of a class says nothing about it

    def drawn(n: int) -> Rows:
        labels = np.arange(n) % 6
        rows = modes[labels, rng.integers(2, size=n)] + 0.5 * rng.normal(size=(n, 16))
        return rows.astype(np.float32), labels.astype(str)

    X, y = drawn(1_200)
    queries, truth = drawn(600)
    model = GPCacheClassifier(approximation=Explicit(16)).fit(X, y)
    assert model.fitted_.model.discriminant.n_modes == 2
    accuracy = model.score(queries, truth)
    monkeypatch.setattr(explicit, "LEAST_PER_MODE", 10_000)
    plain = GPCacheClassifier(approximation=Explicit(16)).fit(X, y)
    assert plain.fitted_.streamed.n_modes == 1
    assert accuracy > plain.score(queries, truth) + 0.1
    # It is saved, asked and extended like any other model.
    again = restore(state_of(model))
    np.testing.assert_allclose(
        again.predict_proba(queries), model.predict_proba(queries), rtol=1e-4, atol=1e-6
    )
    counts = model.fitted_.streamed.class_counts.tolist()
    assert counts == [200.0] * 6
    model.add(queries[:60], truth[:60], refit=False)
    assert model.fitted_.streamed.class_counts.tolist() == [210.0] * 6
    assert model.score(queries, truth) > accuracy - 0.02


def test_the_nearest_mode_of_the_own_class() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, means = (torch.randn(n, 5, generator=generator) for n in (40, 12))
    labels = torch.arange(40) % 3
    found = Discriminant(means, 0.5 * means.square().sum(1), 4).nearest(rows, labels)
    distance = torch.cdist(rows, means)
    for row, label, number in zip(distance, labels, found, strict=True):
        own = row[4 * label : 4 * label + 4]
        assert number == 4 * label + own.argmin()


def test_a_pass_adds_up_the_rows_nearest_to_each_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    turn, labels = drawn(5, 7), torch.arange(60) % 3
    feature_map = FeatureMap(lambda rows: rows @ turn, drawn(7), drawn(7, 4))
    rows = unit_rows(drawn(60, 5))
    several = [drawn(3 * n_modes, 4) for n_modes in (2, 4)]
    discriminants = [
        Discriminant(means, 0.5 * means.square().sum(1), len(means) // 3) for means in several
    ]
    monkeypatch.setitem(passes.PIECE_ELEMENTS, "cpu", 100)  # pieces of three rows
    batches = zip(rows.split(25), labels.split(25), strict=True)
    totals = passes.ModesPass(feature_map, discriminants).total(batches)
    for means, total in zip(several, totals, strict=True):
        far = torch.cdist(feature_map.unscaled(rows), means)
        foreign = torch.arange(len(means)) // (len(means) // 3) != labels[:, None]
        member = torch.nn.functional.one_hot(
            far.masked_fill(foreign, torch.inf).argmin(1), len(means)
        )
        torch.testing.assert_close(total[:, -1], member.sum(0).double())
        torch.testing.assert_close(total[:, :-1], member.double().mT @ unit_rows(rows @ turn))


def test_held_out_rows_of_several_modes_foretell_new_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explicit_choice, "LEAST_HELD", 300)
    monkeypatch.setattr(explicit_choice, "MOST_HELD", 300)
    monkeypatch.setattr(explicit, "LEAST_PER_MODE", 3)  # a mean of few rows would show a leak
    held, asked = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        modes = rng.normal(size=(100, 4, 48))
        labels = np.arange(2_000) % 100
        X = modes[labels, rng.integers(4, size=2_000)] + 1.5 * rng.normal(size=(2_000, 48))
        queries = modes[labels, rng.integers(4, size=2_000)] + 1.5 * rng.normal(size=(2_000, 48))
        model = GPCacheClassifier(approximation=Explicit(16)).fit(X, labels)
        assert model.fitted_.model.discriminant.n_modes > 1
        held.append(model.loo_.accuracy)
        asked.append(model.score(queries, labels))
    found, expected = np.mean(held), np.mean(asked)
    error = np.sqrt(found * (1 - found) / 900 + expected * (1 - expected) / 6_000)
    assert abs(found - expected) < 2 * error


@pytest.mark.parametrize("n_modes", [1, 2, 8])
def test_held_out_rows_choose_the_number_of_modes(n_modes: int) -> None:
    rng = np.random.default_rng(n_modes)
    modes = rng.normal(size=(20, n_modes, 32))

    def drawn(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        labels = np.arange(n) % 20
        rows = modes[labels, rng.integers(n_modes, size=n)]
        return rows + rng.normal(size=(n, 32)), labels

    model = GPCacheClassifier(approximation=Explicit(16)).fit(*drawn(2_400))
    assert model.fitted_.streamed.n_modes == n_modes
    assert model.loo_.accuracy == pytest.approx(model.score(*drawn(2_000)), abs=0.05)
