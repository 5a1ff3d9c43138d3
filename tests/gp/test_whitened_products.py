"""Inner products of whitened rows against the rows themselves."""

import pytest
import torch

from gpcache.gp import ExactPrecision
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import KernelSpace, ResidualProjection
from gpcache.gp.kernels import unit_rows
from gpcache.gp.whitened_products import Differences, LabelledRows

WIDTH = 60
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(params=[torch.float64, torch.float32], ids=str)
def rows(request):
    """Unit rows of five classes, one of which has a single row and one none, and others."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(5, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 3])
    noise = torch.randn(18, WIDTH, generator=generator, dtype=torch.float64)
    found = unit_rows(torch.cat([centres[labels], centres[:3], -centres[:4]]) + noise)
    return found[:11].to(request.param), labels, found[11:].to(request.param)


def whitened(projection=None, diagonal=0.0):
    return KernelSpace("whitened", projection=projection, diagonal=diagonal)


@pytest.mark.parametrize("diagonal", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shrinkage", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("projects", [False, True])
def test_they_are_those_of_the_mapped_rows(rows, diagonal, shrinkage, projects):
    features, labels, others = rows
    generator = torch.Generator().manual_seed(1)
    matrix = 0.1 * torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    space = whitened(ResidualProjection(matrix.to(features)) if projects else None, diagonal)
    found = similarities(space, [LabelledRows(features, labels, others)], shrinkage)
    exact = KernelSpace("whitened", shrinkage, space.projection, diagonal)
    feature_map = exact.fit(features.double(), labels)
    keys, queries = feature_map(features.double()), feature_map(others.double())
    discriminant = Discriminant.of(features.double(), labels, 5, feature_map)
    scores = discriminant.scores(feature_map.unscaled(others.double()))
    expected = (keys @ keys.mT, queries @ keys.mT, scores)
    if features.dtype == torch.float64:
        exact = ExactPrecision(None, keys, keys, beta=2.0, noise=0.1).variance(queries)[:, 0]
        torch.testing.assert_close(found.variance(2.0, 0.1)[0], exact, atol=1e-10, rtol=0)
    for (one,), other in zip(found, expected, strict=True):
        assert one.dtype == features.dtype
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(
            one.double() / scale, other / scale, atol=TOLERANCE[features.dtype], rtol=0
        )


def similarities(space, problems, shrinkage):
    differences = Differences.of(space, problems, 5)
    return differences.products(space.diagonal).at(shrinkage, problems[0].features.dtype)


def test_what_is_not_whitened_by_few_rows_has_none(rows):
    features, labels, others = rows

    def is_none(space, *rows):
        return Differences.of(space, [LabelledRows(*rows, others)], 5) is None

    assert is_none(KernelSpace("centred"), features, labels)
    times = features.shape[1] // len(features) + 1
    assert is_none(whitened(), features.repeat(times, 1), labels.repeat(times))
    assert is_none(whitened(), features[:1].expand(4, -1), torch.tensor([0, 0, 1, 1]))
    assert is_none(whitened(), features[:3], torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("diagonal", [0.0, 0.5])
def test_several_problems_are_one_filled_up_with_zeros(rows, diagonal):
    features, labels, others = rows
    weights = torch.rand(9, generator=torch.Generator().manual_seed(2), dtype=features.dtype)
    problems = [
        LabelledRows(features, labels, others[:4]),
        LabelledRows(features[:8], labels[:8], others),
        LabelledRows(features[2:], labels[2:], others[:2], weights),
    ]
    together = similarities(whitened(diagonal=diagonal), problems, 2.0)
    for number, one in enumerate(problems):
        alone = similarities(whitened(diagonal=diagonal), [one], 2.0)
        m, n = alone.cross.shape[1:]
        for found in (together.own, together.cross):
            assert not found[number, :, n:].any()
        assert not together.own[number, n:].any()
        tolerance = {"atol": TOLERANCE[features.dtype], "rtol": 0}
        torch.testing.assert_close(together.own[number, :n, :n], alone.own[0], **tolerance)
        torch.testing.assert_close(together.cross[number, :m, :n], alone.cross[0], **tolerance)
        scale = float(alone.scores.abs().max())
        found = together.scores[number, :m] / scale
        torch.testing.assert_close(found, alone.scores[0] / scale, **tolerance)
