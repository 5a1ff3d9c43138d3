"""Fits on Ray, on a local cluster: any source of rows, the same model, one sentence for errors."""

import pickle
from functools import partial

import numpy as np
import pytest

from gpcache import DataError, FeatureStore, GPCacheClassifier, ImageClassifier, StoreError
from gpcache.cluster import fitting
from gpcache.cluster.fitting import rows_on_ray
from gpcache.features.extract import extract
from gpcache.features.stored_rows import StoredRows
from gpcache.images.drawn import draw_pictures
from gpcache.images.sources import open_source
from gpcache.methods import Explicit
from gpcache.methods.cache import explicit_choice

pytestmark = pytest.mark.slow

N, CLASSES, WIDTH = 600, 4, 12
Classifier = partial(GPCacheClassifier, approximation=Explicit(32))


@pytest.fixture(scope="module", autouse=True)
def cluster(local_cluster):
    with local_cluster(1):
        yield


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(explicit_choice, "PART_ROWS", 120)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = np.arange(N) % CLASSES
    centres = rng.normal(size=(CLASSES, WIDTH))
    return (centres[y] + rng.normal(size=(N, WIDTH))).astype(np.float32), y


def test_any_array_gives_the_model_of_one_process(rows, tmp_path):
    X, y = rows
    expected = Classifier().fit(X, y).predict_proba(X)
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "columns.npy", np.asfortranarray(X))
    np.save(tmp_path / "more.npy", np.concatenate([X, X])[:, ::-1])
    mapped, columns, more = (
        np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("rows", "columns", "more")
    )
    # The last is a view of a mapped file, which knows the file but not its place in it.
    for source in (X, X.tolist(), mapped, columns, more[N:, ::-1]):
        with rows_on_ray(source) as given:
            found = Classifier().fit(given, y)
            assert given.passes > 5
        np.testing.assert_allclose(found.predict_proba(X), expected, atol=1e-6)
    sizes = [len(pickle.dumps(fitting._opener(one, 0, N))) for one in (mapped, X)]
    assert sizes[0] < 1_000 < X.nbytes < sizes[1]


def test_further_fits_may_have_other_labels_and_validation(rows):
    X, y = rows
    with rows_on_ray(X) as given:
        for labels in (y, (y + 1) % 3):
            found = Classifier().fit(given, labels, validation=(X[:90], labels[:90]))
            expected = Classifier().fit(X, labels, validation=(X[:90], labels[:90]))
            np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X), atol=1e-6)


def test_few_rows_are_fitted_exactly_on_this_machine(rows):
    X, y = rows
    with rows_on_ray(X[:40]) as given:
        found = GPCacheClassifier().fit(given, y[:40])
    assert given.passes == 0
    expected = GPCacheClassifier().fit(X[:40], y[:40])
    np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))


def test_a_wrong_row_is_named_by_its_number(rows):
    X, y = rows
    X = X.copy()
    X[577, 3] = np.nan
    with (
        rows_on_ray(X) as given,
        pytest.raises(DataError, match=r"^X contains NaN or inf in row 577: [^\n]*$"),
    ):
        Classifier().fit(given, y)


def test_a_store_that_other_machines_do_not_find_is_a_sentence(lite_store, tmp_path):
    store = FeatureStore.open(lite_store)
    items = store.items()
    rows = StoredRows(store, items)
    lite_store.rename(tmp_path / "elsewhere")
    with rows_on_ray(rows) as given, pytest.raises(StoreError, match=r"^[^\n]*$"):
        Classifier().fit(given, [item.label for item in rows.items])


@pytest.fixture
def photos(tmp_path):
    draw_pictures(tmp_path / "photos", ("wood", "bricks"), each=3)
    return tmp_path / "photos"


@pytest.fixture
def lite_store(photos, lite, tmp_path):
    extract(open_source(photos), tmp_path / "store", lite)
    return tmp_path / "store"


@pytest.fixture(scope="module")
def lite():
    from gpcache import load_encoder

    return load_encoder("lite", device="cpu")


def test_photos_are_refused_and_small_stores_are_fitted_here(photos, lite_store, lite):
    classifier = ImageClassifier(lite)
    with pytest.raises(DataError, match="takes a feature store: run gpcache extract first"):
        classifier.fit(photos, engine="ray")
    with pytest.raises(DataError, match="engine must be one of 'local', 'ray', got 'spark'"):
        classifier.fit(lite_store, engine="spark")
    classifier.fit(lite_store, engine="ray")
    assert "few images need no Ray" in classifier.training.notices[-1]
