"""The interface that exact and approximate precisions share, and leaving rows out in closed form.

A precision is P = (K + noise·I)⁻¹ over the cache keys. To leave row i out of the posterior of a
query needs no refit. With the query's weights w = kP and A = PY,

    mean₋ᵢ = mean − w_i A_i / P_ii,    variance₋ᵢ = variance + w_i² / P_ii,

This holds for any query, also for the left-out row itself, where it is the textbook leave-one-out,
y_i − A_i/P_ii and 1/P_ii − noise (Rasmussen and Williams, 2006, eq. 5.12).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gpcache.gp.kernels import kernel
from gpcache.gp.products import symmetric_matmul

# Elements of the largest temporary of a leave-out batch: 256 MB in float64.
BATCH_ELEMENTS = 2**25
# The same where several such temporaries are held at once.
SMALL_BATCH_ELEMENTS = 2**22


class Posterior(NamedTuple):
    """Mean and variance of a posterior at m queries.

    Parameters
    ----------
    mean : Tensor of shape (m, c)
        Posterior mean of each class.
    variance : Tensor of shape (m, g)
        Posterior variance; one column for each group of classes, usually one.

    Examples
    --------
    >>> import torch
    >>> from gpcache.gp import Posterior
    >>> Posterior(torch.zeros(1, 2), torch.ones(1, 1)).variance.shape
    torch.Size([1, 1])
    """

    mean: Tensor
    variance: Tensor


class OwnTerms(NamedTuple):
    """Terms of b cached rows for leaving each of them out.

    Mean (b, c), variance (b, g), the weight of each row on itself in the mean (b, 1) and in the
    variance (b, g), and its entry of the diagonal of P (b, 1).
    """

    mean: Tensor
    variance: Tensor
    mean_weight: Tensor
    variance_weight: Tensor
    diagonal: Tensor


class Precision(ABC):
    """Interface of the precisions P = (K + noise·I)⁻¹ over the cache keys.

    Instances are immutable. `plan` holds everything that does not depend on the keys.

    Parameters
    ----------
    plan : object
        What `plan` of the class returned.
    keys : Tensor of shape (n, d)
        Unit features of the shots.
    values : Tensor of shape (n, c)
        Targets of the shots.
    beta : float
        Sharpness of the kernel.
    noise : float
        Noise variance.
    precision_gradient : bool, default=True
        Whether P is differentiated.

    Examples
    --------
    >>> import torch
    >>> from gpcache.gp import ExactPrecision
    >>> keys, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> values = torch.nn.functional.one_hot(labels).float()
    >>> plan = ExactPrecision.plan(labels, 2)
    >>> precision = ExactPrecision(plan, keys, values, beta=1.0, noise=0.1)
    >>> precision.posterior(keys).mean.argmax(1).tolist()
    [0, 0, 1, 1]
    """

    #: Whether P, and so `noise`, is defined.
    uses_noise: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def plan(cls, labels: Tensor, n_classes: int, **options: Any) -> Any:
        """Prepare what depends only on labels (n,) and options; it is reused for all keys."""

    def __init__(
        self,
        plan: Any,
        keys: Tensor,
        values: Tensor,
        *,
        beta: float,
        noise: float,
        precision_gradient: bool = True,
    ) -> None:
        self._plan = plan
        self.keys = keys
        self.values = values
        self.beta = beta
        self.noise = noise
        self.precision_gradient = precision_gradient

    # The prior of the softmax likelihood (`gpcache.gp.softmax`): the kernel or its approximation.

    def prior_rows(self, queries: Tensor) -> Tensor:
        """The prior's covariance (m, n) of queries (m, d) and keys."""
        return kernel(queries, self.keys, self.beta)

    @cached_property
    def prior(self) -> Tensor:
        """The prior's covariance (n, n) of the keys."""
        return self.prior_rows(self.keys).detach()

    def prior_product(self, right: Tensor) -> Tensor:
        """The prior's covariance of the keys times (..., n, c)."""
        return symmetric_matmul(self.prior, right)

    def prior_coefficients(self, coefficients: Tensor) -> Tensor:
        """The coefficients (n, c) that `prior_rows` multiplies."""
        return coefficients

    @property
    def class_column(self) -> Tensor | None:
        """The variance column (c,) of each class; None if there is only one column."""
        return None

    def variance_of_classes(self, variance: Tensor) -> Tensor:
        """The variance of each class: (m, g) → (m, c), or (m, 1) if all classes share it."""
        return variance if self.class_column is None else variance[:, self.class_column]

    @abstractmethod
    def posterior(self, queries: Tensor) -> Posterior:
        """Mean and variance at queries (m, d); differentiable in keys and queries."""

    @abstractmethod
    def mean(self, queries: Tensor) -> Tensor:
        """The mean (m, c) without the variance, in O(mn) instead of O(mn²)."""

    def variance(
        self, queries: Tensor, *, quick: bool = False, rows: Tensor | None = None
    ) -> Tensor:
        """The variance (m, g) without the mean; `quick` allows an error of 1 % to save time.

        Pass `rows`, the kernel rows (m, n) of the queries, if they are known already.
        """
        return self.posterior(queries).variance

    @abstractmethod
    def weights(self, queries: Tensor) -> Tensor:
        """Signed weight (m, n) of every key; `weights @ weighted_values` is the mean."""

    @property
    def weighted_values(self) -> Tensor:
        """The values (n, c) that the weights multiply."""
        return self.values

    @property
    @abstractmethod
    def solved_values(self) -> Tensor:
        """A = PY (n, c)."""

    @abstractmethod
    def log_marginal_likelihood(self) -> Tensor:
        """log p(Y), with the columns of Y as independent processes with this covariance."""

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        """The terms above of these rows (b,)."""
        raise NotImplementedError

    @torch.no_grad()
    def leave_one_out(self) -> Posterior:
        """Posterior at every cached row without that row."""
        numbers, solved = torch.arange(len(self.keys), device=self.keys.device), self.solved_values
        means, variances = [], []
        for rows in torch.split(numbers, max(1, SMALL_BATCH_ELEMENTS // max(1, len(numbers)))):
            terms = self._own_terms(rows)
            means.append(terms.mean - terms.mean_weight / terms.diagonal * solved[rows])
            variances.append(terms.variance + terms.variance_weight.square() / terms.diagonal)
        return Posterior(torch.cat(means), proper(torch.cat(variances)))


def proper(variance: Tensor) -> Tensor:
    """Clip a variance to (0, 1] against rounding errors."""
    return variance.clamp(torch.finfo(variance.dtype).eps, 1.0)


def padded_sets(sets: Tensor, rows_at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers (b, s) of whole sets and which are real (b, s), a bounded batch at a time."""
    if len(sets) == 0:
        return
    _, inverse, counts = torch.unique(sets, return_inverse=True, return_counts=True)
    order = torch.argsort(inverse, stable=True)
    starts = counts.cumsum(0) - counts
    widest = int(counts.max())
    offsets = torch.arange(widest, device=sets.device)
    batch = max(1, rows_at_once // widest)
    for first in range(0, len(counts), batch):
        count, start = counts[first : first + batch], starts[first : first + batch]
        present = offsets[None, :] < count[:, None]
        position = torch.where(present, start[:, None] + offsets[None, :], start[:, None])
        yield order[position], present


def rank_within(labels: Tensor, order: Tensor) -> Tensor:
    """For each row (n,) how many rows of its class come before it in `order`."""
    sorted_labels = labels[order]
    grouped = torch.argsort(sorted_labels, stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[sorted_labels[grouped]]
    rank = torch.empty_like(labels)
    rank[order[grouped]] = torch.arange(len(labels), device=labels.device) - starts
    return rank
