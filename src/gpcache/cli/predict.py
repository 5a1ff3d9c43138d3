"""`gpcache predict`: a model and images in, names out."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpcache.cli.options import (
    DeviceOption,
    ModelArgument,
    RejectOption,
    VerboseOption,
    check_file,
)
from gpcache.errors import DataError

if TYPE_CHECKING:
    from gpcache.cli.answers import Shape
    from gpcache.images.records import Source
    from gpcache.model.answers import Prediction

logger = logging.getLogger(__name__)


class Format(StrEnum):
    """How answers are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


def predict(
    model: ModelArgument,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES", help="Image files, a folder, a list, or - for paths on stdin."
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="So many classes an image.")] = 1,
    format: Annotated[
        Format, typer.Option("--format", "-f", help="How to write the answers.")
    ] = Format.TABLE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.")
    ] = None,
    reject: RejectOption = 0.05,
    sets: Annotated[
        float | None,
        typer.Option(
            metavar="ERROR",
            min=0.001,
            max=0.999,
            help="Also list the classes that cannot be ruled out: at 0.1 about one list in ten "
            "misses the true class at most.",
        ),
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Show the training images that drove each answer.")
    ] = False,
    device: DeviceOption = "auto",
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
    _verbose: VerboseOption = False,
) -> None:
    """Name images, or say "I don't know".

    Answers are written as they come, however many images there are. Exit code 1 if some could not
    be read: they are listed on stderr.

    **Examples**

    - `gpcache predict pets.gpc photo.jpg --top 3 --why`

    - `gpcache predict pets.gpc new_photos/ --sets 0.1 --format csv -o answers.csv`

    - `find . -name '*.jpg' | gpcache predict pets.gpc - --format jsonl`
    """
    from gpcache.cli.answers import Shape
    from gpcache.cli.tables import print_notices, print_refused
    from gpcache.images.records import Refused
    from gpcache.model.classifier import ImageClassifier
    from gpcache.support.progress import progress_bar

    if json and format not in (Format.TABLE, Format.JSONL):
        raise DataError(f"--json and --format {format} contradict each other: give one of them.")
    chosen = Format.JSONL if json else format
    if output is not None:
        check_file(output)
    classifier = ImageClassifier.load(model, device=device)
    refused: list[Refused] = []
    source = _source(images)
    logger.info("%r: %s images, %s", source.name, source.total, chosen.value)
    # Lines that go to the same terminal would run into the bar.
    quiet = output is None and sys.stdout.isatty()
    progress = progress_bar("predict", total=source.total, unit="image")
    notes: dict[str, None] = {}
    with nullcontext() if quiet else progress as bar:

        def answers() -> "Iterator[Prediction]":
            for answer in classifier.predict(
                source, reject=reject, sets=sets, why=5 if why else 0, refused=refused
            ):
                notes[answer.note] = None
                yield answer
                if bar is not None:
                    bar.update()

        shape = Shape(min(top, len(classifier.classes)), sets=sets is not None, why=why)
        write(answers(), chosen, output, shape)
    print_notices([note for note in notes if note])
    print_refused(refused)
    raise typer.Exit(1 if refused else 0)


def _source(images: list[str]) -> "Source":
    from gpcache.images.records import Record, Source, readable
    from gpcache.images.sources import any_source

    if images == ["-"]:
        # Bytes, because names of files need not be UTF-8.
        names = [os.fsdecode(line) for line in sys.stdin.buffer.read().splitlines() if line.strip()]
        if not names:
            raise DataError("There is no path on stdin: give one on each line.")
    elif len(images) == 1:
        return any_source(images[0])
    else:
        names = images
    return Source("images", [Record(readable(name), Path(name)) for name in names], len(names))


def write(
    answers: "Iterable[Prediction]", chosen: Format, output: Path | None, shape: "Shape"
) -> None:
    """Write the answers as they come; a file takes its name only when it is whole."""
    from gpcache.cli.answers import write_parquet, write_text

    if chosen is Format.PARQUET:
        write_parquet(answers, output, shape)
    else:
        write_text(answers, chosen.value, output, shape)
