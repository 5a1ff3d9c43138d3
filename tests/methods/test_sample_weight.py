"""`sample_weight`: how often a shot counts, in the likelihood and in the space of the kernel."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpcache import DataError, GPCacheClassifier, ProtocolError
from gpcache.gp.feature_maps import KernelSpace
from gpcache.gp.whitened_products import Differences, LabelledRows
from gpcache.methods import restore, state_of
from gpcache.methods.cache import softmax

# Of logits whose coefficients were solved to 5e-7.
CLOSE = {"rtol": 0, "atol": 2e-5}
SHOTS = (6, 4, 5, 4, 3)


@pytest.fixture(scope="module")
def problem(tools):
    return tools.make_problem(shots=SHOTS)


@pytest.fixture(scope="module")
def counts(problem):
    """How often each shot counts: one to three times."""
    return np.random.default_rng(3).integers(1, 4, len(problem.y))


def estimator(problem, tools, **options):
    return GPCacheClassifier.from_options(text_prior=problem.prior, **(tools.float64 | options))


def logits(model, problem):
    return model.decision_function(problem.queries)


@pytest.mark.parametrize("name", ["centred", "whitened", "decorrelated"])
@pytest.mark.parametrize("diagonal", [0.0, 0.5])
@pytest.mark.parametrize("width", [6, 60])
def test_the_space_is_that_of_repeated_rows(name, diagonal, width):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, width, generator=generator, dtype=torch.float64)
    labels, counts = torch.arange(20) % 4, 1 + torch.arange(20) % 3
    space = KernelSpace(name, 0.7, diagonal=diagonal)
    weighted = space.fit(rows, labels, counts.double())
    repeated = space.fit(rows.repeat_interleave(counts, 0), labels.repeat_interleave(counts))
    queries = torch.randn(7, width, generator=generator, dtype=torch.float64)
    here, there = (one.unscaled(torch.cat([rows, queries])) for one in (weighted, repeated))
    torch.testing.assert_close(here @ here.mT, there @ there.mT)


@pytest.mark.parametrize("diagonal", [0.0, 0.5])
def test_products_are_those_of_the_weighted_space(diagonal):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(26, 60, generator=generator, dtype=torch.float64)
    labels = torch.arange(20) % 4
    weights = 3 * torch.rand(20, generator=generator, dtype=torch.float64)
    space = KernelSpace("whitened", 0.7, diagonal=diagonal)
    weights[3] = 0
    known = LabelledRows(rows[:20], labels, rows[20:], weights)
    products = Differences.of(space, [known], 5).products(diagonal)
    own, cross, scores = (part[0] for part in products.at(0.7, torch.float64))
    feature_map = space.fit(rows[:20], labels, weights)
    unit, z = feature_map(rows), feature_map.unscaled(rows)
    torch.testing.assert_close(own, unit[:20] @ unit[:20].mT)
    torch.testing.assert_close(cross, unit[20:] @ unit[:20].mT)
    means = torch.stack(
        [(weights * (labels == k)) @ z[:20] / weights[labels == k].sum() for k in range(4)]
    )
    expected = z[20:] @ means.mT - 0.5 * means.square().sum(1)
    torch.testing.assert_close(scores[:, :4], expected)


def test_a_weight_is_how_often_a_shot_was_given(problem, counts, tools):
    """At equal hyper-parameters: the folds that choose them hold the copies of a shot together."""
    model = estimator(problem, tools, discriminant=0.4).fit(problem.X, problem.y, counts)
    fitted = model.fitted_
    assert fitted.choice.discriminant > 0
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    repeated = replace(fitted.shots, sample_weight=None)[rows]
    again = softmax.build(fitted.recipe, repeated, fitted.text, fitted.choice)
    unit = problem.queries / np.linalg.norm(problem.queries, axis=1, keepdims=True)
    np.testing.assert_allclose(logits(model, problem), again.logits(torch.tensor(unit)), **CLOSE)


def test_weights_of_one_change_nothing(problem, tools):
    plain = estimator(problem, tools).fit(problem.X, problem.y)
    ones = estimator(problem, tools).fit(problem.X, problem.y, sample_weight=[1] * len(problem.y))
    assert ones.search_["shrinkage"].tolist() == plain.search_["shrinkage"].tolist()
    np.testing.assert_allclose(logits(ones, problem), logits(plain, problem), **CLOSE)
    np.testing.assert_allclose(
        ones.predict_proba(problem.queries), plain.predict_proba(problem.queries), atol=1e-5
    )


def test_a_shot_of_weight_zero_is_left_out(problem, counts, tools):
    weights = np.where(np.arange(len(counts)) % 4 == 1, 0, counts)
    kept = weights > 0
    model = estimator(problem, tools).fit(problem.X, problem.y, weights)
    part = estimator(problem, tools).fit(problem.X[kept], problem.y[kept], weights[kept])
    np.testing.assert_array_equal(logits(model, problem), logits(part, problem))


def test_less_weight_is_less_influence(problem, tools):
    """A shot with another class's label counts less, the less weight it has."""
    X, y = problem.X, problem.y.copy()
    wrong = int(np.flatnonzero(y == "oak")[0])
    y[wrong] = "ash"
    given = {"alpha": 3.0, "beta": 2.5, "tau": 7.0, "shrinkage": 0.3, "gain": 0.8}
    shares = []
    for weight in (0.01, 0.3, 1.0, 3.0):
        weights = np.ones(len(y))
        weights[wrong] = weight
        model = estimator(problem, tools, **given, discriminant=0.0).fit(X, y, weights)
        place = list(model.classes_).index("ash")
        shares.append(model.predict_proba(X[[wrong]])[0, place])
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.1


def test_updates_and_files_keep_the_weights(problem, counts, tools):
    model = estimator(problem, tools).fit(problem.X, problem.y, counts)
    loaded = restore(state_of(model), device="cpu")
    np.testing.assert_allclose(logits(loaded, problem), logits(model, problem), **CLOSE)
    for one in (model, loaded):
        one.add(problem.queries[:1], ["oak"], refit=False)
        one.remove([2], refit=False)
        one.relabel([0], ["fir"], refit=False)
    np.testing.assert_allclose(logits(loaded, problem), logits(model, problem), **CLOSE)
    weights = model.fitted_.shots.sample_weight
    np.testing.assert_array_equal(weights, [*np.delete(counts, 2), 1])
    # The same optimum as from the start.
    fitted = model.fitted_
    again = softmax._solved(fitted.model, fitted.shots, None)
    unit = problem.queries / np.linalg.norm(problem.queries, axis=1, keepdims=True)
    np.testing.assert_allclose(logits(model, problem), again.logits(torch.tensor(unit)), **CLOSE)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, 2.0], r"have shape \(22,\), got \(2,\)"),
        (np.ones((22, 1)), r"have shape \(22,\), got \(22, 1\)"),
        (np.r_[np.ones(21), -1], "none of them negative"),
        (np.r_[np.ones(21), np.nan], "finite numbers"),
        (["a"] * 22, "finite numbers"),
        (np.zeros(22), "not be zero for all rows"),
    ],
)
def test_bad_weights_are_a_sentence(weights, said, problem, tools):
    with pytest.raises(DataError, match=f"^sample_weight must [^\n]*{said}[^\n]*$"):
        estimator(problem, tools).fit(problem.X, problem.y, weights)


def test_what_takes_no_weights_says_so(problem, tools):
    ones = np.ones(len(problem.y))
    with pytest.raises(ProtocolError, match="needs the softmax likelihood"):
        estimator(problem, tools, likelihood="gaussian").fit(problem.X, problem.y, ones)
    with pytest.raises(ProtocolError, match="Explicit features take no sample_weight"):
        estimator(problem, tools, precision="explicit").fit(problem.X, problem.y, ones)
