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
        self, score: Callable[[Steps], float], here: Steps, directions: Sequence[Steps]
    ) -> None:
        """Ask for scores, from a spot downwards; `score` keeps what it is asked for."""
        free = [d for d in directions if any(a and b for a, b in zip(d, self.free, strict=True))]
        for step in (2, 1):
            moved = True
            while moved:
                moved = False
                for i, j, k in free:
                    # Descend in one direction as far as possible before trying another.
                    while score(
                        spot := (here[0] + step * i, here[1] + step * j, here[2] + step * k)
                    ) < score(here):
                        here, moved = spot, True
