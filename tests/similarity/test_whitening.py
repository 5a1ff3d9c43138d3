"""The whitening of views in closed form, against its definition and the estimators' whitening."""

import numpy as np
import pytest
import torch

from gpcache import DataError
from gpcache.gp.feature_maps import KernelSpace
from gpcache.similarity import whitening_projection


def test_it_is_the_estimators_whitening_with_images_as_classes(noisy_directions):
    """Up to a rotation and a factor, neither of which a cosine sees."""
    original, views, _ = noisy_directions
    rows = torch.from_numpy(np.concatenate([original[:, None], views], 1)).flatten(0, 1)
    images = torch.arange(len(original)).repeat_interleave(3)
    theirs = KernelSpace("whitened", shrinkage=4.0).fit(rows, images).matrix
    full = whitening_projection(original, views, device="cpu").matrix.double() + torch.eye(32)
    expected = theirs @ theirs.mT
    found = full.mT @ full
    torch.testing.assert_close(
        found / found.trace(), expected / expected.trace(), rtol=0, atol=1e-7
    )


def test_only_directions_in_which_views_differ_are_shortened():
    """Here they differ in the first two of five columns, in a plane that holds every row."""
    angles = np.linspace(0, 1, 9)
    original = np.stack([np.cos(angles), np.sin(angles), *np.zeros((3, 9))], 1)
    turned = np.stack([np.cos(angles + 0.2), np.sin(angles + 0.2), *np.zeros((3, 9))], 1)
    full = whitening_projection(original, turned, device="cpu").matrix + torch.eye(5)
    torch.testing.assert_close(full[2:], torch.eye(5)[2:])
    assert torch.linalg.matrix_norm(full[:2, :2], 2) < 0.95


def test_it_finds_the_directions_that_views_share(noisy_directions, nearest_accuracy):
    original, views, classes = noisy_directions
    projection = whitening_projection(original, views, device="cpu")
    lengths = (projection.matrix + torch.eye(32)).norm(dim=0)
    assert lengths[:8].min() > lengths[8:].max()
    rows = projection(torch.from_numpy(original))
    assert nearest_accuracy(rows, classes) > nearest_accuracy(original, classes) + 0.1


def test_bad_input_is_one_sentence(noisy_directions):
    original, views, _ = noisy_directions
    with pytest.raises(DataError, match="shrinkage must be a number above zero"):
        whitening_projection(original, views, shrinkage=0)
    with pytest.raises(DataError, match="nothing can be learned"):
        whitening_projection(np.eye(3), np.eye(3), device="cpu")
