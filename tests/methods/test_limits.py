"""What must hold of GPCache at the ends of its parameters, and under changes that mean nothing."""

import numpy as np
import pytest
from sklearn.base import clone

from gpcache import GPCacheClassifier, TextPrior
from gpcache.methods import GPCacheFClassifier, TipAdapterClassifier


def test_much_noise_with_alpha_scaled_is_tip_adapter(problem, tools):
    """METHODS §9.1: the mean tends to κY/σ², so α = σ²·α_T gives Tip-Adapter's logits."""
    options = {"kernel_space": "raw", "prior": "zero_shot"}
    noisy = tools.gp_cache(problem, noise=1e9, alpha=3.0e9, **options)
    np.testing.assert_allclose(
        noisy.fit(problem.X, problem.y).logits(problem.queries),
        tools.tip_adapter(problem).fit(problem.X, problem.y).logits(problem.queries),
        atol=1e-5,
    )


@pytest.mark.parametrize("prior", ["zero_shot", "residual"])
@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
def test_without_noise_it_interpolates(prior, space, problem, tools):
    estimator = tools.gp_cache(problem, noise=1e-10, prior=prior, kernel_space=space)
    mean, variance = estimator.fit(problem.X, problem.y).posterior(problem.X)
    values = tools.one_hot(problem.y, estimator.classes_)
    if prior == "residual":
        text = 0.8 * tools.zero_shot(problem.prior, problem.X)
        values = tools.residual(problem.y, estimator.classes_, text)
    np.testing.assert_allclose(mean, values, atol=1e-6)
    np.testing.assert_allclose(variance, 0, atol=1e-6)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_far_from_all_shots_only_the_text_is_left(eta, problem, tools):
    """With a kernel so sharp that no query is near a shot: mean 0, variance 1."""
    estimator = tools.gp_cache(problem, beta=1e4, confidence_scaling=True, eta=eta)
    found = estimator.fit(problem.X, problem.y).logits(problem.queries)
    expected = 0.8 * tools.zero_shot(problem.prior, problem.queries)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"precision": "grouped", "n_groups": 1}, 1e-10),
        # All keys as landmarks; the core is lifted by a jitter of 1.5e-8.
        ({"precision": "nystrom", "n_landmarks": 25, "cross": "exact"}, 1e-5),
        ({"precision": "nystrom", "n_landmarks": 25, "cross": "consistent"}, 1e-5),
    ],
    ids=["one group", "all landmarks", "all landmarks, consistent"],
)
def test_a_complete_approximation_is_exact(options, tolerance, problem, tools):
    confident = {"confidence_scaling": True, "eta": 1.0}
    exact = tools.gp_cache(problem, **confident).fit(problem.X, problem.y)
    complete = tools.gp_cache(problem, **options, **confident).fit(problem.X, problem.y)
    for found, expected in (
        (complete.logits(problem.queries), exact.logits(problem.queries)),
        (complete.posterior(problem.queries)[1].ravel(), exact.posterior(problem.queries)[1]),
    ):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_fourier_features_come_nearer_as_they_grow(problem, tools):
    exact = tools.gp_cache(problem).fit(problem.X, problem.y).logits(problem.queries)

    def error(n_features):
        found = [
            tools.gp_cache(problem, precision="fourier", n_features=n_features, random_state=seed)
            .fit(problem.X, problem.y)
            .logits(problem.queries)
            for seed in range(4)
        ]
        return np.sqrt(np.mean((np.array(found) - exact) ** 2))

    # D^−½ says a factor of 8; the draws may be off by half of it.
    assert error(1024) < error(16) / 4


CHOSEN = [
    GPCacheClassifier(),
    GPCacheClassifier.from_options(kernel_space="raw"),
    GPCacheClassifier.from_options(criterion="accuracy"),
    GPCacheClassifier.from_options(precision="nystrom", n_landmarks=10),
    GPCacheClassifier.from_options(precision="class_mean"),
    GPCacheClassifier.from_options(likelihood="gaussian"),
    GPCacheClassifier.from_options(
        likelihood="gaussian", kernel_space="raw", confidence_scaling=True
    ),
    GPCacheClassifier.from_options(likelihood="gaussian", gain="auto", criterion="accuracy"),
    GPCacheClassifier.from_options(likelihood="gaussian", precision="nystrom", n_landmarks=10),
    GPCacheClassifier.from_options(likelihood="gaussian", precision="class_mean"),
    TipAdapterClassifier(),
    GPCacheFClassifier.from_options(epochs=2),  # a batch holds all shots
]


def _name(estimator):
    options = estimator._options()
    kind = type(estimator).__name__
    return f"{kind}-{options.likelihood}-{options.kernel_space}-{options.criterion}"


@pytest.mark.parametrize("estimator", CHOSEN, ids=_name)
@pytest.mark.parametrize("with_text", [True, False])
def test_the_order_of_the_rows_changes_nothing(estimator, with_text, tools):
    problem = tools.make_problem(shots=(6, 4, 5, 2, 1), seed=3)
    estimator.set_params(text_prior=problem.prior if with_text else None, **tools.float64)
    order = np.random.default_rng(1).permutation(len(problem.X))
    first = estimator.fit(problem.X, problem.y)
    names = ["alpha_", "beta_", "noise_", "eta_", "gain_", "temperature_"]
    rel, close = 1e-5, {"rtol": 1e-5, "atol": 1e-6}
    if getattr(estimator, "likelihood", "") == "softmax":
        names += ["tau_", "shrinkage_", "discriminant_"]
        # The search sums in float32, and its solver stops early.
        rel, close = 1e-3, {"rtol": 1e-3, "atol": 1e-3}
    numbers = {name: getattr(first, name) for name in names}
    logits, held_out = first.logits(problem.queries), first.loo_
    second = estimator.fit(problem.X[order], problem.y[order])
    for name, value in numbers.items():
        assert getattr(second, name) == pytest.approx(value, rel=rel), name
    np.testing.assert_allclose(second.logits(problem.queries), logits, **close)
    np.testing.assert_array_equal(second.loo_.counted, held_out.counted[order])
    np.testing.assert_allclose(second.loo_.logits, held_out.logits[order], **close)


@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_other_names_for_the_classes_change_the_names_alone(space, likelihood, problem, tools):
    other = dict(zip(["ash", "elm", "fir", "oak", "yew"], [7, 3, 9, 1, 5], strict=True))
    order = np.argsort([7, 3, 9, 1, 5])
    prior = TextPrior(
        [other[name] for name in problem.prior.class_names], problem.prior.vectors, 12.0
    )
    options = {"kernel_space": space, "likelihood": likelihood, **tools.float64}
    trees = GPCacheClassifier.from_options(text_prior=problem.prior, **options).fit(
        problem.X, problem.y
    )
    numbers = GPCacheClassifier.from_options(text_prior=prior, **options)
    numbers.fit(problem.X, [other[name] for name in problem.y])
    assert numbers.classes_.tolist() == [1, 3, 5, 7, 9]
    # With another order of the columns the search of the softmax likelihood rounds otherwise.
    close = {"rtol": 1e-6} if likelihood == "gaussian" else {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose(
        numbers.logits(problem.queries), trees.logits(problem.queries)[:, order], **close
    )
    predicted = [other[name] for name in trees.predict(problem.queries)]
    assert numbers.predict(problem.queries).tolist() == predicted


@pytest.mark.parametrize("factor", [1e-200, 1e-6, 1e6, 1e200])
def test_the_length_of_a_row_means_nothing(factor, likelihood, problem, tools):
    lengths = np.random.default_rng(0).uniform(0.1, 10, size=(len(problem.X), 1))
    options = {"text_prior": problem.prior, "likelihood": likelihood, **tools.float64}
    one = GPCacheClassifier.from_options(**options)
    one.fit(problem.X, problem.y)
    other = GPCacheClassifier.from_options(**options)
    other.fit(factor * lengths * problem.X, problem.y)
    np.testing.assert_allclose(
        other.logits(factor * problem.queries), one.logits(problem.queries), rtol=1e-6, atol=1e-7
    )


def test_a_turn_of_the_space_changes_nothing(precision, problem, tools):
    """All is made of inner products; random frequencies apart, which a turn draws anew."""
    turn, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(12, 12)))
    turned = TextPrior(problem.prior.class_names, problem.prior.vectors @ turn, 12.0)
    if precision.get("precision") in ("fourier", "nystrom"):
        pytest.skip("frequencies and landmarks are drawn by content")
    one = tools.gp_cache(problem, **precision).fit(problem.X, problem.y)
    other = tools.gp_cache(text_prior=turned, **precision).fit(problem.X @ turn, problem.y)
    np.testing.assert_allclose(
        other.logits(problem.queries @ turn), one.logits(problem.queries), rtol=1e-8
    )


@pytest.mark.parametrize("options", [{}, {"likelihood": "gaussian"}, None])
def test_a_few_rows_of_a_few_classes_do_not_speak_for_all(options):
    """18 classes with one shot and one with two: two held-out rows would decide everything."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(19, 64))
    labels = np.append(np.arange(19), 18)
    estimator = (
        TipAdapterClassifier() if options is None else GPCacheClassifier.from_options(**options)
    )
    model = clone(estimator).fit(centres[labels] + 0.5 * generator.normal(size=(20, 64)), labels)
    alone = clone(estimator).fit(centres + 0.5 * generator.normal(size=(19, 64)), np.arange(19))
    assert (model.alpha_, model.beta_, model.temperature_) == (alone.alpha_, alone.beta_, 1.0)
    tested = np.repeat(np.arange(19), 10)
    queries = centres[tested] + 0.5 * generator.normal(size=(190, 64))
    assert model.score(queries, tested) > 0.95
