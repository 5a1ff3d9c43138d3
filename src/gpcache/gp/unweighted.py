"""The plain kernel sum k Y of Tip-Adapter, without a precision: the limit of infinite noise."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gpcache.errors import ProtocolError
from gpcache.gp.kernels import kernel
from gpcache.gp.precision import OwnTerms, Posterior, Precision


class Unweighted(Precision):
    """Every key counts by its similarity; the variance is unknown and set to one."""

    uses_noise: ClassVar[bool] = False

    @classmethod
    def plan(cls, labels: Tensor, n_classes: int, **_: Any) -> None:
        """No plan is needed."""

    def posterior(self, queries: Tensor) -> Posterior:
        mean = self.mean(queries)
        return Posterior(mean, mean.new_ones(len(queries), 1))

    def mean(self, queries: Tensor) -> Tensor:
        return self.weights(queries) @ self.values

    def weights(self, queries: Tensor) -> Tensor:
        return kernel(queries, self.keys, self.beta)

    @property
    def solved_values(self) -> Tensor:
        return self.values

    def log_marginal_likelihood(self) -> Tensor:
        raise ProtocolError(
            "A plain kernel cache is not a probability model and has no marginal likelihood: "
            "use criterion='nll' or 'accuracy'."
        )

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        keys = self.keys[rows]
        weight = kernel(keys[:, None], keys[:, None], self.beta)[:, 0]
        mean, variance = self.posterior(keys)
        return OwnTerms(mean, variance, weight, torch.zeros_like(weight), torch.ones_like(weight))
