"""Raw, centred and whitened spaces, against loops and inverses written out in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from gpcache.gp.feature_maps import (
    FeatureMap,
    KernelSpace,
    ResidualProjection,
    within_class,
)
from gpcache.gp.kernels import unit_rows

SPACES = ["raw", "centred", "whitened"]


def scatter_by_loop(rows, labels):
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for label in np.unique(labels):
        members = rows[labels == label]
        for row in members:
            away = row - members.mean(0)
            total += np.outer(away, away)
    return total


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def draw_projection(width, like, scale=0.4):
    generator = torch.Generator().manual_seed(9)
    matrix = scale * torch.randn(width, width, generator=generator, dtype=torch.float64)
    return ResidualProjection(matrix.to(like))


@pytest.fixture(params=[6, 40, 90], ids=["narrow", "wide", "wider"])
def wide(request, device, dtype, tools):
    """28 rows of unequal classes in a cone, as real features are; from 40 columns on S is singular.

    At 90 columns, more than twice the rows, the whitening goes by way of the rows.
    """
    problem = tools.make_problem(width=request.param, device=device, dtype=dtype)
    axis = torch.linspace(-1, 2, request.param, device=device, dtype=dtype)
    axis = axis / axis.norm()
    return replace(
        problem, keys=unit_rows(problem.keys + axis), queries=unit_rows(problem.queries + axis)
    )


def test_scatter_is_a_loop(wide, tools):
    labels = wide.labels * 17 + 3  # numbers with gaps
    expected = scatter_by_loop(tools.numpy64(wide.keys), labels.cpu().numpy())
    centred = within_class(wide.keys, labels)
    tools.close(centred.mT @ centred, expected)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(
        labels.device
    )
    shuffled = within_class(wide.keys[order], labels[order])
    tools.close(shuffled.mT @ shuffled, expected)


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("shrinkage", [0.3, 4.0, 100.0])
def test_whitened_inner_products_are_those_of_an_explicit_inverse(
    shrinkage, projected, wide, tools
):
    """(x − μ)ᵀ (S + λ tr(S)/(n − 1) I)⁻¹ (y − μ), divided by the two lengths."""
    projection = draw_projection(wide.keys.shape[1], wide.keys) if projected else None
    space = KernelSpace("whitened", shrinkage, projection)
    mapping = space.fit(wide.keys, wide.labels)
    actual = mapping(wide.queries) @ mapping(wide.keys).mT
    rows, queries = tools.numpy64(wide.keys), tools.numpy64(wide.queries)
    if projected:
        change = tools.numpy64(projection.matrix)
        rows, queries = (unit(x @ change.T + x) for x in (rows, queries))
    scatter = scatter_by_loop(rows, wide.labels.cpu().numpy())
    lift = shrinkage * np.trace(scatter) / (len(rows) - 1)
    metric = np.linalg.inv(scatter + lift * np.eye(len(scatter)))
    x, y = queries - rows.mean(0), rows - rows.mean(0)
    lengths = [np.sqrt(np.einsum("ij,jk,ik->i", side, metric, side)) for side in (x, y)]
    tools.close(actual, x @ metric @ y.T / np.outer(*lengths))


def test_centred_rows_are_relative_to_the_mean(wide, tools):
    rows, queries = tools.numpy64(wide.keys), tools.numpy64(wide.queries)
    mapping = KernelSpace("centred").fit(wide.keys, wide.labels)
    tools.close(mapping(wide.queries), unit(queries - rows.mean(0)))
    tools.close(mapping(wide.keys), unit(rows - rows.mean(0)))
    raw = KernelSpace().fit(wide.keys, wide.labels)
    tools.close(raw(3 * wide.queries), queries)


def test_much_shrinkage_is_no_whitening(wide, tools):
    whitened = KernelSpace("whitened", 1e9).fit(wide.keys, wide.labels)
    centred = KernelSpace("centred").fit(wide.keys, wide.labels)
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-4}[wide.keys.dtype]
    tools.close(
        whitened(wide.queries) @ whitened(wide.keys).mT,
        centred(wide.queries) @ centred(wide.keys).mT,
        atol=tolerance,
    )
    little = KernelSpace("whitened", 1.0).fit(wide.keys, wide.labels)
    assert (little(wide.queries) - centred(wide.queries)).abs().max() > 0.05


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_rows_come_out_with_unit_length(name, projected, wide, tools):
    projection = draw_projection(wide.keys.shape[1], wide.keys) if projected else None
    mapping = KernelSpace(name, projection=projection).fit(wide.keys, wide.labels)
    for rows in (wide.keys, wide.queries, 5 * wide.queries, wide.queries[:1]):
        mapped = mapping(rows)
        assert mapped.dtype == rows.dtype
        assert mapped.shape == rows.shape
        tools.close(mapped.norm(dim=1), np.ones(len(rows)))


@pytest.mark.parametrize("copies", [1, 7])
def test_one_shot_of_each_class_is_centred(copies, wide):
    """Copies of it say no more of the scatter within a class."""
    rows = wide.keys[:5].repeat(copies, 1)
    labels = torch.arange(5, device=rows.device).repeat(copies)
    mapping, centred = (KernelSpace(name).fit(rows, labels) for name in ("whitened", "centred"))
    assert mapping.matrix is None
    assert centred.mean is not None
    assert torch.equal(mapping(wide.queries), centred(wide.queries))
    # A second shot that differs is enough.
    more = torch.cat([rows, wide.keys[6:7]]), torch.cat([labels, labels[:1]])
    assert KernelSpace("whitened").fit(*more).matrix is not None


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("copies", [1, 3, 7])
@pytest.mark.parametrize("name", SPACES)
def test_a_single_distinct_row_is_left_raw(name, copies, projected, wide):
    """Centred, nothing but rounding would be left of it."""
    projection = draw_projection(wide.keys.shape[1], wide.keys) if projected else None
    rows = wide.keys[:1].repeat(copies, 1)
    labels = torch.zeros(copies, dtype=torch.long, device=rows.device)
    mapping = KernelSpace(name, projection=projection).fit(rows, labels)
    expected = FeatureMap(projection)
    for features in (rows, wide.queries):
        assert torch.equal(mapping(features), expected(features))


def test_the_residual_projection_is_the_papers(wide, tools):
    projection = draw_projection(wide.keys.shape[1], torch.zeros(0, dtype=torch.float64))
    matrix = tools.numpy64(projection.matrix)
    expected = [matrix @ row + row for row in tools.numpy64(wide.queries)]
    projected = projection(wide.queries)
    assert projected.dtype == wide.queries.dtype  # whatever the matrix is
    assert projected.device == wide.queries.device
    tools.close(projected, unit(np.array(expected)))
    nothing = ResidualProjection(torch.zeros_like(projection.matrix))
    tools.close(nothing(wide.queries), wide.queries)


def test_the_projection_comes_before_the_centre(wide, tools):
    projection = draw_projection(wide.keys.shape[1], wide.keys)
    mapping = KernelSpace("centred", projection=projection).fit(wide.keys, wide.labels)
    rows = tools.numpy64(projection(wide.keys))
    tools.close(mapping.mean, rows.mean(0))
    expected = unit(tools.numpy64(projection(wide.queries)) - rows.mean(0))
    tools.close(mapping(wide.queries), expected)
    after = projection(wide.queries - wide.keys.mean(0))
    assert (mapping(wide.queries) - after).abs().max() > 0.02


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_numeric_gradients(name, projected, device, tools):
    """In what is mapped, in the rows that the map was made of, and in the projection."""
    small = tools.make_problem(shots=(3, 1, 2), width=3, n_queries=2, device=device)
    matrix = draw_projection(3, small.keys).matrix.requires_grad_()
    labels, queries, rows = small.labels, small.queries.requires_grad_(), small.keys
    rows = (1.5 * rows).requires_grad_()

    def mapped(queries, rows, matrix):
        projection = ResidualProjection(matrix) if projected else None
        return KernelSpace(name, projection=projection).fit(rows, labels)(queries)

    if name == "raw":  # made of nothing
        assert gradcheck(lambda q, m: mapped(q, rows.detach(), m), (queries, matrix))
    else:
        assert gradcheck(mapped, (queries, rows, matrix), nondet_tol=1e-12)
    mapping = KernelSpace(name).fit(rows.detach(), labels)
    assert gradcheck(mapping, (queries,), nondet_tol=1e-12)


def test_only_whitening_sees_labels(wide):
    other = wide.labels.roll(1)
    for name in SPACES:
        space = KernelSpace(name)
        first, second = (
            space.fit(wide.keys, labels)(wide.queries) for labels in (wide.labels, other)
        )
        assert torch.equal(first, second) != space.sees_labels
        assert space.sees_labels == (name == "whitened")


def test_only_a_refit_forgets_the_label_of_a_left_out_row(wide, tools):
    """The full map depends on it, the map of the other rows does not."""
    space, row, kept = KernelSpace("whitened"), wide.keys[:1], slice(1, None)
    relabelled = wide.labels.clone()
    relabelled[0] = (relabelled[0] + 1) % wide.n_classes
    full, refit = (
        [space.fit(wide.keys[rows], labels[rows])(row) for labels in (wide.labels, relabelled)]
        for rows in (slice(None), kept)
    )
    assert (full[0] - full[1]).abs().max() > 1e-3
    tools.close(*refit)
    assert (full[0] - refit[0]).abs().max() > 1e-3


def test_a_fixed_map_finds_labels_that_are_pure_chance(device):
    """The nearest other row, in the map of all rows and in maps that have not seen the row."""
    generator = torch.Generator().manual_seed(0)
    n, n_classes = 80, 4
    rows = unit_rows(torch.randn(n, 100, generator=generator, dtype=torch.float64)).to(device)
    labels = torch.randint(n_classes, (n,), generator=generator).to(device)
    space = KernelSpace("whitened", shrinkage=0.1)

    def accuracy(map_of):
        hits = 0
        for row in range(n):
            mapped = map_of(row)(rows)
            near = mapped @ mapped[row]
            near[row] = -2.0
            hits += int(labels[near.argmax()] == labels[row])
        return hits / n

    others = torch.arange(n, device=device)
    whole = space.fit(rows, labels)
    leaking = accuracy(lambda _: whole)
    honest = accuracy(lambda row: space.fit(rows[others != row], labels[others != row]))
    assert leaking > 0.9
    assert honest < 0.4
