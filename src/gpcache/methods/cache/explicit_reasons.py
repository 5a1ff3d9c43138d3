"""The shots behind an answer in explicit features, read from where they are kept.

At the optimum the coefficients are A = τ K⁻¹ Σ k(L, z) (y − p(z)), a sum over the shots z with
their labels y and the probabilities p(z) of the fit. So the cache logit of a row x is a sum of
shares

    α τ k(x, L) K⁻¹ k(L, z) (y − p(z)),

of which some are computed: those of shots near x, or, from an index, of shots with a large residual
y − p(z) in the class of the answer. As |k(x, L) K⁻¹ k(L, z)| is at most 1, an index can be read
until no further shot can count more. After `add`, shares of earlier shots are approximate: the
model has taken their posterior for granted since.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpcache.features.shot_index import Residuals, ShotIndex
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.methods.cache.explicit import Streamed, batch_rows, prior_terms
from gpcache.methods.cache.model import CacheModel, Reasons
from gpcache.methods.cache.row_stream import RowStream
from gpcache.methods.cache.softmax import prior_logits
from gpcache.support.threads import limited_threads

# The shots of the highest cosine to a row, among which those of the largest shares are found: first
# those of the class that is explained, as others have small residuals there.
CANDIDATES = 256
# Shots of an index that are read at once for an answer, and at most.
READ, MOST_READ = 256, 4096


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
    reach = _reach(model, features)
    nearest = _nearest(features, shots, parts.column)
    size = batch_rows(shots.n_classes, reach.shape[1], features.device)
    queries = max(1, size // CANDIDATES)
    pieces = zip(
        *(torch.split(part, queries) for part in (reach, nearest, parts.column)), strict=True
    )
    shares = torch.cat([_shares(model, streamed, shots, *piece) for piece in pieces])
    order = shares.abs().argsort(1, descending=True)[:, :top]
    return parts._replace(shots=nearest.gather(1, order), shares=shares.gather(1, order))


@torch.no_grad()
def reasons_from_index(
    model: CacheModel,
    features: Tensor,
    index: ShotIndex,
    *,
    top: int | None,
    column: Tensor | None,
) -> Reasons:
    """The shots of an index that count most for unit rows (m, d); −1 where it has no further."""
    parts = model.answer(features, top=1, column=column).reasons
    assert parts is not None
    # What is read at once decides on the threads: it is too little to wait for a busy core.
    with limited_threads(READ * model.precision.keys.numel(), features.device):
        pairs = zip(_reach(model, features), parts.column.tolist(), strict=True)
        found = [_largest(model, index, *pair, top) for pair in pairs]
    width = max((len(numbers) for numbers, _ in found), default=0)
    shots = parts.column.new_full((len(features), width), -1)
    shares = features.new_zeros(len(features), width)
    for row, (numbers, own) in enumerate(found):
        shots[row, : len(numbers)], shares[row, : len(numbers)] = numbers, own
    return parts._replace(shots=shots, shares=shares)


def _largest(
    model: CacheModel, index: ShotIndex, reach: Tensor, label: int, top: int | None
) -> tuple[Tensor, Tensor]:
    """The numbers (k,) and shares (k,) of the shots that count most in a class, for one row."""
    choice, landmarks = model.choice, model.precision.keys
    numbers, found = index.counting(label)
    numbers, residuals = numbers[:MOST_READ], torch.from_numpy(found[:MOST_READ]).to(reach)
    scale, shares = choice.alpha * choice.tau, reach.new_empty(0)
    for first in range(0, len(numbers), READ):
        if top is not None and len(shares) >= top:
            least = shares.abs().topk(top).values[-1]
            if scale * residuals[first].abs() <= least:  # no further shot can count more
                break
        part = slice(first, first + READ)
        rows = unit_rows(torch.from_numpy(index.rows(numbers[part])).to(reach))
        across = kernel(model.feature_map(rows), landmarks, choice.beta)
        shares = torch.cat([shares, scale * (across @ reach) * residuals[part]])
    order = shares.abs().argsort(descending=True)[:top]
    return torch.from_numpy(numbers).to(order.device)[order], shares[order]


@torch.no_grad()
def residuals_of(model: CacheModel, streamed: Streamed, shots: RowStream) -> Residuals:
    """What the fit has left of all shots, in one pass over them."""
    assert model.coefficients is not None
    landmarks, terms = model.precision.keys, prior_terms(model, streamed)
    size = batch_rows(shots.n_classes, len(landmarks), landmarks.device)
    parts = []
    for rows, labels in shots.batches(size):
        across = kernel(model.feature_map(rows), landmarks, model.choice.beta)
        logs = torch.log_softmax(prior_logits(rows, *terms) + across @ model.coefficients, 1)
        own = -torch.expm1(logs.gather(1, labels[:, None])[:, 0])
        wrong = logs.scatter_(1, labels[:, None], -torch.inf).max(1)
        part = own.float(), wrong.indices, wrong.values.exp().float()
        parts.append([one.cpu().numpy() for one in part])
    return Residuals(*(np.concatenate(one) for one in zip(*parts, strict=True)))


def _reach(model: CacheModel, features: Tensor) -> Tensor:
    """k(x, L) K⁻¹ (m, D) of unit rows x (m, d)."""
    own = kernel(model.feature_map(features), model.precision.keys, model.choice.beta)
    return torch.cholesky_solve(own.mT.double(), model.landmark_factor).to(own).mT


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


def _nearest(features: Tensor, shots: RowStream, column: Tensor) -> Tensor:
    """The numbers (m, k) of the shots with the highest cosines to unit rows (m, d).

    Those of the classes `column` (m,) come first, but leave a quarter of the places to others.
    """
    size = batch_rows(shots.n_classes, max(len(features), shots.width), features.device)
    count = min(CANDIDATES, len(shots))
    few = count // 4
    first, lists = 0, [_Best.empty(features), _Best.empty(features)]
    for rows, labels in shots.batches(size):
        near, own = features @ rows.mT, 3.0 * (labels == column[:, None])
        pairs = zip(lists, (near + own, near - own), (count, few), strict=True)
        lists = [best.with_rows(score, first, places) for best, score, places in pairs]
        first += len(rows)
    # Others take the last places where the class alone would fill them.
    (scores, numbers), (_, others) = lists
    rest = count - few
    full = scores[:, rest - 1 : rest] > 1
    return torch.cat([numbers[:, :rest], torch.where(full, others, numbers[:, rest:])], 1)


class _Best(NamedTuple):
    """The highest scores (m, k) so far, best first, and the numbers (m, k) of their rows."""

    scores: Tensor
    numbers: Tensor

    @classmethod
    def empty(cls, features: Tensor) -> _Best:
        """Of no rows yet, for rows (m, d)."""
        scores = features.new_empty(len(features), 0)
        return cls(scores, scores.long())

    def with_rows(self, scores: Tensor, first: int, count: int) -> _Best:
        """With further scores (m, b), of the rows from the number `first` on."""
        own = torch.arange(first, first + scores.shape[1], device=scores.device)
        numbers = torch.cat([self.numbers, own.expand(len(scores), -1)], 1)
        scores = torch.cat([self.scores, scores], 1)
        best, places = scores.topk(min(count, scores.shape[1]), 1)
        return _Best(best, numbers.gather(1, places))
