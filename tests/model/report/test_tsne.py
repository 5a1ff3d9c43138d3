"""Features on a plane: what is far apart stays apart, and nothing is left to chance."""

import warnings

import numpy as np
import pytest

from gpcache.model.report.tsne import embed_2d


def clusters(n, width=30, distance=12.0):
    generator = np.random.default_rng(0)
    labels = np.arange(n) % 3
    return distance * generator.normal(size=(3, width))[labels] + generator.normal(
        size=(n, width)
    ), labels


@pytest.mark.parametrize(("n", "method"), [(9, "PCA"), (60, "t-SNE"), (2001, "PCA")])
def test_neighbours_are_of_the_same_class(n, method):
    rows, labels = clusters(n)
    points, name = embed_2d(rows)
    assert name == method
    assert points.shape == (n, 2)
    distances = np.linalg.norm(points[:, None] - points[None, :200], axis=2)
    distances[np.arange(min(n, 200)), np.arange(min(n, 200))] = np.inf
    assert (labels[distances.argmin(1)] == labels).all()


def test_the_same_rows_give_the_same_picture():
    rows, _ = clusters(40)
    np.testing.assert_array_equal(embed_2d(rows).points, embed_2d(rows.copy()).points)


@pytest.mark.parametrize("shape", [(1, 5), (2, 5), (20, 1), (20, 2), (300, 3)])
def test_small_shapes(shape):
    points, _ = embed_2d(np.random.default_rng(0).normal(size=shape))
    assert points.shape == (shape[0], 2)
    assert np.isfinite(points).all()


@pytest.mark.parametrize("n", [1, 3, 50])
def test_identical_rows_are_one_point_and_no_warning(n):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points, _ = embed_2d(np.full((n, 8), 0.3))
    np.testing.assert_allclose(points, 0, atol=1e-6)
