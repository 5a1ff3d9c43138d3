"""What is contrasted, against full sorts; the loss against the printed formula, as loops."""

import numpy as np
import pytest
import torch

from gpcache.errors import DataError
from gpcache.similarity import ProjectionOptions, contrastive_loss, learn_projection
from gpcache.similarity.contrast import cosines_of_sets, nearest_sets, random_sets

TEMPERATURE = 0.3


def looped(views, originals, sets, matrix, temperature=TEMPERATURE):
    """The loss and its gradient by the matrix A of φ(x) = A x / |A x|, term by term."""
    loss, gradient = 0.0, np.zeros_like(matrix)
    for members in sets:
        for i in members:
            g, ag = views[i], matrix @ views[i]
            cosines = []
            for j in members:
                af = matrix @ originals[j]
                cosines.append(ag @ af / np.linalg.norm(ag) / np.linalg.norm(af))
            weights = np.exp(np.array(cosines) / temperature)
            weights /= weights.sum()
            own = list(members).index(i)
            loss -= np.log(weights[own]) / len(sets)
            for j, z, weight in zip(members, cosines, weights, strict=True):
                f, af = originals[j], matrix @ originals[j]
                slope = (weight - (i == j)) / temperature / len(sets)
                ug, uf = ag / np.linalg.norm(ag), af / np.linalg.norm(af)
                gradient += slope * np.outer((uf - z * ug) / np.linalg.norm(ag), g)
                gradient += slope * np.outer((ug - z * uf) / np.linalg.norm(af), f)
    return loss, gradient


@pytest.fixture
def problem():
    """Originals and views (12, 5), and three sets of four rows."""
    generator = np.random.default_rng(0)
    originals, views = generator.normal(size=(2, 12, 5))
    sets = np.stack([generator.permutation(12)[:4] for _ in range(3)])
    return originals, views, sets


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_loss_and_gradient_are_those_of_the_loops(problem, reduction):
    originals, views, sets = problem
    start = np.eye(5) + 0.3 * np.random.default_rng(1).normal(size=(5, 5))
    matrix = torch.tensor(start, requires_grad=True)

    def calibrated(rows):
        return torch.nn.functional.normalize(torch.tensor(rows)[sets] @ matrix.mT, dim=-1)

    cosines = calibrated(views) @ calibrated(originals).mT
    loss = contrastive_loss(cosines, temperature=TEMPERATURE, reduction=reduction)
    loss.backward()
    expected, gradient = looped(views, originals, sets, start)
    share = 1 if reduction == "sum" else 4
    assert loss.item() == pytest.approx(expected / share, rel=1e-12)
    np.testing.assert_allclose(matrix.grad.numpy(), gradient / share, rtol=0, atol=1e-12)


def test_the_first_step_of_learning_goes_down_that_gradient():
    """From P = 0 a step of SGD is −rate · gradient, whichever images are neighbours."""
    generator = np.random.default_rng(2)
    originals, views = generator.normal(size=(2, 10, 6))
    originals /= np.linalg.norm(originals, axis=1, keepdims=True)
    views /= np.linalg.norm(views, axis=1, keepdims=True)
    options = ProjectionOptions(
        neighbours=4, batch_size=10, epochs=1, learning_rate=0.5, temperature=TEMPERATURE
    )
    projection, (loss,) = learn_projection(originals, views, options=options, device="cpu")
    sets = np.argsort(-(originals @ originals.T), axis=1)[:, :4]
    expected, gradient = looped(views, originals, sets, np.eye(6))
    np.testing.assert_allclose(projection.matrix.numpy(), -0.5 * gradient, rtol=0, atol=2e-5)
    assert loss == pytest.approx(expected / 4, rel=1e-5)


@pytest.mark.parametrize(("rows", "size"), [(9, 5), (40, 3)])
def test_cosines_of_sets_are_those_of_their_rows(rows, size):
    """With few rows, whose pairs are taken once for all sets, and with many."""
    generator = torch.Generator().manual_seed(0)
    views, originals = torch.randn(2, rows, 4, generator=generator, dtype=torch.float64)
    sets = torch.stack([torch.randperm(rows, generator=generator)[:size] for _ in range(6)])
    views.requires_grad_()
    found = cosines_of_sets(views, originals, sets)
    expected = views[sets] @ originals[sets].mT
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((one * weights).sum(), views)[0] for one in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_matched_views_cost_less_than_mismatched_ones():
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(2, 6, 8, generator=generator), dim=-1)
    matched = contrastive_loss(rows @ rows.mT, temperature=0.1)
    assert matched < contrastive_loss(rows.roll(1, 1) @ rows.mT, temperature=0.1)


def test_views_that_tell_nothing_cost_the_logarithm_of_the_set():
    alike = torch.ones(3, 7, 7, dtype=torch.float64)
    loss = contrastive_loss(alike, temperature=0.1, reduction="mean")
    assert loss.item() == pytest.approx(np.log(7))


def test_nearest_sets_are_those_of_a_full_sort():
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = np.argsort(-(unit @ unit.T), axis=1)[:, :7]
    found = nearest_sets(torch.from_numpy(rows), 7)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(found[:, 0].numpy(), np.arange(60))  # itself comes first


def test_random_sets_hold_the_anchor_once_and_others_alike():
    generator = np.random.default_rng(0)
    anchors = torch.arange(11)
    counts = np.zeros((11, 11))
    for _ in range(600):
        sets = random_sets(anchors, 11, 4, generator).numpy()
        assert (sets[:, 0] == np.arange(11)).all()
        for anchor, members in enumerate(sets):
            assert len(set(members)) == 4
            counts[anchor, members] += 1
    others = counts[~np.eye(11, dtype=bool)]
    # 600 draws of 3 out of 10: 180 times each, with a deviation of 11.
    assert others.min() > 125
    assert others.max() < 235


def test_too_few_images_are_one_sentence():
    with pytest.raises(DataError, match=r"neighbours=5 needs as many images, but there are 3"):
        nearest_sets(torch.eye(3), 5)
    with pytest.raises(DataError, match=r"lower neighbours"):
        random_sets(torch.arange(3), 3, 5, np.random.default_rng(0))
