"""Decoding: what is refused and why, what is accepted, and what its pixels are."""

import os
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps

from gpcache import ImageRefusedError
from gpcache.images import decode
from gpcache.images.decode import POLICY, Policy


@pytest.fixture
def reason():
    """The reason for which a source is refused; one line, and no chain of causes."""

    def refused(source):
        with pytest.raises(ImageRefusedError) as caught:
            decode(source)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        return caught.value.reason

    return refused


def test_every_file_of_the_corpus_has_a_verdict(hostile):
    verdicts = {*hostile.module.REFUSED, *hostile.module.ACCEPTED}
    assert {path.name for path in hostile.folder.iterdir()} == verdicts


def test_refused_from_a_path_and_from_bytes(hostile, reason):
    for name, part in hostile.module.REFUSED.items():
        path = hostile.folder / name
        why = reason(path)
        assert any(option in why for option in part.split("|")), (name, why)
        assert reason(path.read_bytes()) == why, name
        with pytest.raises(ImageRefusedError, match=name):
            decode(str(path))


def test_accepted_from_a_path_and_from_bytes(hostile):
    for name, (size, notes) in hostile.module.ACCEPTED.items():
        path = hostile.folder / name
        decoded = decode(path)
        assert (decoded.image.mode, decoded.image.size) == ("RGB", size), name
        assert len(decoded.notes) == len(notes), (name, decoded.notes)
        assert all(part in note for part, note in zip(notes, decoded.notes, strict=True)), name
        assert np.array_equal(decode(path.read_bytes()).image, decoded.image), name


def test_no_warning_reaches_the_user_and_no_global_of_pillow_changes(hostile):
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in hostile.folder.iterdir():
            try:
                decode(path)
            except ImageRefusedError:
                continue
    after = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    assert after == before


@pytest.mark.parametrize("name", ["bomb_88.png", "bomb_144.png", "bomb_88.gif", "bomb_88.tif"])
def test_a_bomb_costs_no_memory(name, hostile, measured):
    script = """
import json, resource, sys
from gpcache.images import decode
decode("{small}")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(sys.argv[1])
except ValueError:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({{"kilobytes": grown}}))
""".format(small=hostile.folder / "photo.avif")
    cost = measured(script, hostile.folder / name)
    assert cost["kilobytes"] < 10_000


def test_postscript_never_starts_a_program(hostile, monkeypatch):
    def forbidden(*arguments, **_):
        raise AssertionError(arguments)

    monkeypatch.setattr("subprocess.Popen", forbidden)
    monkeypatch.setattr("shutil.which", forbidden)
    with pytest.raises(ImageRefusedError, match="not an image"):
        decode(hostile.folder / "postscript.jpg")


def mean(hostile, name):
    return np.asarray(decode(hostile.folder / name).image, dtype=float).mean((0, 1))


@pytest.mark.parametrize(
    "name", ["grey16.png", "grey16.tif", "grey16_big_endian.tif", "grey32.tif"]
)
def test_sixteen_bits_are_scaled(name, hostile):
    expected = np.asarray(hostile.module.photo().convert("L"))
    assert np.array_equal(np.asarray(decode(hostile.folder / name).image)[..., 0], expected)


@pytest.mark.parametrize(
    "name",
    ["invisible.png", "invisible_palette.png", "invisible_grey.png", "invisible.webp", "keyed.png"],
)
def test_what_is_transparent_is_white(name, hostile):
    assert (np.asarray(decode(hostile.folder / name).image) == 255).all()


@pytest.mark.parametrize(
    "name",
    [
        *("cmyk.jpg", "adobe_cmyk.tif", "progressive.jpg", "colour16.png", "ycbcr.tif"),
        *("named_wrongly.png", "photo.avif", "photo.webp", "photo.bmp", "photo_with_zip.jpg"),
        *("animated.png", "animated.webp", "pages.tif"),
    ],
)
def test_colours_stay(name, hostile):
    """Every pixel near the original: a lossy file, or CMYK, may be off by a little."""
    original = np.asarray(hostile.module.photo(), dtype=int)
    difference = np.abs(np.asarray(decode(hostile.folder / name).image) - original)
    assert difference.mean() < 4
    assert np.percentile(difference, 95) < 16


def test_lab_is_neutral_grey(hostile):
    """L* = 50 without colour is sRGB 119."""
    assert np.abs(mean(hostile, "lab.tif") - 119).max() < 2


@pytest.mark.parametrize("suffix", ["png", "webp", "tif", "jpg"])
def test_turned_upright_once(suffix, hostile):
    """Orientation 6: the camera was turned, so the picture is shown turned clockwise."""
    original = np.asarray(hostile.module.photo(), dtype=int)
    upright = np.asarray(decode(hostile.folder / f"turned.{suffix}").image, dtype=int)
    assert np.abs(upright - np.rot90(original, -1)).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_orientations_as_the_viewer_sees_them(orientation, photo, tmp_path):
    """The oracle: Pillow's own exif_transpose; as a file and as a Pillow image."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.png"
    photo.save(path, exif=exif)
    with Image.open(path) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
        assert np.array_equal(decode(opened).image, expected)
    assert np.array_equal(decode(path).image, expected)


def test_half_transparent_is_half_white(photo):
    image = Image.new("RGBA", (40, 40), (100, 0, 200, 128))
    assert np.abs(np.asarray(decode(image).image)[0, 0] - (177.2, 127, 227.4)).max() < 1
    grey = Image.new("LA", (40, 40), (100, 128))
    assert np.abs(np.asarray(decode(grey).image)[0, 0] - 177.2).max() < 1
    palette = photo.quantize(8).convert("PA")
    palette.putalpha(0)
    assert (np.asarray(decode(palette).image) == 255).all()


def test_a_pillow_image_is_left_as_it_was():
    image = Image.new("RGBA", (40, 40), (1, 2, 3, 0))
    decode(image)
    assert image.mode == "RGBA"
    assert image.getpixel((0, 0)) == (1, 2, 3, 0)


@pytest.mark.parametrize("shape", [(40, 50), (40, 50, 1), (40, 50, 3), (40, 50, 4)])
def test_arrays_of_bytes_and_of_sixteen_bits(shape):
    array = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape).astype(np.uint8)
    if shape[2:] == (4,):
        array[..., 3] = 255
    decoded = np.asarray(decode(array).image)
    expected = array[..., :3] if len(shape) == 3 else array[..., None]
    assert decoded.shape == (40, 50, 3)
    assert (decoded == expected).all()
    assert np.array_equal(decode(array.astype(np.uint16) * 257).image, decoded)


def test_floats_and_tensors_are_the_same_pixels(photo):
    pixels = np.asarray(photo)
    channels_first = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    for same in (
        pixels / 255,
        (pixels / 255).astype(np.float32),
        channels_first,
        channels_first / 255,
        (channels_first / 255).to(torch.float16),
    ):
        assert np.array_equal(decode(same).image, photo)
    grey = torch.arange(40 * 40).reshape(1, 40, 40).to(torch.uint8)
    assert np.array_equal(np.asarray(decode(grey).image)[..., 0], grey[0])
    assert np.array_equal(decode(grey[0]).image, decode(grey).image)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (np.full((40, 40, 3), 2.0), "floats must go from 0 to 1"),
        (np.full((40, 40, 3), np.nan), "floats must go from 0 to 1"),
        (np.zeros((40, 40, 3), dtype=np.int64), "int64 with shape (40, 40, 3)"),
        (np.zeros((3, 40, 40), dtype=np.uint8), "or (h, w, c) with 1, 3 or 4 channels"),
        (torch.zeros(40, 40, 3), "or (c, h, w) with 1, 3 or 4 channels, got a torch tensor"),
        (torch.full((3, 40, 40), -1.0), "got -1 to -1 in a torch tensor of float32"),
        (torch.zeros(3, 40, 40, dtype=torch.int64), "torch tensor of int64 with shape (3, 40, 40)"),
        (np.zeros((40, 40), dtype=bool), "uint8 or uint16"),
        (np.zeros((40, 40, 2), dtype=np.uint8), "(h, w)"),
        (np.zeros((2, 40, 40, 3), dtype=np.uint8), "(h, w)"),
        (np.zeros((0, 40, 3), dtype=np.uint8), "(h, w)"),
        (np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (9000, 9000), (0, 0)), "50 mill"),
        (Image.new("F", (40, 40)), "floating-point"),
        (Image.new("1", (9000, 9000)), "50 million"),
        (None, "NoneType"),
        (3, "int"),
        ("no/such/file.jpg", "no such file"),
        ("null\0character.jpg", "cannot be read"),
        (bytes(20_000_001), "larger than 20 MB"),
        (os.curdir, "a folder"),
        ("/dev/null", "not a regular file"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isprintable() else "",
)
def test_refused_sources(source, part, reason):
    assert part in reason(source)


def test_unreadable(tmp_path, reason):
    path = tmp_path / "a.jpg"
    path.write_bytes(b"x")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "Permission denied" in reason(path)


def test_a_file_at_the_limits_is_accepted(photo, tmp_path):
    path = tmp_path / "a.png"
    photo.save(path)
    size = path.stat().st_size
    exact = {"max_bytes": size, "max_pixels": 90 * 60, "max_side": 90}
    assert decode(path, Policy(**exact)).notes == ()
    for name, value in exact.items():
        with pytest.raises(ImageRefusedError):
            decode(path, Policy(**exact | {name: value - 1}))
    assert (POLICY.max_bytes, POLICY.max_pixels, POLICY.max_side) == (20_000_000, 50_000_000, 16384)


def test_a_jpeg_without_its_end_is_refused(hostile):
    """Pillow loads about one in a hundred of these; what follows the end does not matter."""
    generator = np.random.default_rng(0)
    for number in range(200):
        noise = Image.fromarray(generator.integers(0, 256, (40 + number, 50, 3), dtype=np.uint8))
        content = hostile.module.encoded(noise, "JPEG", progressive=number % 2 == 0)
        with pytest.raises(ImageRefusedError, match="truncated"):
            decode(content[:-2])
    decode(content + b"\xff\xda behind the end")


def test_no_memory_is_a_refusal(photo, monkeypatch, reason):
    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", exhausted)
    assert "memory" in reason(photo.quantize(8))


def test_heic(photo, tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra heif is not installed")
    path = tmp_path / "a.heic"
    pillow_heif.from_pillow(photo).save(path, quality=95)
    difference = np.abs(np.asarray(decode(path).image, dtype=int) - np.asarray(photo))
    assert difference.mean() < 6
    assert "HEIF" not in Image.OPEN  # Pillow is as it was
    content = path.read_bytes()
    with pytest.raises(ImageRefusedError, match="truncated"):
        decode(content[: len(content) // 2])
    with pytest.raises(ImageRefusedError, match="million pixels"):
        decode(path, Policy(max_pixels=99))


@pytest.mark.parametrize("kind", ["u2", "f4", "f8"])
def test_the_byte_order_of_an_array_does_not_matter(kind, photo):
    array = np.asarray(photo).astype(kind) / (1 if kind == "u2" else 255)
    array = array.astype(kind)
    swapped = array.astype(f">{kind}")
    assert np.array_equal(decode(swapped).image, decode(array).image)


def test_a_masked_array_is_refused(reason, photo):
    assert "masked array" in reason(np.ma.masked_array(np.asarray(photo)))


def test_heic_without_the_extra(monkeypatch, reason):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
    assert "pip install 'gpcache[heif]'" in reason(content)
    avif = b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(100)
    assert "gpcache[heif]" not in reason(avif)
    assert reason(avif) == "it is truncated"


def test_importing_the_room_is_light(measured):
    script = "import gpcache.images.worker, json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = set(measured(script))
    assert not loaded & {"torch", "sklearn", "scipy", "pillow_heif", "multiprocessing"}
