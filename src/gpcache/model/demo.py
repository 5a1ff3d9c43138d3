"""The steps of `gpcache demo`, on drawn pictures or on the user's own folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from gpcache.errors import DataError
from gpcache.features.extract import gather
from gpcache.features.splits import draw_shots
from gpcache.images.drawn import DRAWN_OTHERS, draw_pictures
from gpcache.images.records import Record, Source
from gpcache.images.sources import open_source
from gpcache.model import learning
from gpcache.model.audit import Finding
from gpcache.model.classifier import ImageClassifier
from gpcache.model.evaluation import Evaluation
from gpcache.model.predictions import Prediction
from gpcache.model.report import write_report
from gpcache.model.report.build import build_report
from gpcache.model.suggest import suggest
from gpcache.support.files import make_folder

if TYPE_CHECKING:
    from gpcache.methods.cache.estimator import CacheClassifier

OTHERS_EACH = 2
TEST_LIMIT = 500
POOL = 50
SUGGESTIONS = 5


class Pictures(NamedTuple):
    """The folder of the pictures, whether a program drew them, and those to train and test on."""

    folder: Path
    drawn: bool
    train: Source
    test: Source


class TrainedModel(NamedTuple):
    """The fitted classifier, and the seconds that loading the encoder and fitting took."""

    classifier: ImageClassifier
    seconds: float


class PlantedLabel(NamedTuple):
    """A training picture that got another label on purpose, and the finding that names it.

    `others` counts the other suspicious labels.
    """

    name: str
    truth: str
    label: str
    finding: Finding | None
    others: int


class OtherPictures(NamedTuple):
    """The answers for pictures that belong to none of the classes."""

    answers: list[Prediction]


class NextPictures(NamedTuple):
    """The names of the pictures to label next, the best first, out of `pool` pictures."""

    names: list[str]
    pool: int


class Written(NamedTuple):
    """The model folder and the report."""

    model: Path
    report: Path


Step = Pictures | TrainedModel | Evaluation | PlantedLabel | OtherPictures | NextPictures | Written


def demonstrate(
    folder: str | Path, photos: str | Path | None = None, *, shots: int = 5, seed: int = 0
) -> Iterator[Step]:
    """Train on a few pictures of each class and show what the model can do, step by step.

    Parameters
    ----------
    folder : str or Path
        Where to write the drawn pictures, the model and the report.
    photos : str or Path, optional
        A folder of class folders; without one, the pictures are drawn.
    shots : int, default=5
        The number of training pictures of each class.
    seed : int, default=0
        The seed of the draw of the training pictures and of the planted label.

    Yields
    ------
    Step
        The pictures, the classifier, its test, a planted wrong label, answers for pictures of
        something else, the pictures to label next, and the written files.

    Raises
    ------
    DataError
        If the folder has no class folders, or leaves no picture to test on.
    """
    place = make_folder(folder)
    drawn = photos is None
    images = (draw_pictures(place / "pictures") if photos is None else Path(photos)).resolve()
    train, test = split_source(open_source(images), shots, seed)
    yield Pictures(images, drawn, train, test)
    start = perf_counter()
    classifier = ImageClassifier("lite").fit(train)
    yield TrainedModel(classifier, perf_counter() - start)
    evaluation = classifier.evaluate(test, refused=[])
    yield evaluation
    if planted := plant_label(classifier, seed):
        yield planted
    other_pictures = draw_pictures(place / "others", DRAWN_OTHERS, each=OTHERS_EACH)
    yield OtherPictures(classifier.predict(other_pictures))
    yield next_pictures(classifier, list(test.records)[:POOL])
    model, report = place / "demo.gpc", place / "report.html"
    classifier.save(model)
    write_report(build_report(classifier, evaluation, images), report)
    yield Written(model, report)


def split_source(source: Source, shots: int, seed: int) -> tuple[Source, Source]:
    """The images to train on, and some of the others, in random order, to test on."""
    records = list(source.records)
    counts = np.unique([str(r.label) for r in records if r.label], return_counts=True)[1]
    if not len(counts):
        raise DataError(f"{source.name!r} has no class folders: make a folder for each class.")
    # Leave images of each class to test on.
    most = max(1, min(shots, int(np.median(counts)) // 2))
    draw = draw_shots([r.label for r in records], [r.name for r in records], most, seed)
    rest = np.random.default_rng(seed).permutation(draw.rest)[:TEST_LIMIT]
    test_records = [records[row] for row in rest if records[row].label is not None]
    if not test_records:
        raise DataError(f"{source.name!r} leaves no image to test on: add images to each class.")
    return _source(source, [records[row] for row in draw.indices]), _source(source, test_records)


def plant_label(classifier: ImageClassifier, seed: int) -> PlantedLabel | None:
    """Look for one wrong label that is planted at random; None if no class can spare an image.

    The classifier does not change.
    """
    content, rng = classifier.content, np.random.default_rng(seed)
    counts = Counter(example.label for example in content.examples)
    rows = [row for row, one in enumerate(content.examples) if counts[one.label] > 1]
    if not rows or len(classifier.classes) < 2:
        return None
    row = int(rng.choice(rows))
    example = content.examples[row]
    label = str(rng.choice([name for name in classifier.classes if name != example.label]))
    examples = [*content.examples]
    examples[row] = replace(example, label=label)
    findings = learning.suspects(replace(content, examples=examples), hard=True)
    planted_finding = next((finding for finding in findings if finding.row == row), None)
    n_others = len({finding.row for finding in findings} - {row})
    return PlantedLabel(example.name, example.label, label, planted_finding, n_others)


def next_pictures(classifier: ImageClassifier, pool: list[Record]) -> NextPictures:
    """Which of these images to label next; their labels are not used."""
    gathered = gather(Source("pool", pool, len(pool)), classifier.encoder_)
    count = min(SUGGESTIONS, len(gathered.records))
    best = suggest(gathered.features, count, model=cast("CacheClassifier", classifier.model))
    return NextPictures([gathered.records[row].name for row in best.rows], len(gathered.records))


def _source(source: Source, records: list[Record]) -> Source:
    return Source(source.name, records, len(records), classes=source.classes)
