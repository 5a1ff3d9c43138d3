"""Tip-Adapter and Tip-Adapter-F (Zhang et al., ECCV 2022).

    logits = s · f W + α · exp(−β(1 − f Fᵀ)) Y

Tip-Adapter-F trains the keys F, which are not scaled back to length one, at its authors' first α
and β: the narrow kernel that suits the shots as they are leaves each key alone with its own shot,
and nothing to learn. (Where classes have text alone the kernel stays narrow.) α is found once keys
are trained, on held-out shots; with a validation set, β as well. The same rows say when to stop;
the authors picked the epoch by test accuracy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpcache.gp import Precision, Unweighted
from gpcache.methods.base import extends_options
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.search import Choice, Defaults, OneShot, Settings, shipped
from gpcache.methods.cache.shots import Evidence, Shots
from gpcache.methods.cache.training import TrainedCacheMixin
from gpcache.support.checks import is_auto

# Its authors start at β = 1 on all of eleven data sets, and at an α from 1.17 to 10, which is 3 on
# Caltech, Cars and UCF101. On DTD and Caltech, ViT-B/32, 1 is worse, and 10 as good.
START_ALPHA, START_BETA = 3.0, 1.0


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
        `GPCacheFClassifier`; without `calibrate` α stays where training started.
    **options : everything that `TipAdapterClassifier` takes.
    """

    @extends_options(TipAdapterClassifier, TrainedCacheMixin)
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)

    @property
    def _weighs_anew(self) -> bool:  # type: ignore[override]
        # In a wide kernel every shot votes on everything: a verdict on classes that have none.
        return self.epochs > 0 and not bool(self._shots.absent.any())

    def _start(self, judged: bool) -> Choice:
        # Beside text the weight of the cache matters, and unseen rows must find it afterwards.
        if not self._weighs_anew or (self._text is not None and not judged):
            return self._choice
        asked = self._settings()
        alpha = START_ALPHA if is_auto(asked.alpha) else asked.alpha
        beta = START_BETA if is_auto(asked.beta) else asked.beta
        start = replace(asked, alpha=alpha, beta=beta)
        return shipped(start, with_text=self._text is not None)

    def _select(self, settings: Settings, validation: Shots | None) -> Evidence | None:
        if not self._weighs_anew or (validation is None and self._is_silent()):
            return super()._select(settings, validation)
        self._accept([self._start(judged=True)])
        return None
