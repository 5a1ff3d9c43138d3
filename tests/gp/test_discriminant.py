"""The linear discriminant: log densities of one shrunk covariance, as scikit-learn has them."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap, KernelSpace, ResidualProjection, within_class
from gpcache.methods.gda import GaussianScores

SHRINKAGES = (0.01, 1.0, 30.0)


@pytest.fixture(params=[6, 80], ids=["many rows", "wide rows"])
def shots(request, tools, device, dtype):
    """Unequal shots of every class; a whitening takes another way where rows are few and wide."""
    return tools.make_problem(
        shots=(9, 2, 4, 7, 5, 3), width=request.param, device=device, dtype=dtype
    )


@pytest.fixture(params=SHRINKAGES)
def shrinkage(request):
    return request.param


def scores(problem, feature_map):
    found = Discriminant.of(problem.keys, problem.labels, problem.n_classes, feature_map)
    return found.scores(feature_map.unscaled(problem.queries))


def whitened(problem, shrinkage):
    return KernelSpace("whitened", shrinkage).fit(problem.keys, problem.labels)


def covariance(problem, shrinkage, tools):
    """S + λ·tr(S)/(n − 1)·I, S the scatter within classes, class by class."""
    keys, labels = tools.numpy64(problem.keys), problem.labels.cpu().numpy()
    scatter = sum(
        (keys[labels == one] - keys[labels == one].mean(0)).T
        @ (keys[labels == one] - keys[labels == one].mean(0))
        for one in np.unique(labels)
    )
    return scatter + shrinkage * np.trace(scatter) / (len(keys) - 1) * np.eye(len(scatter))


def without_row_constants(values):
    """Softmax knows no constant of a row."""
    values = np.asarray(values, dtype=np.float64)
    return values - values.mean(1, keepdims=True)


def assert_same_but_for_rows(found, expected, dtype):
    """Relative to the largest: 1e-9 in float64; float32 loses digits in the whitening."""
    expected = without_row_constants(expected)
    allowed = {torch.float64: 1e-9, torch.float32: 1e-3}[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(without_row_constants(found), expected, rtol=0, atol=allowed)


def test_scores_are_log_densities_of_one_shrunk_covariance(shots, shrinkage, dtype, tools):
    """−½ (x − μ)ᵀ Σ⁻¹ (x − μ) of every class, but for a constant of each row."""
    keys, queries = tools.numpy64(shots.keys), tools.numpy64(shots.queries)
    labels = shots.labels.cpu().numpy()
    means = np.array([keys[labels == one].mean(0) for one in range(shots.n_classes)])
    inverse = np.linalg.inv(covariance(shots, shrinkage, tools))
    away = queries[:, None, :] - means[None]
    expected = -0.5 * np.einsum("mci,ij,mcj->mc", away, inverse, away)
    found = tools.numpy64(scores(shots, whitened(shots, shrinkage)))
    assert_same_but_for_rows(found, expected, dtype)


def test_it_is_scikit_learns_discriminant_analysis(shots, shrinkage, dtype, tools):
    """With equal priors and the same covariance."""

    class Shrunk:
        def fit(self, _):
            self.covariance_ = covariance(shots, shrinkage, tools)
            return self

    c = shots.n_classes
    model = LinearDiscriminantAnalysis(
        solver="lsqr", priors=np.full(c, 1 / c), covariance_estimator=Shrunk()
    ).fit(tools.numpy64(shots.keys), shots.labels.cpu().numpy())
    expected = model.decision_function(tools.numpy64(shots.queries))
    found = tools.numpy64(scores(shots, whitened(shots, shrinkage)))
    assert_same_but_for_rows(found, expected, dtype)


def test_at_shrinkage_one_it_is_gda(shots, dtype, tools):
    """GDA's precision is d times ours: the same ranking of classes, and more."""
    gda = GaussianScores.of(shots.keys, shots.labels, shots.n_classes)
    expected = tools.numpy64(gda.scores(shots.queries, {})[0])
    found = tools.numpy64(scores(shots, whitened(shots, 1.0)))
    assert_same_but_for_rows(shots.keys.shape[1] * found, expected, dtype)
    np.testing.assert_array_equal(found.argsort(1), expected.argsort(1))


@pytest.mark.parametrize("space", ["raw", "centred"])
def test_without_whitening_the_nearest_mean_wins(space, shots, dtype, tools):
    feature_map = KernelSpace(space).fit(shots.keys, shots.labels)
    keys, queries = tools.numpy64(shots.keys), tools.numpy64(shots.queries)
    labels = shots.labels.cpu().numpy()
    means = np.array([keys[labels == one].mean(0) for one in range(shots.n_classes)])
    expected = -0.5 * np.sum((queries[:, None] - means[None]) ** 2, axis=-1)
    assert_same_but_for_rows(tools.numpy64(scores(shots, feature_map)), expected, dtype)


def test_a_strong_shrinkage_leaves_the_nearest_mean(shots, tools):
    """λ → ∞: all directions count alike, and scores times λ·spread are those without whitening."""
    strength = 1e6
    centred = KernelSpace("centred").fit(shots.keys, shots.labels)
    plain = tools.numpy64(scores(shots, centred))
    spread = within_class(shots.keys, shots.labels).square().sum() / (len(shots.keys) - 1)
    found = tools.numpy64(scores(shots, whitened(shots, strength))) * strength * float(spread)
    np.testing.assert_allclose(
        without_row_constants(found), without_row_constants(plain), rtol=0, atol=1e-3
    )


def test_a_class_mean_belongs_to_its_class(shots, shrinkage):
    feature_map = whitened(shots, shrinkage)
    found = Discriminant.of(shots.keys, shots.labels, shots.n_classes, feature_map)
    assert found.scores(found.means).argmax(1).tolist() == list(range(shots.n_classes))


def test_means_are_those_of_the_mapped_shots(shots, shrinkage, device, dtype, tools):
    """Behind a projection, too, where mapping the mean of the features is something else."""
    width = shots.keys.shape[1]
    matrix = torch.randn(width, width, generator=torch.Generator().manual_seed(3))
    space = KernelSpace("whitened", shrinkage, ResidualProjection(matrix.to(device, dtype)))
    for feature_map in (space.fit(shots.keys, shots.labels), whitened(shots, shrinkage)):
        found = Discriminant.of(shots.keys, shots.labels, shots.n_classes, feature_map)
        rows = feature_map.unscaled(shots.keys)
        expected = torch.stack([rows[shots.labels == one].mean(0) for one in range(6)])
        scale = float(expected.abs().max())
        tools.close(found.means / scale, expected / scale)
        tools.close(found.halves / scale**2, 0.5 * (expected / scale).square().sum(1))


def test_rows_may_count_less(shots, tools):
    """A row that counts twice is two rows; one that counts nothing is none."""
    feature_map = whitened(shots, 1.0)
    counts = torch.randint(0, 3, (len(shots.keys),), generator=torch.Generator().manual_seed(8))
    counts = counts.to(shots.labels.device)
    rows = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    for halved in (1.0, 0.5):
        weights = halved * counts.to(shots.keys)
        found = Discriminant.of(shots.keys, shots.labels, 6, feature_map, weights)
        expected = Discriminant.of(shots.keys[rows], shots.labels[rows], 6, feature_map)
        scale = float(expected.means.abs().max())
        tools.close(found.means / scale, expected.means / scale)


def test_a_class_without_a_shot_scores_zero(device, tools):
    problem = tools.make_problem(device=device)  # class 3 has none
    found = scores(problem, whitened(problem, 1.0))
    assert (found[:, 3] == 0).all()
    assert (found[:, [0, 1, 2, 4, 5, 6]] != 0).all()
    others = problem.labels.clone()
    others[others > 3] -= 1
    alone = Discriminant.of(problem.keys, others, 6, whitened(problem, 1.0))
    expected = alone.scores(whitened(problem, 1.0).unscaled(problem.queries))
    tools.close(found[:, [0, 1, 2, 4, 5, 6]], expected)


def test_order_of_the_shots_does_not_matter(shots, tools):
    order = torch.randperm(len(shots.keys), generator=torch.Generator().manual_seed(1))
    moved = shots.rows(order.to(shots.keys.device))
    found, again = (tools.numpy64(scores(one, whitened(one, 1.0))) for one in (shots, moved))
    dtype = shots.keys.dtype
    assert_same_but_for_rows(again, found, dtype)


def test_one_shot_a_class_has_no_scatter(device, tools):
    """Then the map only centres, and the nearest shot wins."""
    problem = tools.make_problem(shots=(1,) * 5, device=device)
    found = scores(problem, whitened(problem, 1.0))
    nearest = problem.labels[(problem.queries @ problem.keys.mT).argmax(1)]
    assert torch.equal(found.argmax(1), nearest)


def test_scores_keep_dtype_and_device(shots):
    found = scores(shots, FeatureMap())
    assert (found.dtype, found.device) == (shots.keys.dtype, shots.keys.device)
    assert found.shape == (len(shots.queries), shots.n_classes)
