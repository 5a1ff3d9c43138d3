"""Learning a projection on constructed problems, where it is known what there is to learn."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpcache import DataError, NumericalError
from gpcache.similarity import ProjectionOptions, learn_projection
from gpcache.similarity.checkpoint import Progress
from gpcache.similarity.projection import change, identity_weights
from gpcache.similarity.train import _Learner

QUICK = {"neighbours": 30, "batch_size": 64, "epochs": 3, "reduction": "mean"}


def learned(original, views, **options):
    return learn_projection(
        original, views, options=ProjectionOptions(**QUICK | options), device="cpu"
    )


def lengths(projection):
    """How long each column's direction is after the projection."""
    return (projection.matrix + torch.eye(projection.dim)).norm(dim=0).numpy()


@pytest.mark.parametrize(
    "options", [{}, {"bottleneck": 2}, {"residual": False}, {"hard_mining": False}]
)
def test_directions_that_views_share_are_found(noisy_directions, nearest_accuracy, options):
    original, views, classes = noisy_directions
    projection, history = learned(original, views, **options)
    found = lengths(projection)
    assert found[:8].min() > found[8:].max()
    before = nearest_accuracy(original, classes)
    after = nearest_accuracy(projection(torch.from_numpy(original)), classes)
    assert after > before + 0.1
    assert history[-1] < history[0]


def test_noise_alike_in_all_directions_teaches_nothing(noisy_directions):
    generator = np.random.default_rng(0)
    original = generator.normal(size=(3000, 16))
    views = original + 0.4 * generator.normal(size=(3000, 16))
    projection, _ = learned(original, views)
    rows = torch.from_numpy(original)
    cosines = (projection(rows) * torch.nn.functional.normalize(rows)).sum(1)
    assert cosines.min() > 0.995
    informative, _ = learned(*noisy_directions[:2])
    turned = change(informative, torch.from_numpy(noisy_directions[0]))
    assert turned > 4 * change(projection, rows)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hard_mining_finds_fine_differences_that_random_images_do_not(seed, nearest_accuracy):
    """A hundred groups lie far apart, and their three kinds differ in four faint columns.

    Random images are nearly all of other groups, told apart without those columns; neighbours are
    of the same group, and only those columns tell them apart.
    """
    generator = np.random.default_rng(seed)
    group, kind = np.arange(3000) % 100, np.arange(3000) // 100 % 3
    coarse = 2 * generator.normal(size=(100, 12))[group]
    fine = 0.5 * generator.normal(size=(3, 4))[kind] + 0.3 * generator.normal(size=(3000, 4))

    def seen():
        return np.hstack([coarse, fine, 0.6 * generator.normal(size=(3000, 16))])

    original, views, classes = seen(), seen(), 3 * group + kind
    found = []
    for hard_mining in (True, False):
        projection, _ = learned(original, views, hard_mining=hard_mining)
        found.append(nearest_accuracy(projection(torch.from_numpy(original)), classes))
    unit = original / np.linalg.norm(original, axis=1, keepdims=True)
    assert found[0] > found[1] + 0.05
    assert found[0] > nearest_accuracy(unit, classes) + 0.1


def test_one_seed_gives_one_projection(noisy_directions):
    original, views, _ = noisy_directions
    first, again, other = (learned(original, views, epochs=1, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(first.matrix, again.matrix)
    assert not torch.equal(first.matrix, other.matrix)


def test_weight_decay_pulls_to_the_identity(noisy_directions):
    original, views, _ = noisy_directions
    little, much = (learned(original, views, weight_decay=decay)[0] for decay in (0.0, 5.0))
    assert much.matrix.norm() < little.matrix.norm() / 2


def test_every_view_is_shown_sooner_or_later(noisy_directions):
    """Of two views one is useless: what is learned lies between both of them alone."""
    original, views, _ = noisy_directions
    useless = np.roll(views[:, 0], 1, 0)
    both = np.stack([views[:, 0], useless], 1)
    *_, (good, mixed, bad) = zip(
        *(learned(original, v) for v in (views, both, useless)), strict=True
    )
    assert good[-1] < mixed[-1] < bad[-1]


def test_rows_projected_once_or_each_time_give_one_gradient(noisy_directions):
    """The way of a CPU and the way of a GPU."""
    original, views, _ = noisy_directions
    options = ProjectionOptions(**QUICK)
    weights = identity_weights(32, bottleneck=1, residual=True, seed=0)
    rows = torch.from_numpy(original).float(), torch.from_numpy(views).float()
    gradients = []
    for shared in (True, False):
        learner = _Learner(*rows, options, Progress(weights))
        learner.shared = shared
        loss = learner._loss(learner.sets[:64], torch.ones(len(original), dtype=torch.int64))
        gradients.append(torch.autograd.grad(loss, learner.weights)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_bad_input_is_one_sentence(noisy_directions):
    original, views, _ = noisy_directions
    with pytest.raises(DataError, match="neighbours=30 needs as many images, but there are 20"):
        learned(original[:20], views[:20])
    with pytest.raises(DataError, match="give the same images of one encoder"):
        learned(original, views[:-1])
    with pytest.raises(DataError, match="got \\(1200, 2, 32\\) and"):
        learned(views, views)
    holed = original.copy()
    holed[7] = 0
    with pytest.raises(DataError, match="Row 7 of original is all zeros"):
        learned(holed, views)
    with pytest.raises(DataError, match="views must be numbers"):
        learned(original, np.full(original.shape, "a"))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"temperature": 0}, "temperature must be a number above zero, got 0"),
        ({"neighbours": 1}, "neighbours must be a whole number of 2 or more, got 1"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number above zero"),
        ({"momentum": 1.0}, "momentum must be below one"),
        ({"reduction": "max"}, "reduction must be 'sum' or 'mean', got 'max'"),
    ],
)
def test_bad_options_are_one_sentence(wrong, sentence):
    with pytest.raises(DataError, match=sentence):
        ProjectionOptions(**wrong)


def test_a_rate_that_is_too_high_is_said(noisy_directions):
    original, views, _ = noisy_directions
    with pytest.raises(NumericalError, match="diverged in epoch 1: lower the learning rate"):
        learned(original, views, learning_rate=1e30)


def test_steps_that_make_all_images_alike_are_told():
    """A product of two factors takes longer steps than a full matrix does."""
    generator = np.random.default_rng(0)
    images = 3 * generator.normal(size=16) + generator.normal(size=(120, 16))
    views = images + 0.3 * generator.normal(size=(120, 16))
    usual = ProjectionOptions(neighbours=16, batch_size=32, epochs=5, learning_rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn_projection(images, views, options=usual, device="cpu")
    with pytest.warns(
        UserWarning, match=r"collapsed: .*chance level \(2\.77\).*Lower the learning rate"
    ):
        projection, _ = learn_projection(
            images, views, options=replace(usual, bottleneck=4), device="cpu"
        )
    turned = projection(torch.from_numpy(images))
    assert float((turned @ turned.mT).min()) > 0.99


def test_learning_touches_no_setting_of_the_process(noisy_directions, monkeypatch):
    """Another thread must not see its own products change while a projection is learned."""
    changed = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", changed.append)
    learned(*noisy_directions[:2], epochs=1)
    assert changed == []
