"""Advice for a model with low accuracy: what is wrong with classes, photos or names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from torch import Tensor

from gpcache.gp.kernels import unit_rows
from gpcache.images.records import listed, plural
from gpcache.metrics import wilson_interval
from gpcache.model.audit.audit_model import held_out_means
from gpcache.support.checks import shown

if TYPE_CHECKING:
    from gpcache.methods.cache.estimator import CacheClassifier
    from gpcache.model.evaluation import Evaluation
    from gpcache.model.files import Content

Kind = Literal["guessing", "names", "confused", "few", "many", "useless-names"]

# A class has too few or too many photos beyond this multiple of the median.
UNEQUAL = 3.0
# A model with this accuracy needs no comparison with its class names.
GOOD = 0.9
# Two classes are reported as confused from this share of their photos on.
CONFUSED = 0.1
# A name is bad if, with 95 % confidence, it recognises less than this share of its photos.
SURELY_BAD = 0.6
# Random halves that the learning curve is measured on.
HALVES = 8
LEAST_GAIN = 0.0005


@dataclass(frozen=True)
class Advice:
    """One problem to fix, in a sentence, and the classes that it concerns."""

    kind: Kind
    sentence: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The training rows of a model: features (n, d), class numbers (n,), text logits (n, c)."""

    features: Tensor
    labels: Tensor
    zero_shot: Tensor | None = None


def advise(
    evaluation: Evaluation | None, training: TrainingRows, names: Sequence[str]
) -> list[Advice]:
    """What to fix in a model of these training rows, the most serious first.

    Parameters
    ----------
    evaluation : Evaluation or None
        The answers to photos that the model has not seen; None if there are none.
    training : TrainingRows
        The training rows; class numbers are positions in `names`.
    names : sequence of str
        The class names.

    Returns
    -------
    list of Advice
        Empty if there is nothing to fix.

    Examples
    --------
    >>> rows = TrainingRows(torch.eye(8), torch.tensor([0, 1, 1, 1, 1, 2, 2, 2]))
    >>> print(advise(None, rows, ["owl", "cat", "dog"])[0].sentence)
    'owl' has 1 photo, the median class 3: add photos of it.
    """
    advice: list[Advice] = []
    if evaluation is not None:
        advice += [*_guessing(evaluation), *_names_alone(evaluation, training)]
        advice += _confused(evaluation, training, names)
    return [*advice, *_useless_names(training, names), *_unequal(training, names)]


def model_advice(content: Content, evaluation: Evaluation | None) -> list[Advice]:
    """Advice on a model, given its answers to unseen or held-out photos."""
    if not content.model.has_keys:
        return []
    model = cast("CacheClassifier", content.model)
    return advise(evaluation, rows_of(model), [str(name) for name in model.classes_])


def rows_of(model: CacheClassifier) -> TrainingRows:
    """The training rows of a fitted model."""
    shots = model.fitted_.shots
    text = None if shots.zero_shot is None else shots.zero_shot.cpu()
    return TrainingRows(shots.features.cpu(), shots.labels.cpu(), text)


def _guessing(evaluation: Evaluation) -> Iterator[Advice]:
    most = int(np.bincount(evaluation.labels).argmax())
    guess = float((evaluation.labels == most).mean())
    if evaluation.interval[0] <= guess:
        yield Advice(
            "guessing",
            f"The model is not measurably better than guessing: {evaluation.accuracy:.0%} of "
            f"{len(evaluation):,} photos are right, and {guess:.0%} if every answer is "
            f"{shown(evaluation.class_names[most])}. Check that the labels are right and that the "
            "photos show what the classes differ in, or add photos.",
        )


def _names_alone(evaluation: Evaluation, training: TrainingRows) -> Iterator[Advice]:
    if training.zero_shot is None:
        return
    by_name = _share_right(training.zero_shot, training.labels)
    if evaluation.accuracy < GOOD and by_name >= evaluation.accuracy:
        yield Advice(
            "names",
            f"The class names without photos are as good: they label {by_name:.0%} of the training "
            f"photos correctly, the model {evaluation.accuracy:.0%}. Check the labels, or add "
            "photos.",
        )


def _confused(
    evaluation: Evaluation, training: TrainingRows, names: Sequence[str]
) -> Iterator[Advice]:
    """The two classes that are taken for each other most often."""
    matrix = evaluation.confusion_matrix()
    both = np.triu(matrix + matrix.T, 1)
    first, second = divmod(int(both.argmax()), len(both))
    errors, photos = int(both[first, second]), int(matrix[[first, second]].sum())
    if errors < 2 or errors < CONFUSED * photos:
        return
    pair = (str(names[first]), str(names[second]))
    gain = _gain_of_doubling(training, first, second) * photos / len(evaluation)
    remedy = f"Twice as many of both are expected to raise the accuracy by {100 * gain:.1f} points"
    if gain < LEAST_GAIN:
        remedy = "More photos of these two help first"
    yield Advice(
        "confused",
        f"{shown(pair[0])} and {shown(pair[1])} are taken for each other: {errors:,} of their "
        f"{photos:,} photos. {remedy}; choose photos that show what sets them apart.",
        pair,
    )


def _gain_of_doubling(training: TrainingRows, first: int, second: int) -> float:
    """How much the error rate between two classes falls with twice as many photos.

    Errors follow a power law in the number of photos: the cost of halving the photos at random
    predicts the gain of doubling them.
    """
    places = [torch.nonzero(training.labels == one).flatten() for one in (first, second)]
    if min(map(len, places)) < 4:
        return 0.0
    whole = _pair_error(training.features, *places)
    generator = torch.Generator().manual_seed(0)
    halves = []
    for _ in range(HALVES):
        parts = (rows[torch.randperm(len(rows), generator=generator)] for rows in places)
        halves.append(_pair_error(training.features, *(part[: len(part) // 2] for part in parts)))
    half = float(np.mean(halves))
    return whole * max(0.0, 1 - whole / half) if half else 0.0


def _pair_error(features: Tensor, first: Tensor, second: Tensor) -> float:
    """The held-out share of errors between the rows of two classes."""
    rows = torch.cat([first, second])
    labels = torch.cat([torch.zeros(len(first)), torch.ones(len(second))]).long()
    mean, _ = held_out_means(unit_rows(features[rows].double()), labels, 2)
    return 1 - _share_right(mean, labels)


def _useless_names(training: TrainingRows, names: Sequence[str]) -> Iterator[Advice]:
    """Classes whose name recognises their photos no better than guessing."""
    if training.zero_shot is None or len(names) < 2:
        return
    right = training.zero_shot.argmax(1) == training.labels
    bad = []
    for number, name in enumerate(names):
        mine = right[training.labels == number]
        hits, photos = int(mine.sum()), len(mine)
        guessed = photos > 2 and hits / photos <= 1 / len(names)
        if guessed and wilson_interval(hits, photos)[1] < SURELY_BAD:
            bad.append(str(name))
    if bad:
        one = len(bad) == 1
        subject = f"The name{'' if one else 's'} {listed(bad)}"
        verb = "recognises its" if one else "recognise their"
        yield Advice(
            "useless-names",
            f"{subject} {verb} photos no better than guessing, and may do harm. Use a "
            "name or a prompt that says what the photos show, or leave names out (--no-text).",
            tuple(bad),
        )


def _unequal(training: TrainingRows, names: Sequence[str]) -> Iterator[Advice]:
    """Classes with far fewer or far more photos than the others."""
    sizes = torch.bincount(training.labels, minlength=len(names)).numpy()
    present = sizes[sizes > 0]
    if len(present) < 2:
        return
    usual = float(np.median(present))
    is_few, is_many = (sizes > 0) & (UNEQUAL * sizes <= usual), sizes >= UNEQUAL * usual
    few, many = ([str(names[k]) for k in np.flatnonzero(one).tolist()] for one in (is_few, is_many))
    if few:
        photos = plural(int(sizes[is_few].max()), "photo")
        each = " or fewer" if len(few) > 1 else ""
        yield Advice(
            "few",
            f"{listed(few)} {'has' if len(few) == 1 else 'have'} {photos}{each}, the median class "
            f"{usual:.0f}: add photos of {'it' if len(few) == 1 else 'them'}.",
            tuple(few),
        )
    if many:
        size, each = int(sizes[is_many].min()), " or more" if len(many) > 1 else ""
        yield Advice(
            "many",
            f"{listed(many)} {'has' if len(many) == 1 else 'have'} far more photos "
            f"({size:,}{each}) than the median class ({usual:.0f}): photos of the other classes "
            "help more.",
            tuple(many),
        )


def _share_right(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(1) == labels).double().mean())
