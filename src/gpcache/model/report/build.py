"""From a classifier and an evaluation to a report: the hardest images, and what spoke for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpcache import __version__
from gpcache.errors import ImageRefusedError
from gpcache.images.records import Refused
from gpcache.images.thumbnails import thumbnail
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.search import REGRESSION_NUMBERS, SOFTMAX_NUMBERS
from gpcache.methods.registry import name_of
from gpcache.model.classifier import ImageClassifier
from gpcache.model.evaluation import Evaluation
from gpcache.model.report import Case, Embedding, Evidence, Report

CASES = 12
SHARES = 6


def make_report(
    classifier: ImageClassifier,
    test: Evaluation | None,
    folder: Path | None = None,
    refused: list[Refused] | None = None,
) -> Report:
    """All that can be shown; `folder` is where the images of `test` lie."""
    model = classifier.model
    cases: dict[str, list[Case]] = {}
    if test is not None and folder is not None:
        cases["Hardest test images"] = hardest(classifier, test, folder)
    embedding, search, chosen = None, None, {"temperature": model.temperature_}
    if isinstance(model, CacheClassifier):
        cases["Suspicious training images"] = suspicious(classifier, model)
        embedding = _embedding(classifier, model)
        search = model.search_
        names = SOFTMAX_NUMBERS if hasattr(model, "tau_") else REGRESSION_NUMBERS
        chosen |= {name: getattr(model, f"{name}_") for name in names}
    return Report(
        title=f"{len(classifier.classes)} classes from {len(classifier.examples)} images",
        test=test,
        held_out=classifier.held_out(),
        cases={heading: listed for heading, listed in cases.items() if listed},
        embedding=embedding,
        search=search,
        chosen=chosen,
        facts={
            "encoder": classifier.encoder_name,
            "method": name_of(model),
            "training images": classifier.training.source,
            "gpcache": __version__,
            "torch": torch.__version__,
        },
        refused=[(one.name, one.reason) for one in refused or []],
    )


def hardest(classifier: ImageClassifier, test: Evaluation, folder: Path) -> list[Case]:
    """The test images whose true class got the least probability."""
    cases = []
    for row in test.hardest(CASES):
        # A list of images names them by their own folder.
        root = folder if folder.is_dir() else folder.parent
        path = root / test.names[row]
        try:
            picture = thumbnail(path)
        except ImageRefusedError:
            continue
        answer = int(test.predicted[row])
        cases.append(
            Case(
                picture,
                test.names[row],
                truth=test.class_names[int(test.labels[row])],
                answer=test.class_names[answer],
                probability=float(test.probabilities[row, answer]),
                **_evidence(classifier, classifier.encoder.encode_images([path])),
            )
        )
    return cases


def suspicious(classifier: ImageClassifier, model: CacheClassifier) -> list[Case]:
    """The training images whose label is probably wrong, and what speaks for another one."""
    cases = []
    for finding in classifier.suspects()[:CASES]:
        picture = classifier.picture(finding.row)
        if picture is None or finding.probability is None:
            continue
        features = model._shots.features[finding.row : finding.row + 1].cpu().numpy()
        example, suggestion = classifier.examples[finding.row], str(finding.suggestion)
        cases.append(
            Case(
                picture,
                example.name,
                truth=example.label,
                answer=suggestion,
                probability=finding.probability,
                evidence_for=suggestion,
                **_evidence(classifier, features, suggestion, itself=finding.row),
            )
        )
    return cases


def _evidence(
    classifier: ImageClassifier, features: Any, label: str | None = None, itself: int = -1
) -> dict[str, Any]:
    """The loudest training images for the answer, or for `label`, and the rest of the logit.

    A training image's say about `itself` tells nothing; it is left to the rest.
    """
    model = classifier.model
    if not isinstance(model, CacheClassifier):
        return {}
    why = model.explain(features, top=SHARES + 1, labels=None if label is None else [label])
    loudest = [
        (row, share)
        for row, share in zip(why.shots[0], why.shares[0].tolist(), strict=True)
        if row != itself
    ][:SHARES]
    evidence = [
        Evidence(classifier.picture(row), classifier.examples[row].label, share)
        for row, share in loudest
    ]
    rest = float(why.cache_logit[0]) - sum(share for _, share in loudest)
    text = None if model.text_prior is None else float(why.text_logit[0])
    average = float(why.discriminant_logit[0]) or None
    return {"evidence": evidence, "others": rest, "text": text, "average": average}


def _embedding(classifier: ImageClassifier, model: CacheClassifier) -> Embedding:
    number = {name: row for row, name in enumerate(classifier.classes)}
    return Embedding(
        data="training images, whose labels the kernel's space has seen",
        class_names=classifier.classes,
        labels=np.array([number[example.label] for example in classifier.examples]),
        features=model._shots.features.cpu().numpy(),
        mapped=model._model.precision.keys.detach().cpu().numpy(),
    )
