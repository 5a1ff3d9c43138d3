"""Options that several commands share, and how they print."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

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
        help="lite, clip-rn50, clip-vit-b-16, open_clip:MODEL/WEIGHTS, hf:MODEL or a folder."
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
        min=0, max=0.99, help="The share of good images that may be answered by 'I don't know'."
    ),
]


def print_json(content: Any) -> None:
    """JSON on stdout."""
    typer.echo(json_module.dumps(content, indent=1, ensure_ascii=False, allow_nan=False))


def print_rows(rows: dict[str, str]) -> None:
    """A name and a value on each line."""
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {printable(value)}")


def printable(text: str) -> str:
    """Text that cannot steer a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text)


def percent(value: float) -> str:
    """0.961 → 96.1 %."""
    return f"{100 * value:.1f} %"
