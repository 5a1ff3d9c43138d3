"""Tip-Adapter and Tip-Adapter-F (Zhang et al., ECCV 2022).

    logits = s · f W + α · exp(−β(1 − f Fᵀ)) Y

Tip-Adapter-F trains the keys F, which are not scaled back to length one, at its authors' first α
and β: the narrow kernel that suits the shots as they are leaves each key alone with its own shot,
and nothing to learn. (Where classes have text alone the kernel stays narrow.) α is found once keys
are trained, on held-out shots; with a validation set, β as well. The same rows say when to stop;
the authors picked the epoch by test accuracy.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from numpy.typing import ArrayLike

from gpcache.gp.feature_maps import Projection
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.search import Auto, Defaults, OneShot
from gpcache.methods.cache.setup import trainer_of
from gpcache.methods.cache.training import Trainer
from gpcache.methods.options import Selection, SelectionRows, Space, Training, Whitened
from gpcache.methods.text_prior import TextPrior

# Its authors start at β = 1 on all of eleven data sets, and at an α from 1.17 to 10, which is 3 on
# Caltech, Cars and UCF101. On DTD and Caltech, ViT-B/32, 1 is worse, and 10 as good.
START_ALPHA, START_BETA = 3.0, 1.0

DEFAULTS = Defaults(
    beta=5.5,
    with_text=OneShot(noise=1.0, alpha=8.0),
    without_text=OneShot(noise=1.0, alpha=20.0),
)
# A plain sum of kernel values, with labels as values.
PLAIN: dict[str, Any] = {"prior": "zero_shot", "precision_weighting": False}


class TipAdapterClassifier(CacheClassifier):
    """The plain kernel cache: every shot votes for its label by its similarity.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text of the classes; None gives a cache alone.
    alpha, beta : float or "auto"
        Weight and sharpness of the cache.
    gain : float or "auto"
        Weight of the zero-shot logits; 1 in the paper.
    kernel_space, projection, selection, device, dtype, random_state
        As in `GPCacheClassifier`.
    """

    publication = "Zhang et al., 2022, Tip-Adapter: Training-free Adaption of CLIP"
    _defaults = DEFAULTS
    _fixed: ClassVar[dict[str, Any]] = PLAIN

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        alpha: float | Auto = "auto",
        beta: float | Auto = "auto",
        gain: float | Auto = 1.0,
        kernel_space: Space | Whitened = "raw",
        projection: Projection | ArrayLike | None = None,
        selection: SelectionRows | Selection = "auto",
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.alpha = alpha
        self.beta = beta
        self.gain = gain
        self.kernel_space = kernel_space
        self.projection = projection
        self.selection = selection
        self.device = device
        self.dtype = dtype
        self.random_state = random_state


class TipAdapterFClassifier(CacheClassifier):
    """Tip-Adapter with trained keys.

    Parameters
    ----------
    training : Training, optional
        Optimiser, schedule and stop; without `calibrate` α stays where training started.
    text_prior, alpha, beta, gain, kernel_space, projection, selection, device, dtype, random_state
        As in `TipAdapterClassifier`.
    """

    publication = "Zhang et al., 2022, Tip-Adapter: Training-free Adaption of CLIP"
    trains = True
    _defaults = DEFAULTS
    _fixed: ClassVar[dict[str, Any]] = PLAIN
    _presets: ClassVar[dict[str, Any]] = {"training": Training(learning_rate=1e-3, epsilon=1e-4)}
    learns_from_views = True

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        training: Training | None = None,
        alpha: float | Auto = "auto",
        beta: float | Auto = "auto",
        gain: float | Auto = 1.0,
        kernel_space: Space | Whitened = "raw",
        projection: Projection | ArrayLike | None = None,
        selection: SelectionRows | Selection = "auto",
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.training = training
        self.alpha = alpha
        self.beta = beta
        self.gain = gain
        self.kernel_space = kernel_space
        self.projection = projection
        self.selection = selection
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        views: ArrayLike | None = None,
    ) -> Self:
        """As `TipAdapterClassifier.fit`; `views` (n, v, d) of the shots are queries too."""
        return self._fit(X, y, validation, views)

    def _trainer(self) -> Trainer:
        return trainer_of(self._given()["training"], self, start=(START_ALPHA, START_BETA))
