"""TaskRes (Yu et al., CVPR 2023): the text classifier plus a trained residual of each class.

    t′_y = t_y + α · x_y        logits = s · f · t′_y / ‖t′_y‖

x starts at zero, so that training starts at zero-shot. The paper adds x to text embeddings before
they are scaled to length one; here the text vectors have length one already. It trains 100 epochs,
and 200 from 8 shots on (`epochs=200`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from gpcache.gp.kernels import unit_rows
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.trained_head import Parameters, TrainedHeadClassifier
from gpcache.support.checks import positive


class TaskResClassifier(TrainedHeadClassifier):
    """TaskRes: trained residuals of the text vectors (Yu et al., 2023).

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    residual_scale : float, default=0.5
        Scale of the residual; 0.5 in the paper, 1 for Flowers.
    epochs : int, default=100
        Number of epochs.
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

    publication = "Yu et al., 2023, Task Residual for Tuning Vision-Language Models"
    trains = True
    needs = ("text", "shots")
    _optimiser: ClassVar[Literal["adamw", "adam", "sgd"]] = "adam"
    _per_class: ClassVar[bool] = True

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        residual_scale: float = 0.5,
        epochs: int = 100,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        weight_decay: float = 5e-4,
        calibrate: bool = True,
        n_folds: int = 4,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        super().__init__(
            text_prior=text_prior,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            calibrate=calibrate,
            n_folds=n_folds,
            device=device,
            dtype=dtype,
            random_state=random_state,
        )
        self.residual_scale = residual_scale

    def _start(self, text: Tensor) -> Parameters:
        positive("residual_scale", self.residual_scale, owner=self, auto=False)
        return [torch.zeros_like(text)]

    def _head(self, parameters: Parameters, features: Tensor, text: Tensor) -> Tensor:
        moved = unit_rows(text + self.residual_scale * parameters[0])
        return self._logit_scale * features @ moved.mT
