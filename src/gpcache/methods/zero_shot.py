"""Zero-shot CLIP: logits = s · f W, from text alone (Radford et al., 2021)."""

from __future__ import annotations

from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError
from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.text_prior import TextPrior


class ZeroShotClassifier(FeatureClassifier):
    """The text classifier. `fit` checks the input and aligns the classes; no shot is used."""

    publication = (
        "Radford et al., 2021, Learning Transferable Visual Models From Language Supervision"
    )
    needs = ("text",)
    exports_to_onnx = True

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
    ) -> None:
        self.text_prior = text_prior
        self.device = device
        self.dtype = dtype

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Align the text prior with the labels."""
        self._read_training(X, y)
        if self.text_prior is None:
            raise DataError(
                "ZeroShotClassifier answers from text alone: give it text_prior=TextPrior(…)."
            )
        self._text = self._text_vectors()
        self.temperature_ = 1.0
        return self

    def _read_state(self, state: State) -> None:
        self._text = self._text_vectors()

    def _logits(self, features: Tensor) -> Tensor:
        logits: Tensor = features @ self._text.mT  # type: ignore[union-attr]
        return logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = True
        return tags
