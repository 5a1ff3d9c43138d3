"""A fitted grouped cache: queries go to every group, and the answers come together again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpcache.cluster.grouped.engine import Engine, EngineName, opened
from gpcache.cluster.grouped.groups import Fitted, mean, posterior
from gpcache.cluster.grouped.keys import Keys
from gpcache.gp.fusion import fuse
from gpcache.gp.precision import BATCH_ELEMENTS, Posterior
from gpcache.methods.cache.search import Choice
from gpcache.support.progress import progress_bar


@dataclass(frozen=True)
class GroupedModel:
    """Keys, the solved values of each group, text (c, d) if any, and the chosen numbers."""

    keys: Keys
    parts: list[Fitted]
    text: Tensor | None
    choice: Choice
    n_classes: int

    def logits(self, engine: EngineName, features: Tensor) -> Iterator[Tensor]:
        """(b, c) of unit rows (m, d), a batch after the other."""
        with opened(engine) as opened_engine:
            handle = opened_engine.share(self.keys)
            for batch in self._batches(features):
                with_variance = self.choice.eta != 0
                found = self._gathered(opened_engine, handle, batch, with_variance)
                yield self._fused(batch, found)

    def posterior(self, engine: EngineName, features: Tensor) -> Iterator[Posterior]:
        """Mean (b, c) and variance (b, g) of the cache alone, in the same batches."""
        with opened(engine) as opened_engine:
            handle = opened_engine.share(self.keys)
            for batch in self._batches(features):
                yield self._gathered(opened_engine, handle, batch, True)

    def _batches(self, features: Tensor) -> tuple[Tensor, ...]:
        """Rows whose answers, and whose kernel rows in a group, stay small."""
        widest = max(len(part.group.rows) for part in self.parts)
        return torch.split(features, max(64, BATCH_ELEMENTS // max(widest, self.n_classes)))

    def _gathered(
        self, engine: Engine, handle: object, features: Tensor, with_variance: bool
    ) -> Posterior:
        beta, noise = self.choice.beta, self.choice.noise
        queries = engine.share(self.keys.feature_map(features).cpu().numpy())
        if with_variance:
            groups = [part.group for part in self.parts]
            answers = engine.scatter(posterior, groups, handle, queries, beta, noise)
        else:
            answers = engine.scatter(mean, self.parts, handle, queries, beta)
        means = torch.empty(len(features), self.n_classes, dtype=self.keys.dtype)
        width = len(self.parts) if with_variance else 0
        variances = torch.empty(len(features), width, dtype=self.keys.dtype)
        with progress_bar("Asking the groups", total=len(self.parts), unit="group") as bar:
            for number, (part, answer) in enumerate(zip(self.parts, answers, strict=True)):
                means[:, torch.as_tensor(part.group.classes)] = torch.tensor(answer.mean)
                if with_variance:
                    variances[:, number] = torch.tensor(answer.variance)
                bar.update()
        return Posterior(means, variances)

    def _fused(self, features: Tensor, found: Posterior) -> Tensor:
        zero_shot = None if self.text is None else (features @ self.text.mT).cpu()
        spread = None
        if self.choice.eta != 0:
            column = torch.empty(self.n_classes, dtype=torch.long)
            for number, part in enumerate(self.parts):
                column[torch.as_tensor(part.group.classes)] = number
            spread = found.variance[:, column]
        choice = self.choice
        return fuse(zero_shot, found.mean, spread, alpha=choice.alpha, eta=choice.eta)
