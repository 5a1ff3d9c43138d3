"""Thumbnails: small, upright, and with nothing of the file but its picture."""

import io

import numpy as np
import pytest
from PIL import Image

from gpcache import ImageRefusedError
from gpcache.images import Preprocess
from gpcache.images.worker import THUMBNAIL, prepare


def thumbnail(source, side=THUMBNAIL):
    return prepare(source, Preprocess(size=1), None, "", thumbnail=side).thumbnail


def opened(data):
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def file_of(image, form, **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((900, 600), (160, 107)),
        ((600, 900), (107, 160)),
        ((90, 60), (90, 60)),
        ((5000, 2), (160, 1)),
    ],
)
def test_a_thumbnail_is_a_jpeg_of_at_most_so_many_pixels(size, expected, photo):
    found = opened(thumbnail(photo.resize(size)))
    assert (found.format, found.mode, found.size) == ("JPEG", "RGB", expected)
    assert max(opened(thumbnail(photo.resize(size), side=40)).size) <= 40


def test_it_looks_like_the_image(photo):
    found = opened(thumbnail(photo.resize((900, 600))))
    expected = np.asarray(photo.resize(found.size), dtype=float)
    assert np.abs(np.asarray(found, dtype=float) - expected).mean() < 4


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_no_metadata_comes_along(form, photo):
    exif = Image.Exif()
    exif[0x010E] = "SECRET description"
    options = {"exif": exif.tobytes(), "comment": b"SECRET comment", "xmp": b"<SECRET/>"}
    data = file_of(photo, form, icc_profile=b"SECRET profile" * 20, **options)
    assert b"SECRET" in data
    found = thumbnail(data)
    assert b"SECRET" not in found
    assert b"Exif" not in found
    assert set(opened(found).info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_orientation_is_applied_and_transparency_is_white(photo):
    exif = Image.Exif()
    exif[0x0112] = 6
    assert opened(thumbnail(file_of(photo, "JPEG", exif=exif.tobytes()))).size == (60, 90)
    clear = Image.new("RGBA", (50, 50), (255, 0, 0, 0))
    assert np.asarray(opened(thumbnail(clear))).min() > 250


def test_the_callers_image_stays_as_it_is(photo):
    image = photo.resize((900, 600))
    image.info["comment"] = b"mine"
    before = image.tobytes()
    thumbnail(image)
    assert image.tobytes() == before
    assert image.size == (900, 600)
    assert image.info == {"comment": b"mine"}


def test_what_is_no_image_is_refused(tmp_path):
    (tmp_path / "text.jpg").write_text("text")
    for source in (tmp_path / "text.jpg", tmp_path / "gone.jpg", b"text"):
        with pytest.raises(ImageRefusedError):
            thumbnail(source)
    assert THUMBNAIL == 160
