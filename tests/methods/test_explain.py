"""Explanations: the signed shares of the shots add up to what the cache says."""

import numpy as np
import pytest

from gpcache import DataError, GPCacheFClassifier

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(params=[0.0, 1.5], ids=["eta 0", "eta 1.5"])
def options(request, precision):
    """Every posterior, with and without η where there is a variance to divide by."""
    if not precision.get("precision_weighting", True):
        return precision
    return {**precision, "confidence_scaling": True, "eta": request.param}


@pytest.fixture(params=["softmax", "gaussian"])
def make(request, tools):
    """An estimator of either likelihood at given numbers."""
    return tools.softmax_cache if request.param == "softmax" else tools.gp_cache


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("with_text", [True, False])
def test_shares_sum_to_the_cache_and_cache_and_text_to_the_logit(
    options, space, with_text, problem, tools
):
    estimator = tools.gp_cache(problem if with_text else None, kernel_space=space, **options)
    estimator.fit(problem.X, problem.y)
    logits = estimator.logits(problem.queries)
    told = estimator.explain(problem.queries, top=None)
    rows, columns = np.arange(9), np.searchsorted(estimator.classes_, told.labels)
    np.testing.assert_allclose(told.shares.sum(1), told.cache_logit, **CLOSE)
    np.testing.assert_allclose(told.cache_logit + told.text_logit, logits[rows, columns], **CLOSE)
    assert (told.discriminant_logit == 0).all()
    assert (told.labels == estimator.predict(problem.queries)).all()
    text = 0.8 * tools.zero_shot(problem.prior, problem.queries)[rows, columns] if with_text else 0
    np.testing.assert_allclose(told.text_logit, text, **CLOSE)
    # Each shot is named once.
    np.testing.assert_array_equal(np.sort(told.shots, 1), np.tile(np.arange(14), (9, 1)))


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("with_text", [True, False])
def test_with_the_softmax_likelihood_the_discriminant_adds_its_part(
    space, with_text, softmax_precision, tools
):
    """All classes have shots, so that the whitened space has a discriminant."""
    problem = tools.make_problem(shots=(5, 3, 4, 2, 3))
    options = {"kernel_space": space, **softmax_precision}
    estimator = tools.softmax_cache(problem if with_text else None, **options)
    estimator.fit(problem.X, problem.y)
    logits = estimator.logits(problem.queries)
    for column, name in enumerate(estimator.classes_):
        told = estimator.explain(problem.queries, labels=[name] * 9, top=None)
        np.testing.assert_allclose(told.shares.sum(1), told.cache_logit, **CLOSE)
        together = told.cache_logit + told.text_logit + told.discriminant_logit
        np.testing.assert_allclose(together, logits[:, column], **CLOSE)
        assert told.discriminant_logit.any() == (space == "whitened")
        assert told.text_logit.any() == with_text
    told = estimator.explain(problem.queries)
    assert (told.labels == estimator.predict(problem.queries)).all()


def test_any_label_can_be_explained(options, problem, tools):
    estimator = tools.gp_cache(problem, **options).fit(problem.X, problem.y)
    logits = estimator.logits(problem.queries)
    for column, name in enumerate(estimator.classes_):
        told = estimator.explain(problem.queries, labels=[name] * 9, top=None)
        assert told.labels.tolist() == [name] * 9
        np.testing.assert_allclose(told.shares.sum(1), told.cache_logit, **CLOSE)
        np.testing.assert_allclose(told.cache_logit + told.text_logit, logits[:, column], **CLOSE)


@pytest.mark.parametrize("prior", ["zero_shot", "residual"])
def test_a_share_is_weight_times_value_over_the_divisor(prior, problem, tools):
    """α · [k G⁻¹]ᵢ · Vᵢ / variance^η for every shot i."""
    estimator = tools.gp_cache(
        problem, prior=prior, kernel_space="raw", confidence_scaling=True, eta=1.5
    ).fit(problem.X, problem.y)
    told = estimator.explain(problem.queries, top=None)
    keys, queries = tools.unit(problem.X), tools.unit(problem.queries)
    inverse = np.linalg.inv(tools.kernel(keys, keys, 2.5) + 0.2 * np.eye(14))
    weights = tools.kernel(queries, keys, 2.5) @ inverse
    variance = 1 - np.diag(weights @ tools.kernel(keys, queries, 2.5))
    values = tools.one_hot(problem.y, estimator.classes_)
    if prior == "residual":
        text = 0.8 * tools.zero_shot(problem.prior, problem.X)
        values = tools.residual(problem.y, estimator.classes_, text)
    columns = np.searchsorted(estimator.classes_, told.labels)
    expected = 3.0 * weights * values[:, columns].T / variance[:, None] ** 1.5
    np.testing.assert_allclose(
        told.shares, np.take_along_axis(expected, told.shots, axis=1), **CLOSE
    )


def test_shots_speak_for_and_against(problem, tools):
    told = tools.gp_cache(problem).fit(problem.X, problem.y).explain(problem.queries, top=None)
    by_text = told.labels == "yew"  # it has no shot, and none speaks of it
    assert 0 < by_text.sum() < len(by_text)
    assert (told.shares[~by_text].max(1) > 0).all()
    assert (told.shares[~by_text].min(1) < 0).all()
    assert (told.shares[by_text] == 0).all()


def test_the_loudest_come_first(make, problem):
    estimator = make(problem).fit(problem.X, problem.y)
    everyone = estimator.explain(problem.queries, top=None)
    sizes = np.abs(everyone.shares)
    assert (np.diff(sizes, axis=1) <= 0).all()
    for top, expected in ((1, 1), (3, 3), (14, 14), (99, 14)):
        few = estimator.explain(problem.queries, top=top)
        assert few.shots.shape == few.shares.shape == (9, expected)
        np.testing.assert_array_equal(few.shots, everyone.shots[:, :expected])
        np.testing.assert_array_equal(few.shares, everyone.shares[:, :expected])
        np.testing.assert_array_equal(few.cache_logit, everyone.cache_logit)
    assert estimator.explain(problem.queries).shots.shape == (9, 5)


def test_a_shot_explains_itself(problem, tools):
    told = tools.gp_cache(noise=1e-6, beta=20.0, kernel_space="raw").fit(problem.X, problem.y)
    told = told.explain(problem.X, top=1)
    assert told.shots[:, 0].tolist() == list(range(14))
    assert (told.labels == problem.y).all()


def test_trained_keys_and_updates_are_explained_as_they_are(problem, tools):
    estimator = GPCacheFClassifier.from_options(
        text_prior=problem.prior,
        epochs=2,
        learning_rate=0.1,
        kernel_space="raw",
        **tools.numbers,
        **tools.float64,
    ).fit(problem.X, problem.y)
    estimator.add(problem.queries[:1], ["yew"]).remove([4])
    told = estimator.explain(problem.queries, top=None)
    rows, columns = np.arange(9), np.searchsorted(estimator.classes_, told.labels)
    np.testing.assert_allclose(told.shares.sum(1), told.cache_logit, **CLOSE)
    np.testing.assert_allclose(
        told.cache_logit + told.text_logit,
        estimator.logits(problem.queries)[rows, columns],
        **CLOSE,
    )
    # The new shot is the last of fourteen, and it speaks for its own class.
    own = estimator.explain(problem.queries[:1], labels=["yew"], top=1)
    assert own.shots.tolist() == [[13]]
    assert own.shares[0, 0] > 0


@pytest.mark.parametrize("top", [-1, 2.5, "all"])
def test_a_number_of_shots_that_cannot_be_meant(top, problem, tools):
    estimator = tools.gp_cache(problem).fit(problem.X, problem.y)
    with tools.one_sentence(DataError, "top must be"):
        estimator.explain(problem.queries, top=top)


@pytest.mark.parametrize(
    ("labels", "phrase"),
    [
        (["oak", "oak", "beech"], "'beech'.* is none of the 5 known classes"),
        (["oak"], "labels"),
        (["oak"] * 4, "labels"),
    ],
    ids=["unknown", "too few", "too many"],
)
def test_labels_that_do_not_fit_are_refused(labels, phrase, problem, tools):
    estimator = tools.gp_cache(problem).fit(problem.X, problem.y)
    with pytest.raises(DataError, match=phrase) as error:
        estimator.explain(problem.queries[:3], labels=labels)
    assert "\n" not in str(error.value)
