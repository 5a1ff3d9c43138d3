"""Tip-Adapter and Tip-Adapter-F (Zhang et al., ECCV 2022).

    logits = s · f W + α · exp(−β(1 − f Fᵀ)) Y

Tip-Adapter-F trains the keys F, which are not scaled back to length one. Its authors picked the
epoch by test accuracy; here held-out shots or a validation set say when to stop.
"""

from __future__ import annotations

from typing import Any

from gpcache.gp import Precision, Unweighted
from gpcache.methods.base import extends_options
from gpcache.methods.cache import CacheClassifier
from gpcache.methods.trained import TrainedCacheMixin
from gpcache.search import Defaults, OneShot


class TipAdapterClassifier(CacheClassifier):
    """The plain kernel cache: every shot votes for its label by its similarity.

    Parameters
    ----------
    text_prior : what the text says; None gives a cache alone.
    alpha, beta : weight and sharpness of the cache, numbers or "auto".
    gain : weight of the zero-shot logits; 1 in the paper, "auto" to fit it.
    kernel_space, projection, criterion, selection, strategy, n_folds, device, dtype, random_state :
        as in `GPCacheClassifier`.
    """

    _defaults = Defaults(
        beta=5.5,
        with_text=OneShot(noise=1.0, alpha=8.0),
        without_text=OneShot(noise=1.0, alpha=20.0),
    )

    def _precision(self) -> tuple[type[Precision], dict[str, Any]]:
        return Unweighted, {}


class TipAdapterFClassifier(TrainedCacheMixin, TipAdapterClassifier):
    """Tip-Adapter with trained keys.

    Parameters
    ----------
    epochs, batch_size, learning_rate, weight_decay, epsilon, stopping, calibrate : as in
        `GPCacheFClassifier`.
    **options : everything that `TipAdapterClassifier` takes.
    """

    @extends_options(TipAdapterClassifier, TrainedCacheMixin)
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
