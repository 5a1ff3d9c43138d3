"""SimilarityProjection: one matrix stands for every structure, and learning begins at identity."""

import numpy as np
import pytest
import torch

from gpcache import DataError, GPCacheClassifier
from gpcache.gp.feature_maps import ResidualProjection
from gpcache.methods import TipAdapterClassifier
from gpcache.similarity import SimilarityProjection
from gpcache.similarity.projection import change, identity_weights


@pytest.fixture
def rows():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(9, 8)))


def drawn(*shapes):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shapes", [[(8, 8)], [(2, 8), (8, 2)]])
def test_the_matrix_stands_for_every_structure(rows, shapes, residual):
    weights = drawn(*shapes)
    projection = SimilarityProjection(weights, residual)
    expected = []
    for row in rows:
        image = row
        for weight in weights:
            image = weight @ image
        image = image + row if residual else image
        expected.append(image / image.norm())
    torch.testing.assert_close(projection(rows), torch.stack(expected))
    torch.testing.assert_close(ResidualProjection(projection.matrix)(rows), torch.stack(expected))


@pytest.mark.parametrize("residual", [True, False])
def test_a_full_matrix_begins_as_the_identity(rows, residual):
    weights = identity_weights(8, bottleneck=1, residual=residual, seed=0)
    projection = SimilarityProjection(weights, residual)
    torch.testing.assert_close(projection(rows), rows / rows.norm(dim=1, keepdim=True))
    assert change(projection, rows) == pytest.approx(0, abs=1e-3)


def test_a_bottleneck_begins_as_the_identity_and_can_leave_it(rows):
    down, up = identity_weights(8, bottleneck=4, residual=True, seed=0)
    assert (down.shape, up.shape) == ((2, 8), (8, 2))
    start = SimilarityProjection((down, up))
    torch.testing.assert_close(start(rows), rows / rows.norm(dim=1, keepdim=True))
    up.requires_grad_()
    SimilarityProjection((down, up)).matrix.sum().backward()
    assert up.grad.abs().min() > 0
    torch.testing.assert_close(down @ down.mT, torch.eye(2))


def test_a_bottleneck_without_residual_begins_as_the_identity_on_its_subspace(rows):
    down, up = identity_weights(8, bottleneck=4, residual=False, seed=0)
    projection = SimilarityProjection((down.double(), up.double()), residual=False)
    inside = rows[:, :2] @ down.double()
    torch.testing.assert_close(
        projection(inside), inside / inside.norm(dim=1, keepdim=True), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("estimator", [GPCacheClassifier, TipAdapterClassifier])
def test_estimators_take_its_matrix_for_the_projection_itself(estimator, rows):
    projection = SimilarityProjection(drawn((8, 8)))
    labels = np.arange(9) % 3
    shots, queries = rows.numpy() + 3 * np.eye(8)[labels], rows.numpy()[::2]
    by_matrix, by_call, without = (
        estimator(kernel_space="raw", projection=chosen).fit(shots, labels)
        for chosen in (projection.matrix.numpy(), projection, None)
    )
    logits = by_matrix.decision_function(queries)
    np.testing.assert_allclose(logits, by_call.decision_function(queries), atol=1e-8)
    assert np.abs(logits - without.decision_function(queries)).max() > 1e-3


def test_change_is_that_of_the_features():
    rows = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    turned = SimilarityProjection((torch.tensor([[0.0, -1.0], [1.0, 0.0]]),), residual=False)
    assert change(turned, rows) == pytest.approx(1)
    assert change(SimilarityProjection((5 * torch.eye(2),)), rows) == pytest.approx(0, abs=1e-3)
    # The first stays where it is; the second goes from (0.6, 0.8) to (1, 0).
    flat = SimilarityProjection((torch.diag(torch.tensor([0.0, -1.0])),))
    assert change(flat, rows) == pytest.approx(0.4)


def test_what_is_no_projection_is_refused(rows):
    for shapes in ([], [(3, 4)], [(2, 4), (4, 3)]):
        with pytest.raises(DataError, match=r"one matrix \(d, d\), or two"):
            SimilarityProjection(drawn(*shapes))
    with pytest.raises(DataError, match="NaN or inf"):
        SimilarityProjection((torch.full((2, 2), torch.nan),))
    with pytest.raises(DataError, match="for features of 3 columns, got 8"):
        SimilarityProjection((torch.zeros(3, 3),))(rows)
    with pytest.raises(DataError, match="bottleneck of 9 leaves nothing of 8"):
        identity_weights(8, bottleneck=9, residual=True, seed=0)


def test_the_matrix_of_a_residual_is_the_very_weight():
    weight = torch.full((3, 3), 1e-9)
    assert torch.equal(SimilarityProjection((weight,)).matrix, weight)
