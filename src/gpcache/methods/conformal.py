"""Prediction sets that contain the true class with a given probability, without a held-out split.

Full conformal prediction adds a row x with a candidate label c to the n shots, leaves each row out
in turn, and compares the score of c at x with the scores of the shots' labels. With
P = (K + noise·I)⁻¹, k the kernel between x and the shots, u = Pk and s = 1 + noise − kᵀu, the
precision with x has the diagonal dᵢ = Pᵢᵢ + uᵢ²/s, whatever its label, and the left-out mean of
shot i (Rasmussen and Williams, 2006, eq. 5.12) becomes

    Vᵢ − (PV)ᵢ/dᵢ + uᵢ/(s dᵢ) · (v − μ),    with v = e_c (minus the text's part) and μ = kᵀPV.

So c changes one logit of each shot: all classes together cost O(n² + n·classes) per row, without a
refit. If x would be the first shot of c, the values of the other shots in column c are no longer
masked. The score of a label is −log of its softmax probability at the fitted temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpcache.errors import ProtocolError
from gpcache.gp import ExactPrecision
from gpcache.gp.kernels import kernel
from gpcache.gp.precision import proper
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.cache.fitted import Fitted
from gpcache.methods.cache.held_out import HeldOutReport
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.softmax import left_out_alone
from gpcache.metrics import Calibration
from gpcache.metrics.conformal import (
    check_error,
    class_p_values,
    in_set,
    lac_scores,
    least_rows,
    p_values,
    why_everything,
)
from gpcache.support.checks import one_of
from gpcache.support.devices import ensure_memory

Protocol = Literal["auto", "full", "held_out"]
# Probabilities (n, c) and labels (n,) of rows that were not learned from, and how they were made.
Known = tuple[NDArray[np.float64], NDArray[np.int64], str]

# Left-out logits held at once: 16 MB in float64, small enough to stay near the processor.
BATCH_ELEMENTS = 2**21
# Elements (left-out shot, shot, class) of problems that the softmax likelihood solves: seconds.
MOST_LEFT_OUT = 2**26
# Tensors of that size that exist at once while scores are compared.
TEMPORARIES = 6


@dataclass(frozen=True, eq=False)
class ConformalSets:
    """Prediction sets: for each of m rows, the classes (of c) that cannot be ruled out.

    A class is `included` (m, c) if its p-value (m, c) exceeds `error`. A set may be empty: then no
    class fits the row. `note` says if labelled rows are too few to rule out any class; `protocol`
    says how the sets were made and whether the error rate is guaranteed.
    """

    included: NDArray[np.bool_]
    p_values: NDArray[np.float64]
    classes: NDArray[Any]
    error: float
    note: str
    protocol: str

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of classes in each set (m,)."""
        sizes: NDArray[np.int64] = self.included.sum(1)
        return sizes

    @property
    def labels(self) -> list[NDArray[Any]]:
        """The classes of each set, the highest p-value first."""
        order = np.argsort(-self.p_values, axis=1, kind="stable")
        return [
            self.classes[row[kept[row]]] for row, kept in zip(order, self.included, strict=True)
        ]


def sets_of(
    model: FeatureClassifier,
    features: Tensor,
    probabilities: NDArray[np.float64],
    *,
    error: float,
    class_conditional: bool = False,
    protocol: Protocol = "auto",
    calibration: tuple[ArrayLike, ArrayLike] | None = None,
) -> ConformalSets:
    """Sets for unit rows (m, d) with probabilities (m, c); they miss at a rate of at most `error`.

    With `calibration` rows (X, y) that the model has not seen, this is split conformal prediction,
    exact for every method. Without them, "full" leaves out shots in closed form (exact posterior,
    untrained keys), and "held_out" uses the held-out scores of `loo_`. "auto" takes "full" if the
    kernel's space does not depend on labels. `class_conditional` bounds the rate for every class: a
    class with k rows has p-values in steps of 1/(k + 1), and is never ruled out below that.
    """
    check_error(error)
    one_of("protocol", protocol, ("auto", "full", "held_out"), owner=model)
    fitted: Fitted | None = getattr(model, "fitted_", None)
    exact = fitted if fitted is not None and _has_closed_form(fitted) else None
    if calibration is None and protocol == "auto":
        blind = exact is not None and not exact.recipe.space.sees_labels
        protocol = "full" if blind else "held_out"
    if calibration is None and protocol == "full":
        if exact is None:
            raise ProtocolError(
                f"This {type(model).__name__} cannot leave shots out in closed form: full "
                "conformal sets need likelihood='gaussian', approximation='exact' and untrained "
                "keys; use protocol='held_out' or give calibration=(X, y)."
            )
        labels = exact.shots.labels.cpu().numpy()
        how = "full conformal, every shot left out in closed form"
        how += _caveats(exact, model._calibration)
        p_by_class = _full(exact, model._calibration, features, class_conditional)
    else:
        known, labels, how = (
            _held_out(model, fitted) if calibration is None else _split(model, calibration)
        )
        known_scores = lac_scores(known)[np.arange(len(labels)), labels]
        scores = lac_scores(probabilities)
        if class_conditional:
            p_by_class = class_p_values(known_scores, labels, scores)
        else:
            p_by_class = p_values(known_scores, scores)
    note = _note(labels, len(model.classes_), error, class_conditional)
    return ConformalSets(in_set(p_by_class, error), p_by_class, model.classes_, error, note, how)


def _has_closed_form(fitted: Fitted) -> bool:
    """Whether shots can be left out in closed form."""
    return fitted.model.closed_form is not None and fitted.training is None


def _caveats(fitted: Fitted, calibration: Calibration) -> str:
    """What breaks exchangeability: everything that was learned from the shots."""
    learned = []
    space = fitted.recipe.space.name
    if space != "raw":
        learned.append("the centre of the space" if space == "centred" else "the whitening")
    if len(fitted.search["beta"]) > 1 or calibration.temperature != 1.0:
        learned.append("the chosen hyper-parameters")
    if not learned:
        return "; exact"
    return f"; approximate, because {' and '.join(learned)} saw the shots and not the new row"


def _split(model: FeatureClassifier, calibration: tuple[ArrayLike, ArrayLike]) -> Known:
    rows, labels = model._read_validation(calibration)
    how = f"split conformal on {len(labels)} calibration rows"
    return model._probabilities(model._logits(rows)), labels.cpu().numpy(), how


def _held_out(model: FeatureClassifier, fitted: Fitted | None) -> Known:
    report: HeldOutReport | None = getattr(model, "loo_", None)
    if report is None:
        raise ProtocolError(
            f"{type(model).__name__} learns nothing from labelled rows, so it has no held-out "
            "scores for sets: fit another method, or give predict_set calibration=(X, y)."
        )
    probabilities, known, labels = report.probabilities, report.counted, report.labels
    how = f"cross-conformal; approximate, from {report.protocol}"
    if not known.all():
        if fitted is not None and _can_leave_out_alone(fitted):
            alone = model._probabilities(_left_out_alone(fitted))
            probabilities = np.where(known[:, None], probabilities, alone)
            known, labels = np.ones_like(known), fitted.shots.labels.cpu().numpy()
        elif fitted is None or fitted.streamed is None:
            how += f"; {np.sum(~known)} shots that are alone in their class are not counted"
    return probabilities[known], labels[known], how


def _can_leave_out_alone(fitted: Fitted) -> bool:
    """Whether the only shots of their classes can be left out one by one at an acceptable cost."""
    if fitted.training is not None or fitted.streamed is not None:
        return False
    alone = int((~fitted.shots.with_company()).sum())
    return not fitted.model.is_softmax or alone * fitted.shots.values.numel() <= MOST_LEFT_OUT


@torch.no_grad()
def _left_out_alone(fitted: Fitted) -> Tensor:
    """Logits (n, c) of shots that are the only ones of their class, left out one by one.

    They cannot be held out in folds, but without them rare classes would not be represented. The
    result is unbiased: the only shot of a class adds nothing to the scatter within classes.
    """
    model, shots = fitted.model, fitted.shots
    if not model.is_softmax:
        return model.fused(shots.zero_shot, *model.precision.leave_one_out())
    rows = torch.nonzero(~shots.with_company()).flatten()
    logits = shots.values.new_zeros(shots.values.shape)
    logits[rows] = left_out_alone(model, shots, rows)
    return logits


def _note(labels: NDArray[np.int64], n_classes: int, error: float, class_conditional: bool) -> str:
    if not class_conditional:
        return why_everything(len(labels), error)
    counts = np.bincount(labels, minlength=n_classes)
    needed = least_rows(error)
    short = int((counts < needed).sum())
    if not short:
        return ""
    return (
        f"{short} of {n_classes} classes are in every set: at an error of {error:g} a class needs "
        f"{needed:.12g} labelled rows of its own to be ruled out, and the smallest has "
        f"{int(counts.min())}."
    )


@torch.no_grad()
def _full(
    fitted: Fitted, calibration: Calibration, features: Tensor, class_conditional: bool
) -> NDArray[np.float64]:
    """p-values (m, c) of rows (m, d), a bounded batch at a time."""
    shots = fitted.shots
    n, c = shots.values.shape
    batch = max(1, BATCH_ELEMENTS // (n * c))
    ensure_memory(
        TEMPORARIES * batch * n * c * features.element_size(),
        features.device,
        what=f"Leaving {n:,} shots of {c:,} classes out",
        remedy="Use protocol='held_out'.",
    )
    member = torch.nn.functional.one_hot(shots.labels, c).bool()
    compared = member.sum(0).cpu() if class_conditional else n
    p_by_class = []
    for queries in torch.split(features, batch):
        shot_scores, scores = _augmented_scores(
            fitted.model, shots, queries, calibration.temperature
        )
        # Rounding must not break a tie against a label that is as good as that of a shot.
        slack = 1e3 * torch.finfo(scores.dtype).eps * scores.abs().clamp(min=1)
        worse = shot_scores >= (scores - slack)[:, None, :]
        if class_conditional:
            worse &= member
        p_by_class.append((1 + worse.sum(1).cpu()).double() / (1 + compared))
    return torch.cat(p_by_class).numpy()


def _augmented_scores(
    model: CacheModel, shots: Shots, queries: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """−log p of its label for each shot (b, n, c), and of each class for the queries (b, c).

    Entry (·, i, c) belongs to shot i, left out, if the query is a shot with label c.
    """
    precision, absent = model.precision, shots.absent
    assert isinstance(precision, ExactPrecision)
    mapped = model.feature_map(queries)
    cross = kernel(mapped, precision.keys, precision.beta)
    reach = precision.weights(mapped)  # u, (b, n)
    variance = proper(1 - (cross * reach).sum(1))[:, None]
    spread = variance + precision.noise  # s, (b, 1)
    diagonal = precision._inverse.diagonal() + reach.square() / spread  # d, (b, n)
    pull = (reach / (spread * diagonal))[..., None]
    left_variance = proper(1 / diagonal - precision.noise)[..., None]

    # As if every class had a shot; columns of classes without one are masked below.
    zero_shot = model.zero_shot(queries)
    values = torch.nn.functional.one_hot(shots.labels, shots.n_classes).to(cross)
    values = values - _text_part(shots, shots.zero_shot, model.choice.gain)
    solved = torch.where(absent, precision._inverse @ values, precision.solved_values)
    mean = cross @ solved  # μ, (b, c)
    known = mean + _text_part(shots, zero_shot, model.choice.gain)
    left_out = values - solved / diagonal[..., None] - pull * known[:, None, :]
    own = model.fused(zero_shot, mean.masked_fill(absent, 0), variance) / temperature
    logits = model.fused(shots.zero_shot, left_out.masked_fill(absent, 0), left_variance)
    logits = logits / temperature

    # The change of logit c if x has the label c.
    own_shift = model.cache_factor(variance) * mean.where(absent, 0) / temperature
    shift = pull + left_out.where(absent, 0)
    shift = model.cache_factor(left_variance) * shift / temperature
    # Beyond the bound it decides either way, and exp overflows.
    bound = 0.5 * math.log(torch.finfo(logits.dtype).max)
    shift = shift.clamp(-bound, bound)
    index = shots.labels.expand(len(queries), -1)[..., None]
    scores = _total_moved(logits, shift) - logits.gather(-1, index)
    scores.scatter_add_(-1, index, -shift.gather(-1, index))
    return scores, _total_moved(own, own_shift) - own - own_shift


def _text_part(shots: Shots, zero_shot: Tensor | None, gain: float) -> Tensor | float:
    """The part of the targets that the text logits (m, c) explain already."""
    return (gain * zero_shot).softmax(1) if shots.residual and zero_shot is not None else 0.0


def _total_moved(logits: Tensor, shift: Tensor) -> Tensor:
    """log Σ exp of logits (..., c) for each c, after only logit c has changed by its shift.

    This is total + log(1 + p_c (exp(shift) − 1)), computed so that p_c = 1 after rounding does not
    drop the other classes.
    """
    total = logits.logsumexp(-1, keepdim=True)
    change = (logits - total).exp() * torch.expm1(shift)
    return total + torch.log1p(change.clamp(min=torch.finfo(change.dtype).eps - 1))
