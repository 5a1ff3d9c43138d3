"""GPCache's formula in every reading: logits = gain · s f W + α · k G⁻¹ V / variance^η."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from gpcache import GPCacheClassifier

CLOSE = {"rtol": 1e-8, "atol": 1e-8}


@pytest.fixture
def matrix():
    return 0.4 * np.random.default_rng(5).normal(size=(12, 12))


@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
@pytest.mark.parametrize("prior", ["zero_shot", "residual"])
@pytest.mark.parametrize("eta", [0.0, 0.5, 2.0])
def test_logits_are_the_formula(space, prior, eta, problem, tools):
    estimator = tools.gp_cache(
        problem, kernel_space=space, prior=prior, confidence_scaling=True, eta=eta
    )
    found = estimator.fit(problem.X, problem.y).logits(problem.queries)
    expected = tools.gp_logits(
        problem, problem.queries, **tools.numbers, eta=eta, prior=prior, space=space
    )
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
def test_without_text_the_cache_speaks_alone(space, problem, tools):
    estimator = tools.gp_cache(kernel_space=space, confidence_scaling=True, eta=1.0)
    found = estimator.fit(problem.X, problem.y).logits(problem.queries)
    expected = tools.gp_logits(
        problem, problem.queries, **tools.numbers, eta=1.0, space=space, with_text=False
    )
    assert estimator.classes_.tolist() == ["ash", "elm", "fir", "oak"]
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
def test_a_projection_comes_before_the_space_and_leaves_the_text_alone(
    space, problem, tools, matrix
):
    estimator = tools.gp_cache(problem, kernel_space=space, projection=matrix)
    found = estimator.fit(problem.X, problem.y).logits(problem.queries)
    expected = tools.gp_logits(
        problem, problem.queries, **tools.numbers, space=space, projection=matrix
    )
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_a_projection_may_be_a_function(problem, tools, matrix):
    def projection(rows):
        return torch.nn.functional.normalize(rows @ torch.tensor(matrix).mT + rows)

    by_function = tools.gp_cache(problem, projection=projection)
    by_matrix = tools.gp_cache(problem, projection=matrix)
    np.testing.assert_allclose(
        by_function.fit(problem.X, problem.y).logits(problem.queries),
        by_matrix.fit(problem.X, problem.y).logits(problem.queries),
        **CLOSE,
    )


@pytest.mark.parametrize("wrap", [torch.tensor, lambda m: torch.nn.Parameter(torch.tensor(m))])
def test_a_projection_may_be_a_tensor(wrap, problem, tools, matrix):
    """Learned elsewhere, it may still carry a gradient."""
    by_tensor = tools.gp_cache(problem, projection=wrap(matrix)).fit(problem.X, problem.y)
    by_array = tools.gp_cache(problem, projection=matrix).fit(problem.X, problem.y)
    np.testing.assert_allclose(
        by_tensor.logits(problem.queries), by_array.logits(problem.queries), **CLOSE
    )


@pytest.mark.parametrize("name", ["grouped", "nystrom", "fourier"])
def test_the_seed_decides_what_is_drawn(name, tools):
    """Groups, landmarks or frequencies; with more of them it would matter less."""
    problem = tools.make_problem(shots=(4, 4, 4, 4, 4))
    options = {"precision": name, "n_groups": 2, "n_landmarks": 5, "n_features": 16}

    def logits(seed):
        estimator = tools.gp_cache(problem, random_state=seed, **options)
        return estimator.fit(problem.X, problem.y).logits(problem.queries)

    np.testing.assert_array_equal(logits(1), logits(1))
    assert max(np.abs(logits(1) - logits(seed)).max() for seed in (2, 3, 4)) > 1e-3


def test_shrinkage_is_that_of_the_whitening(problem, tools):
    estimator = tools.gp_cache(kernel_space="whitened", shrinkage=0.3)
    found = estimator.fit(problem.X, problem.y).posterior(problem.queries)[0]
    phi = tools.feature_map("whitened", problem.X, problem.y, shrinkage=0.3)
    values = tools.one_hot(problem.y, np.unique(problem.y))
    expected, _ = tools.posterior(phi(problem.X), values, phi(problem.queries), beta=2.5, noise=0.2)
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_posterior_is_mean_and_variance_of_the_cache(problem, tools):
    estimator = tools.gp_cache(problem, prior="zero_shot", kernel_space="raw")
    mean, variance = estimator.fit(problem.X, problem.y).posterior(problem.queries)
    values = tools.one_hot(problem.y, sorted(problem.prior.class_names))
    expected = tools.posterior(
        tools.unit(problem.X), values, tools.unit(problem.queries), beta=2.5, noise=0.2
    )
    np.testing.assert_allclose(mean, expected[0], **CLOSE)
    np.testing.assert_allclose(variance, expected[1], **CLOSE)
    assert ((variance > 0) & (variance <= 1)).all()


def test_shapes_of_the_posterior(precision, problem, tools):
    estimator = tools.gp_cache(problem, **precision).fit(problem.X, problem.y)
    mean, variance = estimator.posterior(problem.queries)
    assert mean.shape == (9, 5)
    assert variance.shape == ((9, 2) if precision.get("precision") == "grouped" else (9,))
    assert mean.dtype == variance.dtype == np.float64


@pytest.mark.parametrize("n_groups", [2, 3, 99])
def test_each_group_has_its_own_process_and_its_own_divisor(n_groups, problem, tools):
    options = {"kernel_space": "raw", "confidence_scaling": True, "eta": 1.5}
    estimator = tools.gp_cache(problem, precision="grouped", n_groups=n_groups, **options)
    estimator.fit(problem.X, problem.y)
    query, classes = problem.queries[:1], estimator.classes_
    text = 0.8 * tools.zero_shot(problem.prior, problem.X)
    values = tools.residual(problem.y, classes, text)
    expected = 0.8 * tools.zero_shot(problem.prior, problem.queries)
    sizes = []
    for column, name in enumerate(classes):
        # The residual prior gives every shot something to say of every class, so the shots that
        # say something are those of the class's group.
        told = estimator.explain(query, labels=[name], top=None)
        rows = told.shots[0][told.shares[0] != 0]
        sizes.append(len(rows))
        assert set(problem.y[rows]).isdisjoint(np.delete(problem.y, rows))
        if len(rows):
            mean, variance = tools.posterior(
                tools.unit(problem.X[rows]),
                values[rows, column],
                tools.unit(problem.queries),
                beta=2.5,
                noise=0.2,
            )
            expected[:, column] += 3.0 * mean / variance**1.5
    assert estimator.posterior(query)[1].shape == (1, min(n_groups, 5))
    assert max(sizes) < len(problem.X)
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, **CLOSE)


def test_class_mean_has_one_key_a_class(problem, tools):
    options = {"kernel_space": "raw", "confidence_scaling": True, "eta": 0.5}
    estimator = tools.gp_cache(precision="class_mean", **options).fit(problem.X, problem.y)
    classes = estimator.classes_
    keys = np.array([tools.unit(problem.X)[problem.y == name].mean(0) for name in classes])
    mean, variance = tools.posterior(
        tools.unit(keys), np.eye(len(classes)), tools.unit(problem.queries), beta=2.5, noise=0.2
    )
    expected = 3.0 * mean / np.sqrt(variance)[:, None]
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, **CLOSE)


def test_the_ablation_is_three_constructor_calls(problem, tools):
    """B, B+W, B+W+C of the paper: plain sum, precision weighting, confidence scaling."""
    numbers = {"alpha": 3.0, "beta": 2.5, "noise": 0.2, "eta": 1.5, "gain": 1.0}
    shared = {"text_prior": problem.prior, "kernel_space": "raw", "prior": "zero_shot"}
    shared |= {"likelihood": "gaussian"} | numbers | tools.float64
    calls = {
        "B": GPCacheClassifier.from_options(precision_weighting=False, **shared),
        "B+W": GPCacheClassifier.from_options(**shared),
        "B+W+C": GPCacheClassifier.from_options(confidence_scaling=True, **shared),
    }
    keys, queries = tools.unit(problem.X), tools.unit(problem.queries)
    values = tools.one_hot(problem.y, sorted(problem.prior.class_names))
    mean, variance = tools.posterior(keys, values, queries, beta=2.5, noise=0.2)
    caches = {
        "B": tools.kernel(queries, keys, 2.5) @ values,
        "B+W": mean,
        "B+W+C": mean / variance[:, None] ** 1.5,
    }
    for name, estimator in calls.items():
        found = estimator.fit(problem.X, problem.y).logits(problem.queries)
        expected = tools.zero_shot(problem.prior, problem.queries) + 3.0 * caches[name]
        np.testing.assert_allclose(found, expected, err_msg=name, **CLOSE)
    assert [calls[name].eta_ for name in calls] == [0.0, 0.0, 1.5]


@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_float32_agrees_to_three_digits(space, precision, problem, tools):
    """The condition of G is about 14/0.2, that of the whitening a little more."""
    options = precision | {"kernel_space": space}
    single = tools.gp_cache(problem, dtype="float32", **options).fit(problem.X, problem.y)
    double = tools.gp_cache(problem, **options).fit(problem.X, problem.y)
    found, expected = single.logits(problem.queries), double.logits(problem.queries)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert np.abs(found - expected).max() > 0  # float32 was used


def test_the_paper_to_the_letter(problem):
    """METHODS §4: raw space, labels as values, η on, gain 1, accuracy on a validation set."""
    paper = GPCacheClassifier.paper(problem.prior, n_folds=5)
    options = asdict(paper._options()) | {"text_prior": paper.text_prior}
    expected = {
        "text_prior": problem.prior,
        "likelihood": "gaussian",
        "kernel_space": "raw",
        "prior": "zero_shot",
        "confidence_scaling": True,
        "precision_weighting": True,
        "precision": "exact",
        "gain": 1.0,
        "criterion": "accuracy",
        "selection": "validation",
        "strategy": "grid",
        "n_folds": 5,
    }
    expected |= dict.fromkeys(("alpha", "beta", "noise", "eta"), "auto")
    assert {name: options[name] for name in expected} == expected
