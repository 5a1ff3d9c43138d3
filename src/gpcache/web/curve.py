"""The learning curve: held-out accuracy after each change that was not undone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from gpcache.support.files import sha256
from gpcache.web.held_out import HeldOutPhotos
from gpcache.web.workspace_contents import Contents

MAX_POINTS = 1_000
# Marks a point without a figure, after which the curve starts again.
NO_FIGURE = ""


class CurvePoint(NamedTuple):
    """Photos and held-out accuracy at a revision; `covers` identifies the classes."""

    revision: int
    photos: int
    accuracy: float
    covers: str


Curve = tuple[CurvePoint, ...]


def continued(
    curve: Curve, revision: int, before: Contents, after: Contents, held_out: HeldOutPhotos | None
) -> Curve:
    """The curve after a change from one value of the contents to another.

    A point replaces the last one with the same number of photos, for example after a new label.
    """
    if names := _renamed(before, after):
        curve = tuple(_with_name(point, *names, before) for point in curve)
    point = CurvePoint(revision, 0, 0.0, NO_FIGURE)
    if held_out is not None and (figures := held_out.figures()) is not None:
        photos, covers = len(after.labelled()), _mark(held_out.covered_classes())
        point = CurvePoint(revision, photos, figures.accuracy, covers)
    if curve and (curve[-1].photos, curve[-1].covers) == (point.photos, point.covers):
        return curve if curve[-1].accuracy == point.accuracy else (*curve[:-1], point)
    return (*curve, point)[-MAX_POINTS:]


def undone(curve: Curve, revision: int) -> Curve:
    """The curve as it was at an earlier revision."""
    return tuple(point for point in curve if point.revision <= revision)


def comparable(curve: Curve) -> Curve:
    """The last points of the same classes; figures of other classes cannot be compared."""
    if not curve or curve[-1].covers == NO_FIGURE:
        return ()
    return tuple(takewhile(lambda point: point.covers == curve[-1].covers, reversed(curve)))[::-1]


def _renamed(before: Contents, after: Contents) -> tuple[str, str] | None:
    """The old and the new name, if the only change is a renamed class."""
    old, new = set(before.class_names()), set(after.class_names())
    if len(old - new) != 1 or len(new - old) != 1 or before.photos.keys() != after.photos.keys():
        return None
    return (old - new).pop(), (new - old).pop()


def _with_name(point: CurvePoint, old: str, new: str, before: Contents) -> CurvePoint:
    """The point of the same classes after a renaming; only those of all labelled ones are known."""
    names = {str(photo.label) for photo in before.labelled()}
    if point.covers != _mark(names):
        return point
    return point._replace(covers=_mark({new if name == old else name for name in names}))


def _mark(names: Iterable[str]) -> str:
    return sha256("\n".join(sorted(names)).encode())[:8]
