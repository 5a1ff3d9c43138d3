"""The labelled rows of a cache model, and which of them are held out when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpcache.gp.nystrom import rank_within


class Belief(NamedTuple):
    """How far the labels (n,) that a fit saw are believed, from 0 to 1: `weights` (n,).

    Labels are class numbers, −1 where a class is gone.
    """

    weights: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Shots:
    """Unit rows (n, d), class numbers (n,) of `n_classes`, and text logits (n, c).

    With `residual` the cache regresses on what `gain` · zero_shot leaves unexplained. `views`
    (n, v, d) are augmented views of the rows, for methods that train. `belief` says how far each
    label is believed; all alike by default.
    """

    features: Tensor
    labels: Tensor
    n_classes: int
    zero_shot: Tensor | None = None
    residual: bool = False
    gain: float = 1.0
    views: Tensor | None = None
    belief: Belief | None = None

    @cached_property
    def values(self) -> Tensor:
        """What regression has as targets (n, c): one-hot labels, or their residuals.

        For a class that is known by its text alone they are zero: that no shot was given of it
        says nothing about it.
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
        """How much each label (n,) counts. One that was given after the fit counts in full."""
        if self.belief is None:
            return None
        return torch.where(self.labels == self.belief.labels, self.belief.weights, 1.0)

    @cached_property
    def absent(self) -> Tensor:
        """Classes (c,) without a shot: known by their text alone."""
        return torch.bincount(self.labels, minlength=self.n_classes) == 0

    def _map(self, tensor_map: Any) -> dict[str, Any]:
        """Features, text logits and views, each changed by a function; None stays."""
        parts = {"features": self.features, "zero_shot": self.zero_shot, "views": self.views}
        return {name: None if one is None else tensor_map(one) for name, one in parts.items()}

    def __getitem__(self, rows: Tensor) -> Shots:
        belief = None if self.belief is None else Belief(*(part[rows] for part in self.belief))
        parts = self._map(lambda tensor: tensor[rows])
        return replace(self, labels=self.labels[rows], belief=belief, **parts)

    def to(self, dtype: torch.dtype) -> Shots:
        """The same shots in another dtype."""
        belief = self.belief
        if belief is not None:
            belief = belief._replace(weights=belief.weights.to(dtype))
        return replace(self, belief=belief, **self._map(lambda tensor: tensor.to(dtype)))

    def joined(self, new: Shots) -> Shots:
        """These shots, then the new ones, whose labels are believed in full."""
        views, belief = self.views, self.belief
        if views is not None:  # a new shot is its own only view
            views = torch.cat([views, new.features[:, None].expand(-1, views.shape[1], -1)])
        if belief is not None:
            weights = torch.cat([belief.weights, belief.weights.new_ones(len(new))])
            belief = Belief(weights, torch.cat([belief.labels, new.labels]))
        zero_shot = self.zero_shot
        if zero_shot is not None and new.zero_shot is not None:
            zero_shot = torch.cat([zero_shot, new.zero_shot])
        return replace(
            self,
            features=torch.cat([self.features, new.features]),
            labels=torch.cat([self.labels, new.labels]),
            zero_shot=zero_shot,
            views=views,
            belief=belief,
        )

    def with_classes(self, numbers: Tensor, n_classes: int, text: Tensor | None) -> Shots:
        """The same shots where old class k has the number `numbers[k]`, −1 for none."""
        belief = self.belief
        if belief is not None:
            known = torch.where(belief.labels >= 0, numbers[belief.labels.clamp(min=0)], -1)
            belief = belief._replace(labels=known)
        zero_shot = None if text is None else self.features @ text.mT
        labels = numbers[self.labels]
        return replace(self, labels=labels, n_classes=n_classes, zero_shot=zero_shot, belief=belief)

    def samples(self) -> tuple[Tensor, Tensor]:
        """The views as samples (N, d) of their own with labels (N,); without views, the shots."""
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
        parts = {"features": self.features, "labels": self.labels, "views": self.views}
        if self.belief is not None:
            parts |= {"belief_weights": self.belief.weights, "belief_labels": self.belief.labels}
        for name, tensor in parts.items():
            if tensor is not None:
                arrays[name] = tensor.detach().cpu().numpy()

    # Holding out.

    def with_company(self) -> Tensor:
        """Rows (n,) whose class has another shot: only their absence leaves the class its keys."""
        return torch.bincount(self.labels, minlength=self.n_classes)[self.labels] > 1

    @property
    def has_pairs(self) -> bool:
        """Whether at least half of the classes with shots have two."""
        counts = torch.bincount(self.labels)
        return int((counts > 1).sum()) * 2 >= int((counts > 0).sum())

    @property
    def can_be_held_out(self) -> bool:
        """Whether held-out rows represent the whole: most classes have two shots.

        Also false with a single class, about which there is nothing to decide.
        """
        return self.n_classes > 1 and self.has_pairs

    def content_order(self, seed: int) -> Tensor:
        """A random order of the rows that depends on what they are, not on where they stand."""
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(self.features.shape[1], generator=generator, dtype=torch.float64)
        return torch.argsort(self.features @ direction.to(self.features))

    def folds(self, n_folds: int, seed: int) -> Tensor:
        """Fold (n,) of each row, −1 for rows without company: those are never held out.

        A class's shots go to different folds as far as they can, so a fold takes about the same
        share of every class and leaves each of them keys.
        """
        rank = rank_within(self.labels, self.content_order(seed))
        most = int(torch.bincount(self.labels).max())
        return torch.where(self.with_company(), rank % max(2, min(n_folds, most)), -1)

    def folds_of_sets(self, sets: Tensor, n_folds: int, seed: int = 0) -> Tensor:
        """As `folds`, with all rows of a set (n,) in one fold.

        Rows whose class has no row in another set are never held out (−1).
        """
        order = self.content_order(seed)
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
