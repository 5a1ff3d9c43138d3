"""The labelled rows of a cache model, and the folds in which they are held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpcache.gp.precision import rank_within


class LabelWeights(NamedTuple):
    """Row weights (n,) from 0 to 1: the probability, at the fit, that a label is right.

    They belong to these `labels` (n,): class numbers, −1 for a class that was removed.
    """

    weights: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Shots:
    """Unit rows (n, d), class numbers (n,) of `n_classes`, and text logits (n, c).

    With `residual` the cache regresses on what `gain` · zero_shot leaves unexplained. `views`
    (n, v, d) are augmented views of the rows, for methods that train. `label_weights` are row
    weights where labels seem wrong; None weights all rows equally. `sample_weight` (n,) says how
    often each row counts, in the likelihood and in the space of the kernel.
    """

    features: Tensor
    labels: Tensor
    n_classes: int
    zero_shot: Tensor | None = None
    residual: bool = False
    gain: float = 1.0
    views: Tensor | None = None
    label_weights: LabelWeights | None = None
    sample_weight: Tensor | None = None

    @cached_property
    def values(self) -> Tensor:
        """The targets of regression (n, c): one-hot labels, or their residuals.

        They are zero for a class without shots: its missing shots are no evidence against it.
        """
        values = self.one_hot
        if not self.residual or self.zero_shot is None:
            return values
        values = values - (self.gain * self.zero_shot).softmax(-1)
        return values.masked_fill(self.absent, 0)

    @property
    def one_hot(self) -> Tensor:
        """Labels (n, c)."""
        return torch.nn.functional.one_hot(self.labels, self.n_classes).to(self.features)

    def at_gain(self, gain: float) -> Shots:
        """The same shots with the values that belong to another gain."""
        return self if gain == self.gain else replace(self, gain=gain)

    @property
    def weights(self) -> Tensor | None:
        """Row weights (n,), or None. A label that was given after the fit is not doubted."""
        if self.label_weights is None:
            return self.sample_weight
        weights = torch.where(
            self.labels == self.label_weights.labels, self.label_weights.weights, 1.0
        )
        return weights if self.sample_weight is None else weights * self.sample_weight

    @cached_property
    def absent(self) -> Tensor:
        """Classes (c,) without a shot: known by their text alone."""
        return torch.bincount(self.labels, minlength=self.n_classes) == 0

    def _map(self, change: Callable[[Tensor], Tensor]) -> Shots:
        """The shots with every tensor of one row for each changed by a function; None stays."""
        names = ("features", "labels", "zero_shot", "views", "sample_weight")
        tensors = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {
            name: None if one is None else change(one) for name, one in tensors.items()
        }
        if self.label_weights is not None:
            changed["label_weights"] = LabelWeights(*map(change, self.label_weights))
        return replace(self, **changed)

    def __getitem__(self, rows: Tensor | slice) -> Shots:
        return self._map(lambda tensor: tensor[rows])

    def to(self, dtype: torch.dtype) -> Shots:
        """The same shots in another dtype."""
        return self._map(lambda one: one.to(dtype) if one.is_floating_point() else one)

    def joined(self, new: Shots) -> Shots:
        """These shots, then the new ones, which have weight 1."""
        views, label_weights, sample_weight = self.views, self.label_weights, self.sample_weight
        if sample_weight is not None:
            sample_weight = torch.cat([sample_weight, sample_weight.new_ones(len(new))])
        if views is not None:  # a new shot is its own only view
            views = torch.cat([views, new.features[:, None].expand(-1, views.shape[1], -1)])
        if label_weights is not None:
            weights = torch.cat([label_weights.weights, label_weights.weights.new_ones(len(new))])
            label_weights = LabelWeights(weights, torch.cat([label_weights.labels, new.labels]))
        zero_shot = self.zero_shot
        if zero_shot is not None and new.zero_shot is not None:
            zero_shot = torch.cat([zero_shot, new.zero_shot])
        return replace(
            self,
            features=torch.cat([self.features, new.features]),
            labels=torch.cat([self.labels, new.labels]),
            zero_shot=zero_shot,
            views=views,
            label_weights=label_weights,
            sample_weight=sample_weight,
        )

    def with_classes(self, numbers: Tensor, n_classes: int, text: Tensor | None) -> Shots:
        """The same shots where old class k has the number `numbers[k]`, −1 for none."""
        label_weights = self.label_weights
        if label_weights is not None:
            known = torch.where(
                label_weights.labels >= 0, numbers[label_weights.labels.clamp(min=0)], -1
            )
            label_weights = label_weights._replace(labels=known)
        return replace(
            self,
            labels=numbers[self.labels],
            n_classes=n_classes,
            zero_shot=None if text is None else self.features @ text.mT,
            label_weights=label_weights,
        )

    def samples(self) -> tuple[Tensor, Tensor]:
        """The views as samples (N, d) with labels (N,); without views, the shots."""
        if self.views is None:
            return self.features, self.labels
        return self.views.flatten(0, 1), self.labels.repeat_interleave(self.views.shape[1])

    def __len__(self) -> int:
        return len(self.features)

    @property
    def per_class(self) -> float:
        """Mean shots of the classes that have any."""
        return len(self) / max(1, len(torch.unique(self.labels)))

    def write(self, arrays: dict[str, Any]) -> None:
        """Add what a saved model needs of its shots."""
        names = ("features", "labels", "views", "sample_weight")
        parts = {name: getattr(self, name) for name in names}
        if self.label_weights is not None:
            parts |= {
                "belief_weights": self.label_weights.weights,
                "belief_labels": self.label_weights.labels,
            }
        for name, tensor in parts.items():
            if tensor is not None:
                arrays[name] = tensor.detach().cpu().numpy()

    # Holding out.

    def with_company(self) -> Tensor:
        """Rows (n,) whose class has another shot: only these can be held out."""
        return torch.bincount(self.labels, minlength=self.n_classes)[self.labels] > 1

    @property
    def has_pairs(self) -> bool:
        """Whether at least half of the classes with shots have two."""
        counts = torch.bincount(self.labels)
        return int((counts > 1).sum()) * 2 >= int((counts > 0).sum())

    @property
    def can_be_held_out(self) -> bool:
        """Whether held-out rows represent the whole: most classes have two shots.

        Also false with a single class: there is nothing to choose.
        """
        return self.n_classes > 1 and self.has_pairs

    def content_order(self, seed: int) -> Tensor:
        """A random order of the rows that depends on their content, not on their position."""
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(self.features.shape[1], generator=generator, dtype=torch.float64)
        return torch.argsort(self.features @ direction.to(self.features))

    def folds(self, n_folds: int, seed: int) -> Tensor:
        """Fold (n,) of each row; −1 for the only row of a class, which is never held out.

        A class's shots go to different folds as far as they can, so a fold takes about the same
        share of every class and leaves each of them keys.
        """
        rank = rank_within(self.labels, self.content_order(seed))
        most = int(torch.bincount(self.labels).max())
        return torch.where(self.with_company(), rank % max(2, min(n_folds, most)), -1)

    def folds_of_sets(self, sets: Tensor, n_folds: int) -> Tensor:
        """As `folds`, with all rows of a set (n,) in one fold.

        Rows whose class has no row in another set are never held out (−1).
        """
        order = self.content_order(0)
        _, member = torch.unique(sets, return_inverse=True)
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order), device=order.device)
        first = torch.full((int(member.max()) + 1,), len(order), device=order.device)
        first.scatter_reduce_(0, member, position, "amin")
        leaders = order[first]  # the first row of each set
        rank = rank_within(self.labels[leaders], torch.argsort(first))
        pairs = torch.unique(torch.stack([self.labels, member], 1), dim=0)
        counts = torch.bincount(pairs[:, 0], minlength=self.n_classes)
        fold = rank[member] % max(2, min(n_folds, int(counts.max())))
        return torch.where(counts[self.labels] > 1, fold, -1)


def fold_rows(fold: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(rows to learn from, rows held out) of each fold, given the fold (n,) of each row."""
    numbers = torch.unique(fold[fold >= 0]).tolist()
    return [(torch.nonzero(fold != k)[:, 0], torch.nonzero(fold == k)[:, 0]) for k in numbers]
