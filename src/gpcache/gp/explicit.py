"""The softmax likelihood in explicit features: any number of rows, read in batches.

    f = offset + k(z, L) A,    A minimises  Σ cross-entropy(f, y) + tr(Aᵀ K A) / (2 τ)

L (D, d) are landmarks and K is their kernel. With φ(z) = K^(−½) k(L, z) and W = K^½ A this is
multinomial logistic regression on the D Nyström features φ, with a Gaussian prior of variance τ.
Where every row is a landmark it is the problem of `gpcache.gp.softmax`. A gradient is two products
a batch; nothing of n × n or n × c is held.

The solver is L-BFGS that starts from the inverse of the metric h Σ k(L, z) k(z, L) + K / τ instead
of the identity: with h the mean curvature p (1 − p), it takes 6 to 20 passes over the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.errors import NumericalError
from gpcache.gp.cholesky import cholesky, inverse_factor
from gpcache.gp.exact import ExactPrecision, lifted
from gpcache.gp.kernels import gram, kernel
from gpcache.gp.products import matmul
from gpcache.support.softmax import log_softmax

# Nats a row by which the objective may exceed its minimum, as far as the metric can tell.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-16}
MAX_PASSES = 300
# Steps whose curvature is remembered.
HISTORY = 8
# Added to the diagonal of the kernel of the landmarks, which may lie close together.
LIFT = 1e-10
# A step must lower the objective by this share of what the slope promises, or, where the objective
# changes by less than this share of itself and rounding hides which way, so must the slope say
# (the approximate Wolfe conditions of Hager and Zhang 2005).
SUFFICIENT, HIDDEN = 1e-4, 1e-6
# The curvature of a row relative to that at equal probabilities, 1 / c: of rows that are fitted,
# and of rows that further ones must not make forgotten (of 1, 3 and 10 the best on Pets, Caltech).
CURVATURE_SHARE, REMEMBERED_SHARE = 0.3, 10.0


class Batch(NamedTuple):
    """Unit rows (b, d) in the kernel's space, logits (b or 1, c) before shots, labels (b,)."""

    rows: Tensor
    offset: Tensor
    labels: Tensor


# Coefficients (D, c) → the cross-entropy of all rows there, and its gradient: `loss_of` them.
Loss = Callable[[Tensor], tuple[Tensor, Tensor]]


class Prior(NamedTuple):
    """Gaussian prior of coefficients (D, c): exp(−½ tr((A − centre)ᵀ precision (A − centre)))."""

    precision: Tensor
    centre: Tensor

    @classmethod
    def of(cls, core: Tensor, tau: float, centre: Tensor) -> Prior:
        """That of the Gaussian process, K / τ around zeros; `centre` gives the shape."""
        return cls(core / tau, torch.zeros_like(centre))

    def after(self, products: Tensor, centre: Tensor) -> Prior:
        """The posterior after rows with these `products`, as the prior of further ones.

        Around the solution `centre`, all rows are taken to have the same curvature.
        """
        return Prior(self.precision + REMEMBERED_SHARE / centre.shape[1] * products, centre)


class Solved(NamedTuple):
    """The coefficients A (D, c), and the passes over all rows that they took."""

    values: Tensor
    passes: int


def core_of(landmarks: Tensor, beta: float) -> Tensor:
    """The kernel K (D, D) of the landmarks (D, d), in float64."""
    return lifted(gram(landmarks.double(), beta), LIFT)


def products_of(batches: Iterable[Tensor], landmarks: Tensor, beta: float) -> Tensor:
    """Σ k(L, z) k(z, L) (D, D) over batches of rows z, added up in float64."""
    return products_in((kernel(rows, landmarks, beta) for rows in batches), landmarks)


def products_in(features: Iterable[Tensor], landmarks: Tensor) -> Tensor:
    """The same from batches of features k(z, L) (b, D)."""
    size = len(landmarks)
    total = torch.zeros(size, size, dtype=torch.float64, device=landmarks.device)
    for part in features:
        total += matmul(part.mT, part)
    return total


def loss_of(
    batches: Iterable[Batch], landmarks: Tensor, beta: float, values: Tensor
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of rows at coefficients (D, c), and its gradient (D, c)."""
    return loss_in(
        (Batch(kernel(rows, landmarks, beta), *others) for rows, *others in batches), values
    )


def loss_in(batches: Iterable[Batch], values: Tensor) -> tuple[Tensor, Tensor]:
    """The same from batches whose rows are features k(z, L) (b, D).

    Batches are added up in float64, so that it hardly matters who adds which of them first.
    """
    loss = torch.zeros((), dtype=torch.float64, device=values.device)
    gradient = torch.zeros_like(values, dtype=torch.float64)
    for features, offset, labels in batches:
        logs = log_softmax(matmul(features, values).add_(offset))
        loss -= logs.gather(1, labels[:, None]).sum(dtype=torch.float64)
        residual = logs.exp_()
        residual[torch.arange(len(labels), device=labels.device), labels] -= 1
        gradient += matmul(features.mT, residual)
    return loss, gradient


def explicit_map(
    loss: Loss,
    prior: Prior,
    products: Tensor,
    *,
    n_rows: int,
    start: Tensor,
    tolerance: float | None = None,
    look: Callable[[], object] = lambda: None,
) -> Solved:
    """The coefficients A (D, c) of the posterior mode.

    Parameters
    ----------
    loss : callable
        Gives the cross-entropy of all rows at coefficients (D, c), and its gradient (D, c).
    prior : Prior
        Prior of the coefficients.
    products : Tensor
        `products_of` the rows, or of a part of them, scaled: they shape the metric alone.
    n_rows : int
        Number of rows in all batches.
    start : Tensor
        Coefficients (D, c) to start from.
    tolerance : float, optional
        Nats a row by which the objective may exceed its minimum; by default `TOLERANCES`.
    look : callable, optional
        Called before each pass over the rows.

    Raises
    ------
    NumericalError
        If the tolerance is not reached, or a number is not finite.
    """
    tolerance = tolerance or TOLERANCES.get(start.dtype, TOLERANCES[torch.float32])
    metric = _Metric(cholesky(CURVATURE_SHARE / start.shape[1] * products + prior.precision))
    problem = _Problem(loss, prior, look)
    here, passes = problem.at(start), 1
    while passes < MAX_PASSES:
        excess = _dot(metric.inverse(here.gradient), here.gradient) / 2
        if excess <= tolerance * n_rows:
            return Solved(here.values, passes)
        direction = metric.direction(here.gradient)
        slope, length = _dot(direction, here.gradient), 1.0
        while True:
            there = problem.at(here.values + length * direction)
            passes += 1
            risen = there.objective - here.objective
            if risen <= SUFFICIENT * length * slope or passes >= MAX_PASSES:
                break
            if risen <= HIDDEN * abs(here.objective) and (
                _dot(direction, there.gradient) <= (2 * SUFFICIENT - 1) * slope
            ):
                break
            # To the minimum of the parabola through both points, but not too far back.
            curve = 2 * (risen - length * slope) / length**2
            length = min(max(-slope / curve, length / 10), length / 2)
        metric.remember(there.values - here.values, there.gradient - here.gradient)
        here = there
    raise NumericalError(
        f"The fit in explicit features did not converge in {MAX_PASSES} passes (excess "
        f"{excess / n_rows:.1e} nats a row, bound {tolerance:.1e}): lower tau, or use float64."
    )


class _Point(NamedTuple):
    """Coefficients (D, c), the objective there, and its gradient (D, c)."""

    values: Tensor
    objective: float
    gradient: Tensor


class _Problem(NamedTuple):
    """The objective: see `explicit_map`."""

    loss: Loss
    prior: Prior
    look: Callable[[], object]

    def at(self, values: Tensor) -> _Point:
        """One pass over all rows."""
        self.look()
        moved = (values - self.prior.centre).double()
        pull = self.prior.precision @ moved
        loss, gradient = self.loss(values)
        objective = 0.5 * _dot(pull, moved) + float(loss)
        if not math.isfinite(objective):
            raise NumericalError(
                "The fit in explicit features met a number that is not finite: check the "
                "features, the text logits and tau."
            )
        return _Point(values, objective, (pull + gradient).to(values))


class _Metric:
    """What L-BFGS knows of the Hessian: a factor (D, D) of the metric, and the last steps."""

    def __init__(self, factor: Tensor) -> None:
        self._factor = factor
        self._steps: list[tuple[Tensor, Tensor, float]] = []
        self._scale = 1.0

    def inverse(self, gradient: Tensor) -> Tensor:
        """The inverse of the metric times (D, c)."""
        return torch.cholesky_solve(gradient.double(), self._factor).to(gradient)

    def direction(self, gradient: Tensor) -> Tensor:
        """Where to go from here, by the two-loop recursion (Nocedal and Wright, algorithm 7.4)."""
        shares = []
        for step, change, curve in reversed(self._steps):
            shares.append(_dot(step, gradient) / curve)
            gradient = torch.sub(gradient, change, alpha=shares[-1])
        direction = self._scale * self.inverse(gradient)
        for (step, change, curve), share in zip(self._steps, reversed(shares), strict=True):
            direction.add_(step, alpha=share - _dot(change, direction) / curve)
        return direction.neg_()

    def remember(self, step: Tensor, change: Tensor) -> None:
        """Take the change (D, c) of the gradient along a step (D, c) into account."""
        curve = _dot(step, change)
        if curve > 0:  # always so for a convex objective, but for rounding
            self._steps = [*self._steps[1 - HISTORY :], (step, change, curve)]
            self._scale = curve / _dot(change, self.inverse(change))


class ExplicitPrecision(ExactPrecision):
    """Kernel rows and variance of a model in explicit features; its keys are the landmarks.

    The variance is that of a Gaussian process on the features φ, and 1 − ‖φ‖² for what they cannot
    tell: 1 − ‖R k(L, z)‖². With K = L Lᵀ and L⁻¹ Σ k(L, z) k(z, L) L⁻ᵀ = E diag(λ) Eᵀ,
    R = diag(√(λ / (λ + noise))) Eᵀ L⁻¹.
    """

    root: Tensor

    @classmethod
    def of(
        cls, landmarks: Tensor, beta: float, noise: float, products: Tensor, n_classes: int
    ) -> ExplicitPrecision:
        """For landmarks (D, d) and the products (D, D) of all rows."""
        whiten = inverse_factor(cholesky(core_of(landmarks, beta)))
        values, vectors = torch.linalg.eigh(whiten @ products @ whiten.mT)
        values = values.clamp(min=0)
        root = (values / (values + noise)).sqrt()[:, None] * (vectors.mT @ whiten)
        return cls.restored(landmarks, beta, noise, root.to(landmarks), n_classes)

    @classmethod
    def restored(
        cls, landmarks: Tensor, beta: float, noise: float, root: Tensor, n_classes: int
    ) -> ExplicitPrecision:
        """With a root R (D, D) that is known."""
        values = landmarks.new_zeros(1, 1).expand(len(landmarks), n_classes)
        made = cls(None, landmarks, values, beta=beta, noise=noise)
        made.root = root
        return made

    def _form(self, cross: Tensor) -> Tensor:
        return (cross @ self.root.mT).square_().sum(-1)

    @property
    def _quick(self) -> None:  # there is no quicker way
        return None


def _dot(one: Tensor, other: Tensor) -> float:
    return float(torch.sum(one * other, dtype=torch.float64))
