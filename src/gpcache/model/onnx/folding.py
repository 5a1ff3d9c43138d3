"""Folds a posterior for a graph: everything that does not depend on the query becomes two matrices.

For every kind of posterior, a query's row r (kernel values, or Fourier features) gives

    mean = r A,    variance = 1 − ‖R rᵀ‖².

The exact posterior has A = G⁻¹V and R = L⁻¹ with G = L Lᵀ: ONNX has no triangular solve. The low
rank ones have variance 1 − b (S⁻¹ − noise·M⁻¹) bᵀ with M = noise·S + UᵀU; with S = T⁻¹T⁻ᵀ and
T UᵀU Tᵀ = E diag(λ) Eᵀ that is R = diag(√(λ / (λ + noise))) Eᵀ T, one matrix whose entries stay
smaller than those of the two inverses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp import (
    ClassMeanPrecision,
    ExactPrecision,
    FourierPrecision,
    GroupedPrecision,
    NystromPrecision,
    Precision,
    Unweighted,
)
from gpcache.gp.explicit import ExplicitPrecision
from gpcache.support.onnx_graph import Graph


class KernelRow(NamedTuple):
    """κ(query, keys) (batch, r) for keys (r, d)."""

    keys: Tensor
    beta: float

    def write(self, graph: Graph, mapped: str) -> str:
        """exp(βs − β) of the cosines s."""
        cosines = graph.node("MatMul", mapped, graph.weight(self.beta * self.keys.mT))
        return graph.node("Exp", graph.node("Sub", cosines, graph.constant(self.beta)))


class FourierRow(NamedTuple):
    """φ(query) (batch, r), cosines then sines, for frequencies (d, r/2)."""

    frequencies: Tensor

    def write(self, graph: Graph, mapped: str) -> str:
        """(cos p, sin p) / √(r/2) of the phases p."""
        phase = graph.node("MatMul", mapped, graph.weight(self.frequencies))
        both = [graph.node(kind, phase) for kind in ("Cos", "Sin")]
        length = graph.constant(math.sqrt(self.frequencies.shape[1]))
        return graph.node("Div", graph.node("Concat", *both, axis=1), length)


class Spread(NamedTuple):
    """The variance (batch, g): R (g, s, s) is large, and made only when it is written."""

    row: KernelRow | FourierRow
    groups: int
    size: int
    root: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """The size of R in float32."""
        return torch.float32.itemsize * self.groups * self.size**2

    def write(self, graph: Graph, row: str, output: str) -> None:
        """1 − ‖R rᵀ‖² of rows (batch, g·s), group by group.

        Not as one batched product: ONNX Runtime fuses that with the transposition that it needs,
        and crashes where there are no rows.
        """
        parts = graph.nodes("Split", row, results=self.groups, axis=1)
        halves = [
            graph.node("MatMul", part, graph.weight(root.mT))
            for part, root in zip(parts, self.root(), strict=True)
        ]
        forms = [graph.node("ReduceSumSquare", half, axes=[1], keepdims=1) for half in halves]
        form = graph.node("Concat", *forms, axis=1)
        variance = graph.node("Sub", graph.constant(1.0), form)
        least = graph.constant(torch.finfo(torch.float32).eps)
        graph.node("Clip", variance, least, graph.constant(1.0), output=output)


class Folded(NamedTuple):
    """The row of the mean and A (r, c), and the variance; None if the method has none."""

    row: KernelRow | FourierRow
    weights: Tensor
    spread: Spread | None


def folded(precision: Precision, coefficients: Tensor | None = None) -> Folded:
    """The posterior of this precision as rows and matrices.

    With the `coefficients` (n, c) of the softmax likelihood the mean is theirs.
    """
    posterior = _folded(precision)
    if coefficients is None:
        return posterior
    values = precision.prior_coefficients(coefficients)
    if isinstance(precision, ClassMeanPrecision):
        return posterior._replace(weights=precision._class_sums(values))
    if isinstance(precision, NystromPrecision | FourierPrecision):
        assert posterior.spread is not None
        reach = precision._prior_reach @ values.double()
        return Folded(posterior.spread.row, reach, posterior.spread)
    return Folded(KernelRow(precision.keys, precision.beta), values, posterior.spread)


def _folded(precision: Precision) -> Folded:
    """The posterior of regression."""
    if isinstance(precision, ClassMeanPrecision):
        return _folded(precision._over_classes)
    if isinstance(precision, GroupedPrecision):
        return _grouped(precision)
    if isinstance(precision, NystromPrecision | FourierPrecision):
        return _low_rank(precision)
    row = KernelRow(precision.keys, precision.beta)
    if isinstance(precision, Unweighted):
        return Folded(row, precision.values, None)
    if isinstance(precision, ExplicitPrecision):
        return Folded(
            row, precision.values, Spread(row, 1, len(precision.keys), lambda: precision.root[None])
        )
    if isinstance(precision, ExactPrecision):
        spread = Spread(row, 1, len(precision.keys), lambda: _inverse(precision._factor)[None])
        return Folded(row, precision.solved_values, spread)
    raise DataError(f"{type(precision).__name__} cannot be exported to ONNX.")


def _grouped(precision: GroupedPrecision) -> Folded:
    """Keys in the order of their groups, each padded to the largest; R is blind to padding."""
    plan = precision._plan
    present = plan.row_present
    groups, size = present.shape
    row = KernelRow(precision._block_keys.flatten(0, 1), precision.beta)
    weights = precision.solved_values[plan.rows.flatten()] * present.flatten()[:, None]

    def root() -> Tensor:
        return _inverse(precision._factor) * present[:, None, :]

    return Folded(row, weights, Spread(row, groups, size, root))


def _low_rank(precision: NystromPrecision | FourierPrecision) -> Folded:
    near: KernelRow | FourierRow
    if isinstance(precision, NystromPrecision):
        near = KernelRow(precision.keys[precision._plan.rows], precision.beta)
    else:
        near = FourierRow(math.sqrt(precision.beta) * precision._plan.draws)

    def root() -> Tensor:
        whiten = _inverse(precision._core_factor)
        whitened = whiten @ precision._u.mT
        values, vectors = torch.linalg.eigh(whitened @ whitened.mT)
        values = values.clamp(min=0)
        shares = (values / (values + precision.noise)).sqrt()
        scaled: Tensor = shares[:, None] * (vectors.mT @ whiten)
        return scaled[None]

    spread = Spread(near, 1, precision._u.shape[1], root)
    if precision._cross_is_exact:
        row = KernelRow(precision.keys, precision.beta)
        return Folded(row, precision.solved_values, spread)
    return Folded(near, precision._solved_core, spread)


def _inverse(factor: Tensor) -> Tensor:
    """L⁻¹ of lower factors (..., n, n)."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse: Tensor = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    return inverse
