"""Coordinate descent on a lattice of logarithms, by whole and then by half steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Half steps in each of three coordinates.
Steps = tuple[int, int, int]
Point = tuple[float, float, float]
Range = tuple[float, float]


class Lattice(NamedTuple):
    """Points around `start`; `steps` are whole steps of the logarithm of each coordinate.

    Only `free` coordinates move, and only within their `ranges`.
    """

    start: Point
    steps: Point
    ranges: tuple[Range, Range, Range]
    free: tuple[bool, bool, bool]

    def point(self, spot: Steps) -> Point | None:
        """The point of a spot; None outside of the ranges, which do not bound the start."""
        moves = zip(self.start, spot, self.steps, strict=True)
        a, b, c = (origin * math.exp(count * step / 2) for origin, count, step in moves)
        bounds = zip(spot, (a, b, c), self.ranges, strict=True)
        inside = all(count == 0 or low <= value <= high for count, value, (low, high) in bounds)
        return (a, b, c) if inside else None

    def descend(
        self,
        score: Callable[[Steps], float],
        here: Steps,
        directions: Sequence[Steps],
        look_ahead: Callable[[list[Steps]], None] | None = None,
    ) -> None:
        """Ask for scores, from a spot downwards; `score` keeps what it is asked for.

        `look_ahead` is given the spots whose scores are asked for next, unless one is better.
        """
        free = [d for d in directions if any(a and b for a, b in zip(d, self.free, strict=True))]
        for step in (2, 1):
            moved = True
            while moved:
                moved = False
                if look_ahead:
                    look_ahead([_moved(here, step, direction) for direction in free])
                for direction in free:
                    # Descend in one direction as far as possible before trying another.
                    while score(spot := _moved(here, step, direction)) < score(here):
                        here, moved = spot, True


def _moved(here: Steps, step: int, direction: Steps) -> Steps:
    i, j, k = (place + step * way for place, way in zip(here, direction, strict=True))
    return i, j, k
