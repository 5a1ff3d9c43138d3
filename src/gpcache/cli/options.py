"""Options that several commands share."""

import logging
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from gpcache.errors import DataError
from gpcache.support.files import output_place

IMAGES = (
    "A folder of class folders; a .csv, .tsv or .parquet list with the columns path, label, split, "
    "group; or webdataset .tar shards."
)
ENCODER = "lite, lite0, clip-rn50, clip-vit-b-16, open_clip:MODEL/WEIGHTS, hf:MODEL or a folder."
REJECT = (
    "Answer 'I don't know' for the least familiar images. 0.05 refuses at most about 5 % of photos "
    "that are like the training photos. How many other photos it refuses is not guaranteed. 0 "
    "refuses none."
)
ENGINE = "Work on this machine, or on the Ray cluster at RAY_ADDRESS."

MODEL = "A model folder, for example pets.gpc."
ModelArgument = Annotated[Path, Argument(metavar="MODEL", help=MODEL)]
ImagesArgument = Annotated[Path, Argument(metavar="IMAGES", help=IMAGES)]
IMAGES_OR_STORE = IMAGES.removesuffix(".") + "; or a feature store (gpcache extract)."
ImagesOrStoreArgument = Annotated[Path, Argument(metavar="IMAGES", help=IMAGES_OR_STORE)]
EncoderOption = Annotated[str, Option(metavar="ENCODER", help=ENCODER)]
DeviceOption = Annotated[str, Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, mps.")]
FollowOption = Annotated[bool, Option("--follow", help="Follow links that leave the folder.")]
EngineOption = Annotated[Literal["local", "ray"], Option(help=ENGINE)]
JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of sentences.")]
RejectOption = Annotated[float, Option(min=0, max=0.99, metavar="SHARE", help=REJECT)]


def _log_to_stderr(wanted: bool) -> None:
    logger = logging.getLogger("gpcache")
    if wanted and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


VERBOSE = "Log each step to stderr."
VerboseOption = Annotated[bool, Option("--verbose", "-v", callback=_log_to_stderr, help=VERBOSE)]


def check_file(path: Path) -> None:
    """Raise an error before any work is done if a file cannot be written to this path."""
    output_place(path)
    if path.is_dir():
        raise DataError(f"{str(path)!r} is a folder: give the name of a file.")
    if not path.parent.is_dir():
        raise DataError(f"{str(path)!r} cannot be written: make the folder {str(path.parent)!r}.")
