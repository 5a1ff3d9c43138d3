"""TaskRes (Yu et al., CVPR 2023): the text classifier plus a trained residual of each class.

    t′_y = t_y + α · x_y        logits = s · f · t′_y / ‖t′_y‖

x starts at zero, so that training starts at zero-shot. t has the length that the encoder gives it
(`TextPrior.length`, about ten for CLIP), not length one: at length ten a step turns t′ by a tenth
as much. The authors train 100 epochs, 200 from 8 shots on, with Adam after one epoch of warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gpcache.gp.kernels import unit_rows
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.trained_head import Parameters, TrainedHeadClassifier
from gpcache.support.checks import positive

# With at least this many shots a class, the authors train twice as long.
MANY_SHOTS = 8


@dataclass(kw_only=True, eq=False, repr=False)
class TaskResClassifier(TrainedHeadClassifier):
    """TaskRes: trained residuals of the text vectors (Yu et al., 2023).

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    residual_scale : float, default=0.5
        Scale of the residual; 0.5 in the paper, 1 for Flowers.
    epochs : int or "auto", default="auto"
        Number of epochs. "auto" is 100, and 200 from 8 shots per class on.
    batch_size : int, default=256
        Number of rows in a step.
    learning_rate : float, default=2e-3
        Initial learning rate of Adam with a cosine schedule.
    weight_decay : float, default=5e-4
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
    >>> from gpcache.methods import TaskResClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = TaskResClassifier(text_prior=prior, epochs=5).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    residual_scale: float = 0.5
    epochs: int | Auto = "auto"
    batch_size: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 5e-4
    calibrate: bool = True
    n_folds: int = 4
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Yu et al., 2023, Task Residual for Tuning Vision-Language Models"
    trains = True
    needs = ("text", "shots")
    _optimiser: ClassVar[Literal["adamw", "adam", "sgd"]] = "adam"
    _per_class: ClassVar[bool] = True
    _warm_up_epochs: ClassVar[int] = 1
    _epsilon: ClassVar[float] = 1e-8

    def _start(self) -> Parameters:
        positive("residual_scale", self.residual_scale, owner=self, auto=False)
        return [torch.zeros_like(self._unit_text)]

    def _automatic_epochs(self, shots: Shots) -> int:
        return 100 if shots.per_class < MANY_SHOTS else 200

    def _head(self, parameters: Parameters, features: Tensor) -> Tensor:
        moved = self._text_length * self._unit_text + self.residual_scale * parameters[0]
        return self._logit_scale * features @ unit_rows(moved).mT
