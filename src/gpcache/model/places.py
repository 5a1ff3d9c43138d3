"""Where a model may be written; needs no torch, so that a wrong place is refused at once."""

from __future__ import annotations

from pathlib import Path

from gpcache.errors import DataError
from gpcache.support.array_folders import check_place, is_projection


def check_model_place(folder: str | Path) -> None:
    """Refuse a place that holds something other than a classifier, such as a projection."""
    if is_projection(check_place(folder)):
        raise DataError(
            f"{str(folder)!r} is a similarity projection: choose another name; it was left as it "
            "is."
        )


def check_new_model(folder: Path, *, replace: bool) -> None:
    """Refuse a place where a model is already, unless it may be replaced, or something else."""
    check_model_place(folder)
    if not replace and folder.is_dir() and any(folder.iterdir()):
        raise DataError(
            f"There is a model in {str(folder)!r} already: choose another name, or add --force to "
            "replace it."
        )
