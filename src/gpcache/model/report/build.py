"""Builds the report of a classifier: its figures, hardest and suspicious images, and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpcache import __version__
from gpcache.features.extract import gather
from gpcache.images.decode import read_file
from gpcache.images.records import Record, Refused, Source
from gpcache.images.workers import small_picture
from gpcache.methods.cache.search import REGRESSION_NUMBERS, SOFTMAX_NUMBERS
from gpcache.methods.registry import name_of
from gpcache.model.advice import model_advice
from gpcache.model.classifier import ImageClassifier
from gpcache.model.evaluation import Evaluation
from gpcache.model.report.content import Case, Embedding, Evidence, Report

# A small picture, and features (1, d).
Seen = tuple[bytes, Any]

CASES = 12
SHARES = 6


def build_report(
    classifier: ImageClassifier,
    test: Evaluation | None = None,
    images: Path | Callable[[str], Seen | None] | None = None,
    refused: Sequence[Refused] = (),
) -> Report:
    """Collect the content of a report.

    `images` is the folder or list of the test images, or a function that gives them by name.
    """
    model: Any = classifier.model
    hardest: list[Case] = []
    if test is not None and images is not None:
        if isinstance(images, Path):
            shown = [test.names[row] for row in test.hardest(CASES)]
            images = _found_images(classifier, images, shown).get
        hardest = hardest_cases(classifier, test, images)
    cases = {
        "Hardest test images": hardest,
        "Suspicious training images": suspicious_cases(classifier),
    }
    fitted, chosen = getattr(model, "fitted_", None), {"temperature": model.temperature_}
    if fitted is not None:
        names = SOFTMAX_NUMBERS if hasattr(model, "tau_") else REGRESSION_NUMBERS
        chosen |= {name: getattr(model, f"{name}_") for name in names}
    held_out = classifier.held_out()
    return Report(
        title=f"{len(classifier.classes)} classes from {classifier.n_images} images",
        test=test,
        held_out=held_out,
        cases={heading: listed for heading, listed in cases.items() if listed},
        embedding=_embedding(classifier, model) if model.has_keys else None,
        search=None if fitted is None else model.search_,
        chosen=chosen,
        facts={
            "encoder": classifier.encoder_name,
            "method": name_of(model),
            **({} if fitted is None else {"posterior": fitted.approximation}),
            "training images": classifier.training.source,
            "gpcache": __version__,
            "torch": torch.__version__,
        },
        refused=[(one.name, one.reason) for one in refused],
        advice=model_advice(classifier.content, held_out if test is None else test),
    )


def _found_images(
    classifier: ImageClassifier, images: Path, names: Sequence[str]
) -> dict[str, Seen]:
    """The images that can still be read, by name."""
    # The names in a list of images start from the folder of the list.
    root = images if images.is_dir() else images.parent
    records = [Record(name, root / name) for name in names]
    gathered = gather(Source(str(images), records, len(records)), classifier.encoder_)
    return {
        record.name: (small_picture(read_file(root / record.name)), features[None])
        for record, features in zip(gathered.records, gathered.features, strict=True)
    }


def hardest_cases(
    classifier: ImageClassifier, test: Evaluation, find: Callable[[str], Seen | None]
) -> list[Case]:
    """The test images whose true class got the lowest probability; `find` gives them by name."""
    cases = []
    for row in test.hardest(CASES):
        if (image := find(test.names[row])) is None:
            continue
        picture, features = image
        answer, truth = int(test.predicted[row]), test.class_names[int(test.labels[row])]
        facts = truth, test.class_names[answer], float(test.probabilities[row, answer])
        cases.append(Case(picture, test.names[row], *facts, **_evidence(classifier, features)))
    return cases


def suspicious_cases(classifier: ImageClassifier) -> list[Case]:
    """The training images whose label is probably wrong, with the evidence for another label."""
    model: Any = classifier.model
    cases = []
    for finding in classifier.suspects()[:CASES]:
        row, picture = finding.row, classifier.picture(finding.row)
        if picture is None or finding.probability is None:
            continue
        features = model.fitted_.shots.features[row : row + 1].cpu().numpy()
        example, label = classifier.examples[row], str(finding.suggestion)
        evidence = _evidence(classifier, features, label, leave_out=row)
        names = (example.name, example.label, label)
        cases.append(Case(picture, *names, finding.probability, **evidence))
    return cases


def _evidence(
    classifier: ImageClassifier, features: Any, label: str | None = None, leave_out: int = -1
) -> dict[str, Any]:
    """The training images with the largest shares of a logit, and the sum of the other parts.

    The logit is that of the answer, or of `label`. The share of the row `leave_out` counts as
    another part, because the share of a training image in its own logit means nothing.
    """
    model: Any = classifier.model
    if not model.has_keys:
        return {}
    why = model.explain(features, top=SHARES + 1, labels=None if label is None else [label])
    shares = zip(why.shots[0], why.shares[0].tolist(), strict=True)
    largest = [(row, share) for row, share in shares if row != leave_out][:SHARES]
    return {
        "evidence": [
            Evidence(classifier.picture(row), classifier.examples[row].label, share)
            for row, share in largest
        ],
        "others": float(why.cache_logit[0]) - sum(share for _, share in largest),
        "text": None if model.text_prior is None else float(why.text_logit[0]),
        "average": float(why.discriminant_logit[0]) or None,
    }


def _embedding(classifier: ImageClassifier, model: Any) -> Embedding:
    number = {name: row for row, name in enumerate(classifier.classes)}
    return Embedding(
        data="training images, whose labels the kernel's space has seen",
        class_names=classifier.classes,
        labels=np.array([number[example.label] for example in classifier.examples]),
        features=model.fitted_.shots.features.cpu().numpy(),
        mapped=model.fitted_.model.precision.keys.detach().cpu().numpy(),
    )
