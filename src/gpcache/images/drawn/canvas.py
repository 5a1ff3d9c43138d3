"""Tools of all drawings: coordinates, noise, cells, colours, light and the camera."""

from __future__ import annotations

import json
from itertools import product
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from scipy import fft, ndimage

HEIGHT, WIDTH = 240, 320
Random = np.random.Generator
Field = NDArray[Any]  # (h, w), float32
Colours = NDArray[Any]  # (..., 3), float32, from 0 to 1

_FILE = Path(__file__).with_name("palettes.json")
_PALETTES: dict[str, list[str]] = json.loads(_FILE.read_bytes())


def frame() -> tuple[Field, Field]:
    """The coordinates x (h, w) and y (h, w) of the pixels, in heights from the centre."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    return (x - WIDTH / 2) / HEIGHT, (y - HEIGHT / 2) / HEIGHT


def plane(rng: Random, least: float, most: float, turn: float) -> tuple[Field, Field]:
    """Coordinates on a plane: turned, tilted, shifted, and `least` to `most` units high."""
    x, y = frame()
    scaled = rng.uniform(least, most) / (
        1 + rng.uniform(-0.25, 0.25) * x + rng.uniform(-0.25, 0.25) * y
    )
    u, v = (x * cos(turn) + y * sin(turn)) * scaled, (y * cos(turn) - x * sin(turn)) * scaled
    return u + rng.uniform(50, 99), v + rng.uniform(50, 99)


def noise(
    rng: Random,
    slope: float,
    *,
    size: float = 150,
    stretch: float = 1.0,
    turn: float = 0.0,
    shape: tuple[int, int] = (HEIGHT, WIDTH),
) -> Field:
    """Random clouds of mean 0 and deviation 1, which repeat at the edges.

    A steeper `slope` of the spectrum is smoother; `size` is that of the largest clouds in pixels.
    They are `stretch` times longer in the direction of `turn`.
    """
    down = fft.fftfreq(shape[0]).astype(np.float32)[:, None]
    right = fft.rfftfreq(shape[1]).astype(np.float32)
    along, across = right * cos(turn) + down * sin(turn), down * cos(turn) - right * sin(turn)
    squared = (along * stretch) ** 2 + across**2 + size**-2
    parts = rng.standard_normal((2, *squared.shape), dtype=np.float32)
    spectrum = (parts[0] + 1j * parts[1]) * squared ** (-slope / 2)
    spectrum[0, 0] = 0
    field = fft.irfft2(spectrum, s=shape)
    scaled: Field = field / field.std()
    return scaled


def sampled(tile: Field, x: Field, y: Field) -> Field:
    """The values of a repeating tile at any coordinates."""
    values: Field = ndimage.map_coordinates(tile, [y, x], order=1, mode="grid-wrap")
    return values


def cells(rng: Random, u: Field, v: Field) -> tuple[Field, Field, Field]:
    """A stone for each unit square: distances to the nearest two centres, the nearest's number."""
    centres = rng.uniform(0.12, 0.88, (2, 64 * 64)).astype(np.float32)
    column, row = np.floor(u).astype(np.int32), np.floor(v).astype(np.int32)
    x, y = u - column, v - row
    first, second, number = np.full_like(u, 9), np.full_like(u, 9), np.zeros_like(row)
    for down, right in product((-1, 0, 1), repeat=2):
        cell = ((row + down) % 64) * 64 + (column + right) % 64
        across, along = centres[0].take(cell) + right - x, centres[1].take(cell) + down - y
        squared = across * across + along * along
        number = np.where(squared < first, cell, number)
        second = np.minimum(second, np.maximum(first, squared))
        first = np.minimum(first, squared)
    return np.sqrt(first), np.sqrt(second), number


def random_value(rng: Random, *numbers: Field) -> Field:
    """A random value from 0 to 1 for each number, or for each tuple of numbers."""
    table = rng.random(4093, dtype=np.float32)
    mixed = sum(n.astype(np.int64) * p for n, p in zip(numbers, (7919, 104729), strict=False))
    return table[mixed % 4093]


def choose_palette(rng: Random, name: str) -> Colours:
    """One of the palettes (k, 3) of this name in palettes.json, a little varied."""
    words = str(rng.choice(_PALETTES[name])).split()
    chosen = np.array([list(bytes.fromhex(word)) for word in words], np.float32) / 255
    varied = rng.uniform(0.94, 1.06, (1, 3)) + rng.normal(0, 0.03, chosen.shape)
    return np.clip(chosen * varied, 0, 1).astype(np.float32)


def ramp(field: Field, colours: Colours) -> Colours:
    """The colour of each value from 0 to 1, between the first colour and the last."""
    steps, stops = np.linspace(0, 1, 512), np.linspace(0, 1, len(colours))
    table = np.stack([np.interp(steps, stops, part) for part in colours.T], -1).astype(np.float32)
    return table.take((np.clip(field, 0, 1) * 511).astype(np.int32), axis=0)


def smooth(field: Field, low: float, high: float) -> Field:
    """0 below `low`, 1 above `high`, and an even step between."""
    t = np.clip((field - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def blend(under: Any, over: Any, share: Field) -> Colours:
    """Two pictures or colours, with this share (h, w) of the second."""
    picture: Colours = under + (over - under) * share[..., None]
    return picture


def shade(rng: Random, height: Field, depth: float) -> Colours:
    """The light (h, w, 1) on a surface of this height in pixels; it comes mostly from above."""
    angle = rng.normal(-pi / 2, 0.7)
    down, right = np.gradient(height)
    light = 1 - depth * (right * cos(angle) + down * sin(angle))
    lit: Colours = np.clip(light, 0.25, 1.9)
    return lit[..., None]


def photograph(rng: Random, picture: Colours) -> Image.Image:
    """The picture as a camera sees it: light, colour cast, vignette, focus and grain."""
    x, y = frame()
    angle, strength, warmth = rng.uniform(0, 2 * pi), rng.uniform(0, 0.7), rng.normal(0, 0.07)
    light = 1 + strength * (x * cos(angle) + y * sin(angle))
    light = light * (1 - rng.uniform(0, 0.6) * (x * x + y * y)) * rng.uniform(0.7, 1.12)
    lit = picture * light[..., None] * np.array([1 + warmth, 1, 1 - warmth], np.float32)
    image = Image.fromarray((np.clip(lit, 0, 1) * 255).astype(np.uint8))
    gamma = rng.uniform(0.7, 1.35)
    image = image.point([round(255 * (value / 255) ** gamma) for value in range(256)] * 3)
    image = image.filter(ImageFilter.GaussianBlur(max(0.0, rng.uniform(-1, 1.8))))
    grain = rng.standard_normal((HEIGHT, WIDTH, 1), dtype=np.float32) * rng.uniform(0.5, 9)
    return Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))
