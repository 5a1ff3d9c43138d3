"""A validation set: the paper's protocol by brute force, and who is allowed to influence a fit."""

import itertools

import numpy as np
import pytest

from gpcache import GPCacheClassifier, GPCacheFClassifier, ProtocolError
from gpcache.methods import TipAdapterClassifier
from gpcache.methods.cache import search

BETAS, NOISES, ETAS, ALPHAS = (1.0, 4.0, 12.0), (0.1, 1.0), (0.0, 0.5, 2.0), (0.3, 3.0, 30.0)


@pytest.fixture
def small_grids(monkeypatch):
    for name in ("BETAS", "NOISES", "ETAS", "ALPHAS"):
        monkeypatch.setattr(search, name, globals()[name])


@pytest.fixture
def hard(tools):
    """A problem on which no setting is perfect, and validation rows of the same kind."""
    problem = tools.make_problem(shots=(4, 4, 3, 4, 3), spread=1.3, n_queries=20, seed=1)
    more = tools.make_problem(shots=(12, 12, 12, 12, 12), spread=1.3, seed=1)
    return problem, (more.X, more.y)


def brute_force(problem, keys, validation, tools):
    """Every grid point, scored by accuracy, then by NLL: the best (β, noise, α, η), and its score.

    As METHODS §5 has it, α grows with the noise: α₀(1 + σ²).
    """
    classes = np.sort(problem.prior.class_names)
    labels = np.searchsorted(classes, validation[1])
    text = tools.zero_shot(problem.prior, validation[0])
    scores = {}
    for beta, noise in itertools.product(BETAS, NOISES):
        mean, variance = tools.posterior(
            keys,
            tools.one_hot(problem.y, classes),
            tools.unit(validation[0]),
            beta=beta,
            noise=noise,
        )
        for eta, factor in itertools.product(ETAS, ALPHAS):
            alpha = factor * (1 + noise)
            logits = text + alpha * mean / variance[:, None] ** eta
            accuracy = np.mean(logits.argmax(1) == labels)
            scores[beta, noise, alpha, eta] = (-accuracy, tools.nll(logits, labels))
    best = min(scores, key=scores.get)
    assert max(scores.values())[0] > scores[best][0]  # there was something to choose
    return best, scores[best]


def assert_chosen(estimator, best, score):
    found = (estimator.beta_, estimator.noise_, estimator.alpha_, estimator.eta_)
    assert found == pytest.approx(best)
    assert estimator.search_["accuracy"][0] == pytest.approx(-score[0])
    assert estimator.search_["nll"][0] == pytest.approx(score[1])
    assert len(estimator.search_["beta"]) == len(BETAS) * len(NOISES)


@pytest.mark.usefixtures("small_grids")
def test_the_paper_takes_the_grid_point_of_highest_validation_accuracy(hard, tools):
    problem, validation = hard
    estimator = GPCacheClassifier.paper(problem.prior, **tools.float64)
    estimator.fit(problem.X, problem.y, validation=validation)
    best, score = brute_force(problem, tools.unit(problem.X), validation, tools)
    assert_chosen(estimator, best, score)
    assert estimator.score(*validation) == pytest.approx(-score[0])


@pytest.mark.usefixtures("small_grids")
def test_trained_keys_are_searched_again_once_they_are_trained(hard, tools):
    problem, validation = hard
    estimator = GPCacheFClassifier.paper(
        problem.prior, epochs=6, learning_rate=0.1, **tools.float64
    )
    estimator.fit(problem.X, problem.y, validation=validation)
    keys = estimator.fitted_.model.precision.keys.numpy()
    assert np.abs(keys - tools.unit(problem.X)).max() > 0.05
    best, score = brute_force(problem, keys, validation, tools)
    assert_chosen(estimator, best, score)
    assert estimator.score(*validation) == pytest.approx(-score[0])


@pytest.mark.parametrize("kind", [GPCacheClassifier, GPCacheFClassifier])
def test_the_paper_refuses_to_fit_without_a_validation_set(kind, problem):
    with pytest.raises(ProtocolError, match=r"pass fit\(X, y, validation=\(X_val, y_val\)\)"):
        kind.paper(problem.prior).fit(problem.X, problem.y)


@pytest.mark.parametrize("kind", [GPCacheClassifier, TipAdapterClassifier])
def test_with_a_validation_set_the_nll_is_that_of_its_rows(kind, hard, tools):
    """Of regression; the softmax likelihood's search is content with fewer digits."""
    problem, validation = hard
    options = {"text_prior": problem.prior, **tools.float64}
    if kind is GPCacheClassifier:
        options["likelihood"] = "gaussian"
    estimator = kind.from_options(**options)
    estimator.fit(problem.X, problem.y, validation=validation)
    labels = np.searchsorted(estimator.classes_, validation[1])
    logits = estimator.logits(validation[0])
    assert estimator.search_["nll"][0] == pytest.approx(tools.nll(logits, labels))
    # Nothing pulls.
    assert estimator.search_["score"][0] == pytest.approx(tools.smoothed_nll(logits, labels))
    assert estimator.search_["score"][0] == estimator.search_["score"].min()
    without = kind.from_options(**options).fit(problem.X, problem.y)
    assert estimator.alpha_ != pytest.approx(without.alpha_)
    # The shots can still be held out, at the numbers that were chosen.
    given = {"alpha": estimator.alpha_, "beta": estimator.beta_, "gain": estimator.gain_}
    if kind is GPCacheClassifier:
        given["noise"] = estimator.noise_
    same = kind.from_options(**options, **given).fit(problem.X, problem.y)
    np.testing.assert_allclose(estimator.loo_.logits, same.loo_.logits, rtol=1e-9)


def test_one_shot_a_class_can_be_tuned_on_a_validation_set(likelihood, hard, tools):
    _, validation = hard
    problem = tools.make_problem(shots=(1, 1, 1, 1, 1), spread=1.3, seed=1)
    estimator = GPCacheClassifier.from_options(
        text_prior=problem.prior, likelihood=likelihood, **tools.float64
    )
    estimator.fit(problem.X, problem.y, validation=validation)
    assert len(estimator.search_["beta"]) > 5
    assert np.isfinite(estimator.search_["nll"]).all()


def tempered(logits, temperature, slope):
    """z / T · exp(slope · H), with H the entropy of softmax(z / T) as a share of log c."""
    scaled = logits / temperature
    shifted = np.exp(scaled - scaled.max(1, keepdims=True))
    p = shifted / shifted.sum(1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1, keepdims=True)
    return scaled * np.exp(slope * entropy / np.log(logits.shape[1]))


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("with_validation", [False, True])
def test_the_calibration_minimises_the_smoothed_nll_of_held_out_rows(
    space, with_validation, hard, tools
):
    problem, validation = hard
    estimator = tools.gp_cache(problem, alpha=9.0, kernel_space=space)
    if with_validation:
        estimator.fit(problem.X, problem.y, validation=validation)
        logits, names = estimator.logits(validation[0]), validation[1]
    else:
        estimator.fit(problem.X, problem.y)
        logits, names = estimator.loo_.logits, problem.y
    labels = np.searchsorted(estimator.classes_, names)

    def loss(factor, step):
        slope = estimator.entropy_slope_ + step
        scaled = tempered(logits, factor * estimator.temperature_, slope)
        return tools.smoothed_nll(scaled, labels) + 2 * slope**2 / len(labels)

    best = loss(1.0, 0.0)
    around = [(f, s) for f in np.geomspace(0.2, 5, 41) for s in np.linspace(-1, 1, 41)]
    assert best <= min(loss(*one) for one in around) + 1e-7
    assert best < tools.smoothed_nll(logits, labels) - 1e-4  # it was needed


@pytest.mark.parametrize("with_text", [True, False])
def test_probabilities_are_the_softmax_of_calibrated_logits(with_text, likelihood, hard, tools):
    problem, _ = hard
    text = problem.prior if with_text else None
    estimator = GPCacheClassifier.from_options(
        text_prior=text, likelihood=likelihood, **tools.float64
    )
    estimator.fit(problem.X, problem.y)
    probability = estimator.predict_proba(problem.queries)
    logits = estimator.logits(problem.queries)
    scaled = tempered(logits, estimator.temperature_, estimator.entropy_slope_)
    expected = tools.softmax(scaled)
    np.testing.assert_allclose(probability, expected, rtol=1e-10)
    np.testing.assert_allclose(probability.sum(1), 1, atol=1e-12)
    assert (estimator.classes_[probability.argmax(1)] == estimator.predict(problem.queries)).all()


@pytest.mark.parametrize("kind", [GPCacheClassifier, TipAdapterClassifier])
def test_a_query_knows_nothing_of_the_others_and_leaves_no_trace(kind, problem, tools):
    """Test rows have no way into the model: not through a batch, and not through being asked."""
    estimator = kind.from_options(text_prior=problem.prior, **tools.float64).fit(
        problem.X, problem.y
    )
    together = estimator.logits(problem.queries)
    one_by_one = np.concatenate([estimator.logits(q[None]) for q in problem.queries])
    np.testing.assert_allclose(together, one_by_one, rtol=1e-10, atol=1e-12)
    fresh = kind.from_options(text_prior=problem.prior, **tools.float64).fit(problem.X, problem.y)
    estimator.predict_proba(-problem.queries)
    estimator.posterior(problem.queries)
    np.testing.assert_array_equal(estimator.loo_.logits, fresh.loo_.logits)
    np.testing.assert_array_equal(estimator.logits(problem.queries), fresh.logits(problem.queries))
