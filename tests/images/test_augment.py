"""Seeded views: what RandomResizedCrop promises, and that they depend on seed and key alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpcache import DataError
from gpcache.images import Preprocess
from gpcache.images.augment import Views

SMALL = Preprocess(size=24)
sides = st.integers(40, 600)


@given(sides, sides, st.floats(0.05, 1), st.floats(0.05, 1), st.integers(0, 2**40))
def test_crops_are_inside_and_of_the_promised_area_and_shape(width, height, one, other, seed):
    """Whole pixels allow for half a pixel a side; a shape that never fits gives the centre."""
    low, high = sorted((one, other))
    views = Views(count=4, scale=(low, high), seed=seed)
    for (left, top, right, bottom), _ in views.boxes(width, height, "key"):
        across, down = right - left, bottom - top
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert (across + 0.5) / (down - 0.5) >= 3 / 4
        assert (across - 0.5) / (down + 0.5) <= 4 / 3
        centred = abs((left + right) - width) <= 1 and abs((top + bottom) - height) <= 1
        in_range = (across - 0.5) * (down - 0.5) <= high * width * height
        in_range &= (across + 0.5) * (down + 0.5) >= low * width * height
        assert in_range or centred


def test_draws_fill_their_ranges():
    boxes = Views(count=4000, scale=(0.3, 0.7)).boxes(1000, 1000, "key")
    areas = np.array([(r - x) * (b - y) for (x, y, r, b), _ in boxes]) / 1e6
    ratios = np.log([(r - x) / (b - y) for (x, y, r, b), _ in boxes])
    places = np.array([x / (1000 - (r - x)) for (x, _, r, _), _ in boxes])
    assert np.allclose(np.quantile(areas, [0.25, 0.5, 0.75]), [0.4, 0.5, 0.6], atol=0.01)
    edge = np.log(4 / 3)
    assert np.allclose(np.quantile(ratios, [0.25, 0.5, 0.75]), [-edge / 2, 0, edge / 2], atol=0.02)
    assert np.allclose(np.quantile(places, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.03)
    assert abs(np.mean([mirrored for _, mirrored in boxes]) - 0.5) < 0.03


@pytest.mark.parametrize("size", [(1, 1), (1, 16384), (16384, 1), (3, 2000)])
def test_lines_give_their_centre(size):
    (left, top, right, bottom), _ = Views(count=1, scale=(0.9, 1.0)).boxes(*size, "key")[0]
    assert abs(left + right - size[0]) <= 1
    assert abs(top + bottom - size[1]) <= 1
    pixels = Views(count=2).pixels(Image.new("RGB", size, (1, 2, 3)), SMALL, "key")
    assert (pixels == (1, 2, 3)).all()


def test_pixels_are_the_boxes_resized_and_mirrored(photo):
    """The oracle: crop, then resize, then mirror, each by Pillow."""
    views = Views(count=12, seed=3)
    boxes = views.boxes(*photo.size, "key")
    assert {mirrored for _, mirrored in boxes} == {True, False}
    for view, (box, mirrored) in zip(views.pixels(photo, SMALL, "key"), boxes, strict=True):
        expected = photo.crop(box).resize((24, 24), Image.Resampling.BICUBIC)
        if mirrored:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        assert np.array_equal(view, expected)


def test_views_depend_on_seed_and_key_alone(photo):
    views = Views(count=3).pixels(photo, SMALL, "key")
    assert views.shape == (3, 24, 24, 3)
    assert views.dtype == np.uint8
    assert np.array_equal(views, Views(count=3).pixels(photo, SMALL, b"key"))
    assert np.array_equal(views, Views(count=9).pixels(photo, SMALL, "key")[:3])
    assert not np.array_equal(views, Views(count=3).pixels(photo, SMALL, "other"))
    assert not np.array_equal(views, Views(count=3, seed=1).pixels(photo, SMALL, "key"))


def test_the_draws_never_change():
    """A store keeps features of views: other draws under the same description would corrupt it."""
    assert Views(count=3).boxes(640, 480, "key") == [
        ((234, 31, 612, 476), True),
        ((34, 16, 640, 477), True),
        ((69, 11, 434, 466), False),
    ]


def test_descriptions_tell_views_apart():
    assert Views().describe() == Views(scale=[0.5, 1]).describe()
    others = [Views(count=9), Views(scale=(0.08, 1.0)), Views(seed=1)]
    assert all(other.describe() != Views().describe() for other in others)


@pytest.mark.parametrize(
    "options",
    [{"count": 0}, {"scale": (0, 1)}, {"scale": (0.9, 0.5)}, {"scale": (0.5, 1.1)}, {"seed": -1}],
)
def test_bad_options_are_one_sentence(options):
    with pytest.raises(DataError, match=f"{next(iter(options))} of Views must be"):
        Views(**options)
