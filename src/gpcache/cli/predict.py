"""`gpcache predict`: classify images with a model."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option

import gpcache
from gpcache.cli import options
from gpcache.cli.output import print_notes
from gpcache.errors import DataError

if TYPE_CHECKING:
    from gpcache.images.records import Source
    from gpcache.model.predictions import Prediction

logger = logging.getLogger(__name__)

Form = Literal["table", "jsonl", "csv", "parquet"]

TOP = "Show the K most probable classes for each image."
IMAGES = "Image files and folders, a list, or - to read paths from stdin."
SETS = (
    "Also list the classes that cannot be ruled out. With 0.1 at most about one list in ten misses "
    "the true class."
)

PER_CLASS = "With --sets: let the rate hold for each class, not on average. Lists are longer."
WHY = "Show the training images behind each answer, and the share of the class name."
WHY_FROM = (
    "The feature store that the model was fitted on: --why finds the images there if the model "
    "keeps none (gpcache fit --keep-shots)."
)

OutputOption = Annotated[
    Path | None, Option("--output", "-o", metavar="FILE", help="Write to a file, not stdout.")
]
SetsOption = Annotated[float | None, Option(metavar="ERROR", min=0.001, max=0.999, help=SETS)]


def predict(
    model: options.ModelArgument,
    images: Annotated[list[str], Argument(metavar="IMAGES", help=IMAGES)],
    top: Annotated[int, Option(min=1, metavar="K", help=TOP)] = 1,
    format: Annotated[Form, Option("--format", "-f", help="How to write the answers.")] = "table",
    output: OutputOption = None,
    reject: options.RejectOption = 0.05,
    sets: SetsOption = None,
    per_class: Annotated[bool, Option("--per-class", help=PER_CLASS)] = False,
    why: Annotated[bool, Option("--why", help=WHY)] = False,
    why_from: Annotated[Path | None, Option(metavar="STORE", help=WHY_FROM)] = None,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    json: Annotated[bool, Option("--json", help="The same as --format jsonl.")] = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Classify images, or answer "I don't know".

    Answers are written one by one, for any number of images. Images that cannot be read are listed
    on stderr; then the exit code is 1.

    **Examples**

    - `gpcache predict pets.gpc photo.jpg --top 3 --why`
    - `gpcache predict pets.gpc new_photos/ --sets 0.1 --format csv -o answers.csv`
    - `gpcache predict pets.gpc new_photos/ --sets 0.1 --per-class`
    - `find . -name '*.jpg' | gpcache predict pets.gpc - --format jsonl`
    """
    from gpcache.cli.answers import Shape, write_answers
    from gpcache.images.records import Refused
    from gpcache.model.quick import open_quick
    from gpcache.support.progress import progress_bar

    if json and format not in ("table", "jsonl"):
        raise DataError(f"--json and --format {format} contradict each other: give one of them.")
    if per_class and sets is None:
        raise DataError("--per-class counts only with --sets: give both, or neither.")
    if why_from is not None and not why:
        raise DataError("--why-from counts only with --why: give both, or neither.")
    if output is not None:
        options.check_file(output)
    quick = open_quick(model, device) if sets is None and not why else None
    classifier = quick or gpcache.ImageClassifier.load(model, device=device)
    source, form = _source(images, follow), "jsonl" if json else format
    logger.info("%r: %s images, %s", source.name, source.total, form)
    refused: list[Refused] = []
    notes: dict[str, None] = {}
    details: dict[str, Any] = {}
    if quick is None:
        details = {"sets": sets, "per_class": per_class, "why": 5 * why, "why_from": why_from}
        assert isinstance(classifier, gpcache.ImageClassifier)
        keeps = classifier.model.has_keys or classifier.content.shots is not None
        if why and why_from is None and not keeps:
            notes[_no_reasons(classifier.model)] = None
    answers = classifier.predict_stream(source, reject=reject, refused=refused, **details)
    shape = Shape(min(top, len(classifier.classes)), sets=sets is not None, why=why)
    # In a terminal the bar would run into the answers.
    quiet = output is None and sys.stdout.isatty()
    progress = progress_bar("predict", total=source.total, unit="image")
    with nullcontext() if quiet else progress as bar:
        write_answers(_watched(answers, notes, bar), form, output, shape)
    print_notes(refused, [note for note in notes if note])
    raise Exit(1 if refused else 0)


def _watched(
    answers: "Iterable[Prediction]", notes: dict[str, None], bar: Any
) -> "Iterator[Prediction]":
    """Yield the answers; collect each note once and advance the progress bar."""
    for answer in answers:
        notes[answer.note] = None
        yield answer
        if bar is not None:
            bar.update()


def _no_reasons(model: Any) -> str:
    """Why no training images are named."""
    sentence = "--why names training images, and this model keeps none of its own"
    if getattr(model, "fitted_", None) is None:
        return sentence + "."
    return f"{sentence}: add --why-from with the feature store that it was fitted on."


def _source(images: list[str], follow: bool) -> "Source":
    from gpcache.images.folders import from_folder
    from gpcache.images.records import Record, Refused, Source, readable
    from gpcache.images.sources import any_source

    if len(images) == 1 and images != ["-"]:
        return any_source(images[0], labelled=False, follow=follow)
    names = images
    if images == ["-"]:
        # Bytes, because file names need not be UTF-8.
        names = [os.fsdecode(line) for line in sys.stdin.buffer.read().splitlines() if line.strip()]
    if not names:
        raise DataError("There is no path on stdin: give one on each line.")
    records: list[Record] = []
    refused: list[Refused] = []
    for name in names:
        if os.path.isdir(name):
            folder = from_folder(name, follow=follow, labelled=False)
            inside = partial(os.path.join, readable(name))
            records += [replace(one, name=inside(one.name)) for one in folder.records]
            refused += [replace(one, name=inside(one.name)) for one in folder.refused]
        else:
            records.append(Record(readable(name), Path(name)))
    return Source("images", records, len(records), refused)
