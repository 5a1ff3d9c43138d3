"""`gpcache predict`: a model and images in, names out."""

import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpcache.cli.options import DeviceOption, ModelArgument, RejectOption

if TYPE_CHECKING:
    from gpcache.prediction import Prediction


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
            metavar="IMAGES…", help="Image files, a folder, a list, or - for paths on stdin."
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
    why: Annotated[
        bool, typer.Option("--why", help="Show the training images that drove each answer.")
    ] = False,
    device: DeviceOption = "auto",
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Name images, or say "I don't know"; exit code 1 if some could not be read.

    **Examples**

    - `gpcache predict pets.gpc photo.jpg --top 3 --why`

    - `gpcache predict pets.gpc new_photos/ --format csv -o answers.csv`

    - `find . -name '*.jpg' | gpcache predict pets.gpc - --format jsonl`
    """
    from gpcache.classifier import ImageClassifier
    from gpcache.cli.tables import print_refused
    from gpcache.images.records import Refused
    from gpcache.progress import progress_bar

    chosen = Format.JSONL if json else format
    classifier = ImageClassifier.load(model, device=device)
    refused: list[Refused] = []
    source = _source(images)
    with progress_bar("predict", total=source.total, unit="image") as bar:

        def answers() -> "Iterator[Prediction]":
            for answer in classifier.predict(
                source, reject=reject, why=5 if why else 0, refused=refused
            ):
                yield answer
                bar.update()

        write(answers(), chosen, output, top)
    print_refused(refused)
    raise typer.Exit(1 if refused else 0)


def _source(images: list[str]) -> Any:
    from gpcache.classifier import single_or_folder
    from gpcache.images.records import Record, Source

    if images == ["-"]:
        names = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    elif len(images) == 1:
        return single_or_folder(images[0])
    else:
        names = images
    return Source("images", [Record(name, Path(name)) for name in names], len(names))


def write(answers: "Iterable[Prediction]", chosen: Format, output: Path | None, top: int) -> None:
    """Write the answers as they come; a file takes its name only when it is whole."""
    from gpcache.cli.answers import write_parquet, write_text

    if chosen is Format.PARQUET:
        write_parquet(answers, output, top)
    else:
        write_text(answers, chosen.value, output, top)
