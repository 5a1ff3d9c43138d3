"""TIMO (Li et al., AAAI 2025): the shots weight the prompts, and the prompts are used as samples.

    m_yp = cos(mean shot of class y, prompt p of class y)
    t_y = Σ_p softmax_p(γ · m_y / ‖m_y‖) · prompt_yp, scaled to length 1
    logits = s · f · t_y + α · GDA(f)        GDA from the shots and, as samples, m_yp · prompt_yp

A class without shots takes the mean of its prompts, and has no part in the discriminant. If γ is
chosen, this is the authors' TIMO-S, except that they also choose the number of prompts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.feature_maps import Projection
from gpcache.gp.kernels import unit_rows
from gpcache.methods.additive import AdditiveClassifier, HyperParameters, neutral
from gpcache.methods.base import State, add_tensors
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.gda import GaussianScores
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import shown, to_numpy


@dataclass(kw_only=True, eq=False, repr=False)
class TIMOClassifier(AdditiveClassifier):
    """TIMO: GDA on shots and prompts, with prompts weighted by the shots (Li et al., 2025).

    Parameters
    ----------
    text_prior : TextPrior
        Class names and logit scale; required.
    prompt_vectors : mapping of arrays of shape (p, d)
        For each class name the vectors of its prompts; required.
    alpha : float or "auto", default="auto"
        Weight of the discriminant.
    strength : float or "auto", default=50.0
        How much the best prompts are preferred; 50 in the paper.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied to features first.
    criterion : {"nll", "accuracy"}, default="nll"
        Criterion to choose hyper-parameters by.
    selection : {"auto", "folds", "validation"}, default="auto"
        Choose hyper-parameters on folds of the shots or on a validation set. "auto" uses the
        validation set if `fit` gets one.
    n_folds : int, default=8
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
    >>> from gpcache.methods import TextPrior, TIMOClassifier
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> prompts = {name: text[[i]] for i, name in enumerate(prior.class_names)}
    >>> model = TIMOClassifier(text_prior=prior, prompt_vectors=prompts).fit(X, y)
    >>> prompts = {name: text[[i]] for i, name in enumerate(prior.class_names)}
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    prompt_vectors: Mapping[Hashable, ArrayLike] | None = None
    alpha: float | Auto = "auto"
    strength: float | Auto = 50.0
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 8
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Li et al., 2025, Text and Image Are Mutually Beneficial (TIMO)"
    needs = ("text", "shots", "prompts")
    _weights: ClassVar[dict[str, Sequence[float]]] = {
        "gain": (1.0,),
        "alpha": tuple(10.0**power for power in range(-4, 5)),
    }
    _shapes: ClassVar[dict[str, Sequence[float]]] = {
        "strength": (50.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 70.0, 80.0, 90.0, 100.0)
    }
    _defaults: ClassVar[HyperParameters] = {"gain": 1.0, "alpha": 0.03, "strength": 50.0}
    # The text is the first of its scores, as it depends on the shots.
    _uses_text: ClassVar[bool] = False
    _needs_shots_of_a_class: ClassVar[bool] = False
    gain = 1.0

    def _learn(self, shots: Shots) -> MutualGuidance:
        assert self.text_prior is not None
        prompts, owners = self._prompts()
        return MutualGuidance(shots, prompts, owners, self.text_prior.logit_scale)

    @classmethod
    def _saved_options(cls, state: State) -> dict[str, Any]:
        prompts, owners = state.arrays["prompts"], state.arrays["prompt_owners"]
        names = enumerate(state.settings["classes"])
        vectors = {name: prompts[owners == row] for row, name in names}
        return super()._saved_options(state) | {"prompt_vectors": vectors}

    def _write_state(self, state: State) -> None:
        super()._write_state(state)
        prompts, owners = self._prompts()
        add_tensors(state.arrays, prompts=prompts, prompt_owners=owners)

    def _prompts(self) -> tuple[Tensor, Tensor]:
        """All prompts (P, d) as unit rows, and the class number (P,) of each."""
        if not isinstance(self.prompt_vectors, Mapping):
            raise DataError(
                "TIMOClassifier needs the vectors of each class's prompts: give it "
                "prompt_vectors={class name: array (prompts, width), …}."
            )
        parts, owners = [], []
        for number, name in enumerate(self.classes_.tolist()):
            if name not in self.prompt_vectors:
                raise DataError(f"prompt_vectors has no prompts of class {shown(name)}.")
            rows = np.asarray(to_numpy(self.prompt_vectors[name]), dtype=np.float64)
            if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] != self.n_features_in_:
                raise DataError(
                    f"The prompt vectors of class {shown(name)} must have shape "
                    f"(prompts, {self.n_features_in_}), got {rows.shape}."
                )
            parts.append(self._unit(rows, f"prompt_vectors[{shown(name)}]"))
            owners.append(torch.full((len(rows),), number, device=self._device))
        return torch.cat(parts), torch.cat(owners)


class MutualGuidance:
    """Prompts (P, d) of classes (P,), how well each matches the shots, and the discriminant."""

    def __init__(self, shots: Shots, prompts: Tensor, owners: Tensor, scale: float) -> None:
        self._prompts, self._owners, self._scale = prompts, owners, scale
        self._classes = shots.n_classes
        sums = self._sums(shots.labels, shots.features)
        # The mean of a class without shots is 0, and so is every match.
        match = (unit_rows(sums)[owners] * prompts).sum(1)
        lengths = self._sums(owners, match.square()).sqrt()
        self._preference = match / lengths[owners].clamp(min=torch.finfo(match.dtype).tiny)
        self._absent = shots.absent
        samples, labels = shots.samples()
        guided = torch.isin(owners, labels)
        self._discriminant = GaussianScores.of(
            torch.cat([samples, (match[:, None] * prompts)[guided]]),
            torch.cat([labels, owners[guided]]),
            self._classes,
        )

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """s · f · t and the discriminant (2, m, c)."""
        favour = hyper_parameters["strength"] * self._preference
        # Subtract the best of its class, because the exponential could overflow.
        best = favour.new_zeros(self._classes).scatter_reduce(
            0, self._owners, favour, "amax", include_self=False
        )
        weights = (favour - best[self._owners]).exp()
        text = unit_rows(self._sums(self._owners, weights[:, None] * self._prompts))
        votes = neutral(self._discriminant.scores(features, hyper_parameters), self._absent)
        return torch.cat([self._scale * (features @ text.mT)[None], votes])

    def _sums(self, owners: Tensor, values: Tensor) -> Tensor:
        """Sums (c, …) of values (P, …) over each class."""
        return values.new_zeros(self._classes, *values.shape[1:]).index_add(0, owners, values)
