"""Classes known by their text alone: the shots of the others say nothing about them."""

import numpy as np
import pytest

from gpcache.methods import registry


@pytest.fixture
def options(precision):
    """Every posterior, in the raw space, where an update is a fit."""
    return {"kernel_space": "raw", **precision}


def column(estimator, name):
    return estimator.classes_.tolist().index(name)


@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_their_logits_are_those_of_the_text(space, precision, problem, tools):
    estimator = tools.gp_cache(problem, **precision, kernel_space=space).fit(problem.X, problem.y)
    yew = column(estimator, "yew")
    text = tools.numbers["gain"] * tools.zero_shot(problem.prior, problem.queries)
    logits = estimator.logits(problem.queries)
    np.testing.assert_allclose(logits[:, yew], text[:, yew], rtol=1e-12)
    assert (np.abs(logits - text).max(0) > 0.01).sum() == 4  # it speaks of the other classes


@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_with_the_softmax_likelihood_too(space, softmax_precision, problem, tools):
    """A class without a shot leaves the discriminant out: it would have no mean."""
    estimator = tools.softmax_cache(problem, **softmax_precision, kernel_space=space)
    estimator.fit(problem.X, problem.y)
    yew = column(estimator, "yew")
    text = estimator.gain_ * tools.zero_shot(problem.prior, problem.queries)
    logits = estimator.logits(problem.queries)
    np.testing.assert_allclose(logits[:, yew], text[:, yew], rtol=1e-12)
    assert (np.abs(logits - text).max(0) > 0.01).sum() == 4
    assert estimator.discriminant_ == 0


def test_of_the_others_they_say_what_the_text_leaves_unsaid(problem, tools):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    said = tools.softmax(tools.numbers["gain"] * tools.zero_shot(problem.prior, problem.X))
    values = estimator.fitted_.model.precision.values.numpy()
    kept = np.delete(np.arange(5), column(estimator, "yew"))
    expected = tools.one_hot(problem.y, estimator.classes_) - said
    np.testing.assert_allclose(values[:, kept], expected[:, kept], atol=1e-12)


def test_the_first_shot_and_the_last_are_updates_like_others(options, problem, tools):
    first = np.append(problem.y, "yew")
    X = np.vstack([problem.X, problem.queries[:1]])
    updated = tools.gp_cache(problem, **options).fit(problem.X, problem.y)
    before = updated.logits(problem.queries)
    updated.add(X[-1:], ["yew"])
    rebuilt = tools.gp_cache(problem, **options).fit(X, first)
    np.testing.assert_allclose(
        updated.logits(problem.queries), rebuilt.logits(problem.queries), rtol=1e-8
    )
    updated.remove([14])
    np.testing.assert_allclose(updated.logits(problem.queries), before, rtol=1e-8)
    gone = np.flatnonzero(problem.y == "elm")
    updated.relabel(gone, ["oak"] * len(gone))
    rebuilt = tools.gp_cache(problem, **options)
    rebuilt.fit(problem.X, np.where(problem.y == "elm", "oak", problem.y))
    np.testing.assert_allclose(
        updated.logits(problem.queries), rebuilt.logits(problem.queries), rtol=1e-8
    )


@pytest.mark.parametrize(
    "name",
    [n for n, m in registry().items() if not m.beyond_features and n != "linear-probe"],
)
def test_no_method_forgets_them(name, tools):
    """Noisy images of classes without shots are found about as often as the text alone would."""
    names = tuple("abcdefgh")
    problem = tools.make_problem(
        shots=(8, 8, 8, 8, 8, 8, 0, 0), names=names, width=24, n_queries=400, spread=1.5, seed=4
    )
    truth = drawn_from(problem.queries, names, seed=4)
    unseen = np.isin(truth, ["g", "h"])

    def recall(method):
        options = (
            {"epochs": 30} if "epochs" in registry()[method].constructor().get_params() else {}
        )
        model = registry()[method].constructor(text_prior=problem.prior, **options, **tools.float64)
        answers = model.fit(problem.X, problem.y).predict(problem.queries)
        return np.mean(answers[unseen] == truth[unseen])

    assert recall(name) > 0.4 * recall("zero-shot") > 0.1


def drawn_from(queries, names, *, seed):
    """The class that each query of `make_problem` was drawn from: drawn again in the same order."""
    generator = np.random.default_rng(seed)
    generator.normal(size=(len(names), queries.shape[1]))
    shots = 8 * 6
    generator.permutation(shots)
    return np.array(names)[generator.integers(len(names), size=len(queries))]
