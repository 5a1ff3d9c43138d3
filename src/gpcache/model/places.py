"""Where a model may be written; needs no torch, so that a wrong place is refused at once."""

from __future__ import annotations

from pathlib import Path

from gpcache.errors import DataError
from gpcache.support.array_folders import check_place, is_projection


def check_model_place(folder: str | Path, *, replace: bool = True) -> None:
    """Refuse a place that holds something other than a classifier, such as a projection.

    Without `replace`, refuse one that holds a classifier, too.
    """
    if is_projection(check_place(folder)):
        raise DataError(
            f"{str(folder)!r} is a similarity projection: choose another name; it was left as it "
            "is."
        )
    check_place(folder, replace=replace)
