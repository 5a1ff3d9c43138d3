"""The Gaussian process with the softmax likelihood, for classification instead of regression.

    f = offset + K A,    A minimises  Σ cross-entropy(f, y) + tr(Aᵀ K A) / (2 τ)

The problem is convex and has one optimum, at which A = τ (Y − softmax(f)). It is solved by
conjugate gradients (Polak–Ribière) in the inner product ⟨U, V⟩ = tr(Uᵀ K V): the gradient there is
G = softmax(f) − Y + A / τ, and an iteration costs one product with K and no factorisation. For
τ → 0 the solution tends to τ (Y − softmax(offset)), one step of regression.

The large eigenvalues of K belong to the class means, so these are preconditioned: with Z the class
indicators (n, c) scaled to length one, the metric is K + γ K Z Zᵀ K. Its inverse needs a matrix of
c rows and columns. This halves the number of iterations. Near the optimum γ is larger for the shots
of a class in its own column, which saves a fifth of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.errors import NumericalError
from gpcache.gp.cholesky import cholesky
from gpcache.gp.precision import BATCH_ELEMENTS
from gpcache.gp.products import matmul
from gpcache.support.softmax import softmax

# Largest distance of the coefficients from the optimum, in the kernel's norm relative to that of
# the labels: for a search, for some rows of a start, and for probabilities to 1e-6 (float64) or
# 1e-4 (float32).
SEARCH_TOLERANCE = 1e-1
ROWS_TOLERANCE = 1e-3
TOLERANCES = {torch.float32: 1e-4, torch.float64: 5e-7}
# The gradient need not be smaller than this many units of rounding. In float32 this replaces the
# tolerance above τ = 200: probabilities to 1e-3 at τ = 1e4, to 5e-3 at τ = 3e5.
ROUNDINGS = 4
# Conjugate gradients with a rough product end at this share of the gradient that they start from:
# where no logit can move by more than `SMALL_MOVE`, and elsewhere.
SMALL_SHARE, ROUGH_SHARE = 1e-6, 1e-4
SMALL_MOVE = 30.0
# Up to this variance of the prior a rough product (float32) helps to find the optimum; beyond it
# shots are interpolated, and the curvature differs most from one to the next.
MODERATE_TAU = 200.0
MAX_ITERATIONS = 2_000
# Newton steps of a line search; it stops where the slope has fallen to this share of its start.
LINE_STEPS = 8
LINE_SHARE = 0.05

# The mean curvature is larger than that of most rows once they are fitted.
CURVATURE_SHARE = 0.3
# The least curvature of other classes' shots, relative to that of a class's own: for rounding.
OTHER_SHARE = 1e-4
# Iterations at which the curvature is computed again and the directions are restarted.
_NEW_METRIC = (0, 3, 10, 30, 100, 300)
_NEW_METRIC_NEAR = (0, 30, 100, 300)  # near the optimum it stays the same

Product = Callable[[Tensor], Tensor]


class Coefficients(NamedTuple):
    """The solution A (..., n, c), K A (..., n, c), and the iterations that it took."""

    values: Tensor
    products: Tensor
    iterations: int = 0


def softmax_map(
    product: Product,
    offset: Tensor,
    targets: Tensor,
    tau: float | Tensor,
    *,
    start: Coefficients | None = None,
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
    rough: Product | None = None,
) -> Coefficients:
    """The coefficients A of the posterior mode; leading dimensions are independent problems.

    Parameters
    ----------
    product : callable
        K times a tensor (..., n, c), for a symmetric positive semi-definite K.
    offset : Tensor
        Logits (..., n, c) before the shots are seen. A class at −inf takes no part.
    targets : Tensor
        One-hot labels (..., n, c) times the row weights. A row of zeros is left out: its
        coefficients are zero.
    tau : float or Tensor
        Variance of the prior, or that of each problem (..., 1, 1).
    start : Coefficients, optional
        Where to start: the solution of a similar problem.
    tolerance : float, optional
        Bound on max(τ, 1) times the gradient in the kernel's norm, relative to the norm of the
        targets; it bounds the distance to the optimum. By default that of the dtype
        (`TOLERANCES`); never smaller than the rounding error of the gradient (`ROUNDINGS`).
    max_iterations : int
        Largest number of iterations.
    rough : callable, optional
        K times a float32 tensor, with fewer digits and in less time. The optimum is the same.

    Raises
    ------
    NumericalError
        If the tolerance is not reached, or a number is not finite.
    """
    tolerance = tolerance or TOLERANCES.get(targets.dtype, TOLERANCES[torch.float32])
    reachable = ROUNDINGS * torch.finfo(targets.dtype).eps
    taus = tau if isinstance(tau, Tensor) else targets.new_full((), tau)
    largest = float(taus.max()) if isinstance(tau, Tensor) else tau
    bound = (tolerance / taus.clamp(min=1)).clamp_(min=reachable).square_()
    bound = bound * _dot(targets, targets).clamp(min=1.0)
    near = start is not None and tolerance < SEARCH_TOLERANCE and largest <= MODERATE_TAU
    if largest > MODERATE_TAU:
        rough = None
    a, ka = (torch.zeros_like(targets),) * 2 if start is None else start[:2]
    row_weights, iterations = targets.sum(-1, keepdim=True), 0
    while iterations < max_iterations:
        logits = offset + ka
        probability = softmax(logits).mul_(row_weights)
        gradient = (probability - targets).addcdiv_(a, taus)
        problem = _Problem(logits, probability, gradient, targets, row_weights, taus)
        if rough is None:
            moved = _solve(product, problem, bound, max_iterations, near=near)
            return Coefficients(a + moved.values, ka + moved.products, moved.iterations)
        # The start is exact, so rounding errors of the products do not add up.
        problem, left = problem.to(torch.float32), max_iterations - iterations
        moved = _solve(rough, problem, bound, left, near=near, is_rough=True)
        if not moved.iterations:
            return Coefficients(a, ka, iterations)
        iterations += moved.iterations
        a, near = a + moved.values, True
        ka = product(a)
    raise _not_converged(max_iterations)


def _not_converged(max_iterations: int) -> NumericalError:
    return NumericalError(
        f"The softmax likelihood did not converge in {max_iterations} iterations: lower tau, or "
        "use float64."
    )


class _Problem(NamedTuple):
    """A start: logits, probabilities, the gradient and the labels there, all (..., n, c).

    Probabilities and labels are multiplied by the row weights (..., n, 1). `tau` is one number, or
    one for each problem (..., 1, 1).
    """

    logits: Tensor
    probability: Tensor
    gradient: Tensor
    targets: Tensor
    row_weights: Tensor
    tau: Tensor

    def to(self, dtype: torch.dtype) -> _Problem:
        """The same in another dtype."""
        return _Problem(*(part.to(dtype) for part in self))

    def change(self, move: Tensor, *, is_small: bool) -> Tensor:
        """How the probabilities (..., n, c) change where the logits move by (..., n, c).

        Rounding errors of a small move are relative to the change.
        """
        if not is_small:
            there = softmax(self.logits + move).mul_(self.row_weights)
            return there.sub_(self.probability)
        growth = torch.expm1(move)
        least = self.row_weights.clamp(min=torch.finfo(move.dtype).tiny)
        mean = (self.probability * growth).sum(-1, keepdim=True).div_(least)
        return growth.sub_(mean).mul_(self.probability).div_(mean.add_(1))


def _solve(
    product: Product,
    problem: _Problem,
    bound: Tensor,
    max_iterations: int,
    *,
    near: bool,
    is_rough: bool = False,
) -> Coefficients:
    """How the coefficients change from the start to the optimum, and K times that.

    The squared gradient is then at most `bound` (..., 1, 1), or with a rough product a share of
    that at the start.
    """
    gradient, move = problem.gradient, torch.zeros_like(problem.gradient)
    values = change = move
    tau, inverse_tau = problem.tau, 1 / problem.tau
    restarts = _NEW_METRIC_NEAR if near else _NEW_METRIC
    directions: _Directions | None = None
    for iteration in range(max_iterations):
        k_gradient = product(gradient)
        distance = _dot(gradient, k_gradient)
        ratios = (distance / bound).flatten().tolist()
        if all(ratio <= 1 for ratio in ratios):
            return Coefficients(values, move, iteration)
        if not all(map(math.isfinite, ratios)):
            raise NumericalError(
                "The softmax likelihood got a number that is not finite: check the features, the "
                "text logits and tau."
            )
        if directions is None:
            # The prior alone bounds the way to the optimum, and so each logit's.
            is_small = float((tau * distance.clamp(min=0).sqrt()).max()) <= SMALL_MOVE
            share = (SMALL_SHARE if is_small else ROUGH_SHARE) if is_rough else 0.0
            bound = torch.maximum(bound.to(distance), share**2 * distance)
            directions = _Directions(_Metric(product, problem.targets, tau, own=near))
        if iteration in restarts:
            directions.restart(problem.probability + change)
        direction, k_direction, slope = directions.next(gradient, k_gradient)
        line = _Line(problem, move, change, k_direction, is_small)
        length, there, changed = line.search(slope, _dot(direction, k_direction) * inverse_tau)
        if min(ratios) <= 1:  # problems of the batch that are solved do not change any more
            solved = distance <= bound
            length = torch.where(solved, 0.0, length)
            there, changed = torch.where(solved, move, there), torch.where(solved, change, changed)
        values, move, change = torch.addcmul(values, direction, length), there, changed
        gradient = torch.addcmul(problem.gradient, values, inverse_tau).add_(change)
    raise _not_converged(max_iterations)


class _Directions:
    """Conjugate directions (..., n, c) by Polak and Ribière, and K times each."""

    def __init__(self, metric: _Metric) -> None:
        self._metric = metric
        self._last: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def restart(self, probability: Tensor) -> None:
        """Compute the curvature again, and start from the gradient."""
        self._metric.adapt(probability)
        self._last = None

    def next(self, gradient: Tensor, k_gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next direction, K times it, and the slope (..., 1, 1) along it."""
        step, k_step = self._metric.step(gradient, k_gradient)
        size = _dot(k_gradient, step)
        direction, k_direction = step, k_step
        if self._last is not None:
            before, k_before, last, last_size = self._last
            mix = ((size - _dot(k_gradient, last)) / last_size).nan_to_num_().clamp_(min=0)
            direction = torch.addcmul(step, before, mix)
            k_direction = torch.addcmul(k_step, k_before, mix)
        slope = _dot(gradient, k_direction)
        uphill = slope >= 0
        if bool(uphill.any()):  # by rounding: continue from the gradient
            direction = torch.where(uphill, -gradient, direction)
            k_direction = torch.where(uphill, -k_gradient, k_direction)
            slope = torch.where(uphill, -_dot(gradient, k_gradient), slope)
        self._last = direction, k_direction, step, size
        return direction, k_direction, slope


class _Metric:
    """K + γ K Z Zᵀ K with the classes' indicators Z (..., n, c); see the top of this file.

    With `own`, the shots of a class first have a curvature of their own in its column.
    """

    def __init__(self, product: Product, targets: Tensor, tau: Tensor, *, own: bool) -> None:
        self._indicators = targets / targets.sum(-2, keepdim=True).clamp(min=1.0).sqrt()
        # A row of Z has one entry: its size and its class, numbered through the whole batch.
        self._size, self._class = self._indicators.max(-1)
        c = targets.shape[-1]
        first = c * torch.arange(self._size[..., 0].numel(), device=targets.device)
        self._class = (self._class.reshape(len(first), -1) + first[:, None]).flatten()
        self._kz = product(self._indicators)
        self._zkz = self._sums(self._kz)
        self._tau, self._own = tau, own
        self._inverse = torch.zeros_like(self._zkz)
        self._correction: Tensor | None = None  # for the curvature of own shots

    def _sums(self, rows: Tensor) -> Tensor:
        """Zᵀ times rows (..., n, c): (..., c, c)."""
        *batch, _, c = rows.shape
        weighted = (rows * self._size[..., None]).reshape(-1, c)
        sums = rows.new_zeros(math.prod(batch) * c, c).index_add_(0, self._class, weighted)
        return sums.view(*batch, c, c)

    def adapt(self, probability: Tensor) -> None:
        """Set γ to a share of τ times the mean curvature p (1 − p) of the likelihood."""
        curvature = probability - probability.square()
        mean = curvature.mean((-2, -1), keepdim=True)
        gamma, least = CURVATURE_SHARE * self._tau * mean, torch.finfo(mean.dtype).eps
        own, c = None, curvature.shape[-1]
        if self._own and c > 1:
            own = self._tau * (curvature * self._indicators.square()).sum(-2, keepdim=True)
            gamma = (c * self._tau * mean - own.mean(-1, keepdim=True)) / (c - 1)
            gamma = torch.maximum(gamma, OTHER_SHARE * own.amax(-1, keepdim=True))
        gamma = gamma.clamp(min=least)
        eye = torch.eye(c, dtype=gamma.dtype, device=gamma.device)
        self._inverse = torch.cholesky_inverse(cholesky(eye / gamma + self._zkz))
        self._own, self._correction = False, None
        if own is not None:  # another diagonal entry in each column: Sherman and Morrison
            change = 1 / own.clamp(min=least) - 1 / gamma
            diagonal = self._inverse.diagonal(dim1=-2, dim2=-1)[..., None, :]
            self._correction = change / (1 + change * diagonal)

    def step(self, gradient: Tensor, k_gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the gradient in this metric, and K times that; both (..., n, c)."""
        shift = self._inverse @ self._sums(k_gradient)
        if self._correction is not None:
            diagonal = shift.diagonal(dim1=-2, dim2=-1)[..., None, :]
            shift = shift - self._inverse * (self._correction * diagonal)
        spread = shift.flatten(0, -2).index_select(0, self._class).view_as(gradient)
        step = spread.mul_(self._size[..., None]).sub_(gradient)
        return step, matmul(self._kz, shift).sub_(k_gradient)


def solve_rows(
    kernel: Tensor, offset: Tensor, targets: Tensor, tau: float, values: Tensor, rows: Tensor
) -> Tensor:
    """Coefficients (n, c) with those of some rows (k,) at their optimum, all others as given.

    A better start where a change matters to few rows: its iterations cost k² c, not n² c.
    `kernel` is K (n, n), and `values` (n, c) are the given coefficients.
    """
    inner, own = kernel[rows][:, rows], values[rows]
    products = inner @ own
    others = kernel[rows] @ values - products
    solved = softmax_map(
        inner.matmul,
        offset[rows] + others,
        targets[rows],
        tau,
        start=Coefficients(own, products),
        tolerance=ROWS_TOLERANCE,
    )
    return values.index_copy(0, rows, solved.values)


def leave_out(
    product: Product,
    offset: Tensor,
    targets: Tensor,
    tau: float,
    fitted: Coefficients,
    sets: Tensor,
) -> Tensor:
    """K A (n, c) at every row, fitted without the rows of its set.

    `sets` (n,) has the set of each row. Each set is a separate problem that starts from the fitted
    coefficients without its rows; the result is exact to the solver's tolerance.
    """
    n, c = targets.shape
    held_out = torch.empty_like(targets)
    numbers = torch.unique(sets)
    for chunk in torch.split(numbers, max(1, BATCH_ELEMENTS // (8 * n * c))):
        gone = (sets[None, :] == chunk[:, None])[..., None]  # (b, n, 1)
        values = torch.where(gone, 0.0, fitted.values)
        start = Coefficients(values, product(values))
        solved = softmax_map(product, offset, torch.where(gone, 0.0, targets), tau, start=start)
        batch, row = torch.nonzero(gone[..., 0], as_tuple=True)
        held_out[row] = solved.products[batch, row]
    return held_out


class _Line(NamedTuple):
    """A direction from a point, both in logits (..., n, c); see `_solve`."""

    problem: _Problem
    move: Tensor
    change: Tensor
    direction: Tensor
    is_small: bool

    def search(self, slope: Tensor, curve: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The step (..., 1, 1) by Newton's method in a bracket, and the point that it leads to.

        That is its logits and probabilities, as changes from the start. `slope` is the derivative
        at 0, `curve` the second derivative of the prior's part.
        """
        least = self.problem.row_weights.clamp(min=torch.finfo(slope.dtype).tiny)
        # Below the rounding error of the probabilities a slope says nothing; Newton's step does.
        inexact = self.change if self.is_small else self.problem.probability
        squares = _dot(inexact, inexact) * _dot(self.direction, self.direction)
        rounding = torch.finfo(slope.dtype).eps * squares.sqrt()
        numbers = torch.cat([slope, curve, rounding], -1).flatten(0, -2).tolist()
        brackets = [
            _Bracket(first, bend, max(LINE_SHARE * abs(first), r)) for first, bend, r in numbers
        ]
        change = self.change
        for _ in range(LINE_STEPS):
            weighted = (self.problem.probability + change).mul_(self.direction)
            expected = weighted.sum(-1, keepdim=True)
            # A row of weight w adds w times the variance of its direction under the probabilities.
            known = expected.square_().div_(least).sum(-2, keepdim=True)
            second = _dot(weighted, self.direction) - known
            pairs = zip(brackets, second.flatten().tolist(), strict=True)
            length = slope.new_tensor([one.next(bend) for one, bend in pairs]).view_as(slope)
            move = torch.addcmul(self.move, self.direction, length)
            change = self.problem.change(move, is_small=self.is_small)
            changes = _dot(change - self.change, self.direction).flatten().tolist()
            found = [one.is_found(by) for one, by in zip(brackets, changes, strict=True)]
            if all(found):
                break
        return length, move, change


@dataclass(slots=True)
class _Bracket:
    """The step of one problem, in plain numbers: many small operations, one transfer each.

    `slope` and `curve` are those of `_Line.search`; a slope up to `enough` ends the search.
    """

    slope: float
    curve: float
    enough: float
    low: float = 0.0
    high: float = math.inf
    length: float = 0.0
    change: float = 0.0  # of the slope of the likelihood, from the start to this length

    def next(self, second: float) -> float:
        """Newton's step, where the likelihood has this second derivative.

        Outside of the bracket: the middle, or twice the step if there is no upper end.
        """
        bend = second + self.curve
        newton = self.length - self._slope / bend if bend > 0 else math.inf
        if not self.low < newton < self.high:
            newton = 2 * self.low if math.isinf(self.high) else (self.low + self.high) / 2
        self.length = newton
        return newton

    def is_found(self, change: float) -> bool:
        """Whether the slope at this length is small; if not, it is a new end of the bracket."""
        self.change = change
        if self._slope < 0:
            self.low = self.length
        elif self._slope >= 0:
            self.high = self.length
        return abs(self._slope) <= self.enough

    @property
    def _slope(self) -> float:
        return self.slope + self.change + self.length * self.curve


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """The inner product (..., 1, 1) of (..., n, c)."""
    found: Tensor = torch.linalg.vecdot(one.flatten(-2), other.flatten(-2))
    return found[..., None, None]
