"""Tip-Adapter and Tip-Adapter-F (Zhang et al., ECCV 2022).

    logits = s · f W + α · exp(−β(1 − f Fᵀ)) Y

Tip-Adapter-F trains the keys F, which are not scaled back to length one, starting from its authors'
first α and β. The narrow kernel that is chosen for untrained keys would leave nothing to learn:
each key would see only its own shot. (If classes have no shots, the kernel stays narrow.) α is
chosen on held-out shots after training; with a validation set, β as well. The same rows decide when
to stop; the authors chose the epoch by test accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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


@dataclass(kw_only=True, eq=False, repr=False)
class TipAdapterClassifier(CacheClassifier):
    """Tip-Adapter: every shot votes for its label by its similarity (Zhang et al., 2022).

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes. Without it, only the shots decide.
    alpha : float or "auto", default="auto"
        Weight of the cache.
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    gain : float or "auto", default=1.0
        Weight of the zero-shot logits; 1 in the paper.
    kernel_space : {"whitened", "centred", "raw"} or Whitened, default="raw"
        The space of the kernel.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied to features first.
    selection : {"auto", "loo", "folds", "validation"} or Selection, default="auto"
        Rows to choose hyper-parameters on.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of folds and batches.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.methods import TextPrior, TipAdapterClassifier
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = TipAdapterClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    gain: float | Auto = 1.0
    kernel_space: Space | Whitened = "raw"
    projection: Projection | ArrayLike | None = None
    selection: SelectionRows | Selection = "auto"
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Zhang et al., 2022, Tip-Adapter: Training-free Adaption of CLIP"
    _defaults = DEFAULTS
    _fixed: ClassVar[dict[str, Any]] = PLAIN


@dataclass(kw_only=True, eq=False, repr=False)
class TipAdapterFClassifier(CacheClassifier):
    """Tip-Adapter-F: Tip-Adapter with trained keys (Zhang et al., 2022).

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes. Without it, only the shots decide.
    training : Training, optional
        Optimiser, schedule and stop. Without `calibrate`, alpha stays where training starts.
    alpha : float or "auto", default="auto"
        Weight of the cache.
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    gain : float or "auto", default=1.0
        Weight of the zero-shot logits; 1 in the paper.
    kernel_space : {"whitened", "centred", "raw"} or Whitened, default="raw"
        The space of the kernel.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied to features first.
    selection : {"auto", "loo", "folds", "validation"} or Selection, default="auto"
        Rows to choose hyper-parameters on.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of folds and batches.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.methods import TextPrior, TipAdapterFClassifier, Training
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = TipAdapterFClassifier(text_prior=prior, training=Training(epochs=2)).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    training: Training | None = None
    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    gain: float | Auto = 1.0
    kernel_space: Space | Whitened = "raw"
    projection: Projection | ArrayLike | None = None
    selection: SelectionRows | Selection = "auto"
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Zhang et al., 2022, Tip-Adapter: Training-free Adaption of CLIP"
    trains = True
    _defaults = DEFAULTS
    _fixed: ClassVar[dict[str, Any]] = PLAIN
    _presets: ClassVar[dict[str, Any]] = {"training": Training(learning_rate=1e-3, epsilon=1e-4)}
    learns_from_views = True

    def _trainer(self) -> Trainer:
        return trainer_of(self._given()["training"], self, start=(START_ALPHA, START_BETA))
