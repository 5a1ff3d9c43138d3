"""A demonstration that needs no download, on handwritten digits or a folder of the user's own.

It learns a few images of each class, tests on the others, and writes a report.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from gpcache.encoders.prompts import DEFAULT_TEMPLATES
from gpcache.errors import DataError
from gpcache.features.splits import draw_shots
from gpcache.images.records import Record, Source
from gpcache.images.sources import open_source
from gpcache.model.answers import Prediction
from gpcache.model.classifier import ImageClassifier
from gpcache.model.evaluation import Evaluation
from gpcache.model.report import write_report
from gpcache.model.report.build import build_report
from gpcache.support.files import make_folder

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS_EACH = 60
DIGIT_PIXELS = 64
DIGIT_PROMPT = 'the number "{}" written by hand.'
TEST_LIMIT = 500


@dataclass(frozen=True)
class Demonstration:
    """The classifier, its test, answers with their reasons, and the files that were written."""

    classifier: ImageClassifier
    test: Evaluation
    answers: list[Prediction]
    model: Path
    report: Path


def demonstrate(
    folder: str | Path, photos: str | Path | None = None, *, shots: int = 8, seed: int = 0
) -> Demonstration:
    """Learn `shots` images of each class, test on the others, and save model and report."""
    place = make_folder(folder)
    prompt: Any = DEFAULT_TEMPLATES
    if photos is None:
        photos, prompt = write_digits(place / "digits"), DIGIT_PROMPT
    source = open_source(Path(photos).resolve())
    train, test = split_source(source, shots, seed)
    classifier = ImageClassifier("lite", prompt=prompt).fit(train)
    model, page = place / "demo.gpc", place / "report.html"
    classifier.save(model)
    evaluation = classifier.evaluate(test, refused=[])
    write_report(build_report(classifier, evaluation, Path(photos)), page)
    hardest = {evaluation.names[row] for row in evaluation.hardest(2)}
    some = [record for record in test.records if record.name in hardest]
    answers = classifier.predict(Source("demo", some, len(some)), why=3)
    return Demonstration(classifier, evaluation, answers, model, page)


def split_source(source: Source, shots: int, seed: int) -> tuple[Source, Source]:
    """The images to learn, and some of the others to test on."""
    records = list(source.records)
    counts = np.unique([str(r.label) for r in records if r.label], return_counts=True)[1]
    if not len(counts):
        raise DataError(f"{source.name!r} has no class folders: make a folder for each class.")
    # Leave images of each class to test on.
    most = max(1, min(shots, int(np.median(counts)) // 2))
    draw = draw_shots([r.label for r in records], [r.name for r in records], most, seed)
    rest = np.random.default_rng(seed).permutation(draw.rest)[:TEST_LIMIT]
    others = [records[row] for row in sorted(rest) if records[row].label is not None]
    if not others:
        raise DataError(f"{source.name!r} leaves no image to test on: add images to each class.")
    return _source(source, [records[row] for row in draw.indices]), _source(source, others)


def _source(source: Source, records: list[Record]) -> Source:
    return Source(source.name, records, len(records), classes=source.classes)


def write_digits(folder: Path) -> Path:
    """Write scikit-learn's handwritten digits as image files, in a folder for each class."""
    digits = load_digits()
    if folder.exists():
        shutil.rmtree(folder)
    for number, name in enumerate(DIGITS):
        rows = np.flatnonzero(digits.target == number)[:DIGITS_EACH]
        place = make_folder(folder / name)
        for row in rows:
            pixels = (255 - digits.images[row] * 255 / 16).astype(np.uint8)
            image = Image.fromarray(pixels).resize((DIGIT_PIXELS,) * 2, Image.Resampling.BICUBIC)
            image.save(place / f"{row:04}.png")
    return folder
