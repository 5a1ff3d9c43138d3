"""Zero-shot CLIP: logits = s · f W, from text only (Radford et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError
from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.text_prior import TextPrior


@dataclass(kw_only=True, eq=False, repr=False)
class ZeroShotClassifier(FeatureClassifier):
    """Zero-shot CLIP: classify by text only (Radford et al., 2021).

    `fit` only matches the text with the labels. It learns nothing from the rows.

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.methods import TextPrior, ZeroShotClassifier
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = ZeroShotClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"

    publication = (
        "Radford et al., 2021, Learning Transferable Visual Models From Language Supervision"
    )
    needs = ("text",)
    exports_to_onnx = True

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Match the text with the labels; nothing is learned from the rows.

        Parameters
        ----------
        X : array of shape (n, d)
            Features.
        y : array of shape (n,)
            Labels.

        Returns
        -------
        ZeroShotClassifier
            The fitted estimator.

        Raises
        ------
        DataError
            If there is no text.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache.methods import TextPrior, ZeroShotClassifier
        >>> prior = TextPrior(["cat", "dog"], np.eye(2))
        >>> model = ZeroShotClassifier(text_prior=prior).fit(np.eye(2), ["cat", "dog"])
        >>> model.predict([[0.1, 0.9]]).tolist()
        ['dog']
        """
        self._read_training(X, y)
        if self.text_prior is None:
            raise DataError(
                "ZeroShotClassifier predicts from text: give it text_prior=TextPrior(…)."
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
