"""CLIP-Adapter (Gao et al., IJCV 2023): a small network on the image feature, mixed with it.

    a(x) = ReLU(U₂ ReLU(U₁ x))        x′ = ratio · a(x) + (1 − ratio) · x        logits = s · x′ W

with U₁: d → d/4, U₂: d/4 → d, no bias, and x′ scaled to length one. The paper feeds features before
they are scaled to length one; stores keep unit vectors, so here x has length one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.kernels import unit_rows
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.trained_head import Parameters, TrainedHeadClassifier
from gpcache.support.checks import positive

REDUCTION = 4


@dataclass(kw_only=True, eq=False, repr=False)
class CLIPAdapterClassifier(TrainedHeadClassifier):
    """CLIP-Adapter: a trained bottleneck on the image features (Gao et al., 2023).

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    ratio : float, default=0.2
        Share of the adapter's output; 0.2 in the paper.
    epochs : int, default=100
        Number of epochs.
    batch_size : int, default=256
        Number of rows in a step.
    learning_rate : float, default=1e-3
        Initial learning rate of AdamW with a cosine schedule.
    weight_decay : float, default=0.0
        Weight decay.
    calibrate : bool, default=True
        Train in folds of the shots as well, to fit the temperature.
    n_folds : int, default=4
        Number of folds of the shots.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of folds and batches.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.methods import CLIPAdapterClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = CLIPAdapterClassifier(text_prior=prior, epochs=5).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    ratio: float = 0.2
    epochs: int = 100
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    calibrate: bool = True
    n_folds: int = 4
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Gao et al., 2023, CLIP-Adapter: Better VLMs with Feature Adapters"
    trains = True
    needs = ("text", "shots")

    def _start(self) -> Parameters:
        ratio = positive("ratio", self.ratio, owner=self, allow_zero=True, auto=False)
        if ratio > 1:
            raise DataError(f"ratio of CLIPAdapterClassifier is a share of at most 1, got {ratio}.")
        generator = torch.Generator().manual_seed(int(self.random_state))
        width = self.n_features_in_
        inner = max(1, width // REDUCTION)

        def drawn(rows: int, columns: int) -> Tensor:
            # As torch starts its linear layers: uniform within 1 / √columns.
            values = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
            return ((2 * values - 1) / sqrt(columns)).to(self._unit_text)

        return [drawn(inner, width), drawn(width, inner)]

    def _head(self, parameters: Parameters, features: Tensor) -> Tensor:
        first, second = parameters
        adapted = torch.relu(torch.relu(features @ first.mT) @ second.mT)
        mixed = unit_rows(self.ratio * adapted + (1 - self.ratio) * features)
        return self._logit_scale * mixed @ self._unit_text.mT
