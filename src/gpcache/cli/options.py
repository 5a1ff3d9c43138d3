"""Options that several commands share, and how they print."""

import json as json_module
import logging
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpcache.errors import DataError
from gpcache.support.files import output_place

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model folder, as pets.gpc.")
]
ImagesArgument = Annotated[
    Path,
    typer.Argument(
        metavar="IMAGES",
        help="A folder of class folders, a .csv, .tsv or .parquet list with the columns path, "
        "label, split, group, or webdataset .tar shards.",
    ),
]
EncoderOption = Annotated[
    str,
    typer.Option(
        help="lite, lite0, clip-rn50, clip-vit-b-16, open_clip:MODEL/WEIGHTS, hf:MODEL or a folder."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
FollowOption = Annotated[
    bool, typer.Option("--follow", help="Follow links and paths that leave the folder.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")]
RejectOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=0.99,
        help="Answer the least familiar images by 'I don't know': at 0.05 about 5 % of good photos "
        "are refused at most, on average, as far as they are like the training photos. How many "
        "foreign photos are caught is not promised. 0 refuses none.",
    ),
]


def _log_to_stderr(wanted: bool) -> None:
    logger = logging.getLogger("gpcache")
    if wanted and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_log_to_stderr, help="Log what is done to stderr."),
]


def check_file(path: Path) -> None:
    """Say before the work, not after it, that a file cannot be written there."""
    output_place(path)
    if path.is_dir():
        raise DataError(f"{str(path)!r} is a folder: give the name of a file.")
    if not path.parent.is_dir():
        raise DataError(f"{str(path)!r} cannot be written: make the folder {str(path.parent)!r}.")


def json_text(content: Any, indent: int | None = None) -> str:
    """JSON that holds what it is given, and cannot steer a terminal."""
    text = json_module.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    # What is escaped stands inside a string: outside of them all is printable but line breaks.
    return re.sub(r"[^\n\x20-\x7e]", lambda found: _escaped(found[0]), text)


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else json_module.dumps(letter)[1:-1]


def print_json(content: Any) -> None:
    """JSON on stdout."""
    typer.echo(json_text(content, indent=1))


def print_rows(rows: Mapping[str, str | list[str]]) -> None:
    """A name and a value, or several beneath each other, on each line; wrapped in a terminal."""
    start = max(map(len, rows)) + 2
    width = shutil.get_terminal_size().columns - start if sys.stdout.isatty() else 0
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False).wrap
    for name, value in rows.items():
        values = [printable(line) for line in ([value] if isinstance(value, str) else value)]
        if width > 20:
            values = [part for line in values for part in wrap(line)]
        lines = f"\n{' ' * start}".join(values)
        typer.echo(f"{name:<{start}}{lines}")


def printable(text: str) -> str:
    """Text on one line that cannot steer a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def percent(value: float) -> str:
    """0.961 → 96.1 %."""
    return f"{100 * value:.1f} %"
