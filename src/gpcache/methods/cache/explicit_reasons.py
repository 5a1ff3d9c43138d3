"""The shots behind an answer in explicit features, read from where they are kept.

At the optimum the coefficients are A = τ K⁻¹ Σ k(L, z) (y − p(z)), a sum over the shots z with
their labels y and the probabilities p(z) of the fit. So the cache logit of a row x is a sum of
shares

    α τ k(x, L) K⁻¹ k(L, z) (y − p(z)),

of which those of the nearest shots are computed. After `add`, shares of earlier shots are
approximate: the model has taken their posterior for granted since.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky
from gpcache.gp.explicit import core_of
from gpcache.gp.kernels import kernel
from gpcache.methods.cache.explicit import Streamed, batch_rows, prior_terms
from gpcache.methods.cache.model import CacheModel, Reasons
from gpcache.methods.cache.row_stream import RowStream
from gpcache.methods.cache.softmax import prior_logits

# The shots of the highest cosine to a row, among which those of the largest shares are found.
CANDIDATES = 256


@torch.no_grad()
def reasons(
    model: CacheModel,
    streamed: Streamed,
    features: Tensor,
    shots: RowStream,
    *,
    top: int | None,
    column: Tensor | None,
) -> Reasons:
    """The shots that count most for unit rows (m, d), `top` of them or all candidates."""
    parts = model.answer(features, top=1, column=column).reasons
    assert parts is not None
    choice, landmarks = model.choice, model.precision.keys
    own = kernel(model.feature_map(features), landmarks, choice.beta)
    factor = cholesky(core_of(landmarks, choice.beta))
    reach = torch.cholesky_solve(own.mT.double(), factor).to(own).mT  # (m, D)
    nearest = _nearest(features, shots)
    size = batch_rows(shots.n_classes, len(landmarks), features.device)
    queries = max(1, size // CANDIDATES)
    pieces = zip(
        *(torch.split(part, queries) for part in (reach, nearest, parts.column)), strict=True
    )
    shares = torch.cat([_shares(model, streamed, shots, *piece) for piece in pieces])
    order = shares.abs().argsort(1, descending=True)[:, :top]
    return parts._replace(shots=nearest.gather(1, order), shares=shares.gather(1, order))


def _shares(
    model: CacheModel,
    streamed: Streamed,
    shots: RowStream,
    reach: Tensor,
    nearest: Tensor,
    column: Tensor,
) -> Tensor:
    """The shares (m, k) of the shots of these numbers (m, k) in the classes `column` (m,).

    `reach` (m, D) is k(x, L) K⁻¹ of the rows x that are explained.
    """
    assert model.coefficients is not None
    choice, some = model.choice, torch.unique(nearest)
    known = shots.shots(some)
    across = kernel(model.feature_map(known.features), model.precision.keys, choice.beta)
    prior = prior_logits(known.features, *prior_terms(model, streamed))
    residual = known.one_hot - torch.softmax(prior + across @ model.coefficients, 1)  # (u, c)
    shares = choice.alpha * choice.tau * (reach @ across.mT) * residual.mT[column]
    return shares.gather(1, torch.searchsorted(some, nearest))


def _nearest(features: Tensor, shots: RowStream) -> Tensor:
    """The numbers (m, k) of the shots with the highest cosines to unit rows (m, d)."""
    size = batch_rows(shots.n_classes, max(len(features), shots.width), features.device)
    best = features.new_empty(len(features), 0)
    numbers = torch.empty(len(features), 0, dtype=torch.long, device=features.device)
    first = 0
    for rows, _ in shots.batches(size):
        own = torch.arange(first, first + len(rows), device=features.device)
        cosines = torch.cat([best, features @ rows.mT], 1)
        numbers = torch.cat([numbers, own.expand(len(features), -1)], 1)
        best, places = cosines.topk(min(CANDIDATES, cosines.shape[1]), 1)
        numbers = numbers.gather(1, places)
        first += len(rows)
    return numbers
