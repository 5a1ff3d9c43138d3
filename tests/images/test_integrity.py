"""Damage that a file shows by itself is refused; what cannot be told from a picture is not."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from gpcache.errors import ImageRefusedError
from gpcache.images import decode


def file_of(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture(scope="module")
def picture():
    """A gradient with noise: every part of it takes picture data."""
    y, x = np.mgrid[:240, :320]
    smooth = np.stack([x * 0.7, y, 255 - x * 0.7], -1)
    noisy = smooth + np.random.default_rng(0).normal(0, 6, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def refusal(content):
    with pytest.raises(ImageRefusedError) as caught:
        decode(content)
    return caught.value.reason


JPEGS = {
    "baseline": {},
    "4:4:4": {"subsampling": 0},
    "optimised": {"optimize": True},
    "restarts": {"restart_marker_rows": 2},
    "progressive": {"progressive": True},
}


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_sound_jpeg_decodes_as_pillow_does_and_has_no_notes(picture, mode, options):
    content = file_of(picture.convert(mode), "JPEG", **options)
    decoded = decode(content)
    assert decoded.notes == ()
    assert np.array_equal(decoded.image, Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("side", [1, 7, 8, 9, 33, 100])
def test_a_jpeg_of_any_size_is_whole(picture, side):
    for image in (picture.crop((0, 0, side, 2 * side)), Image.new("L", (side, side), 128)):
        notes = decode(file_of(image, "JPEG")).notes
        assert not any("damaged" in note for note in notes)


@pytest.mark.parametrize("name", ["baseline", "4:4:4", "optimised", "restarts"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.98])
def test_a_cut_jpeg_is_refused_although_an_end_mark_follows(picture, name, share):
    content = file_of(picture, "JPEG", quality=90, **JPEGS[name])
    assert "truncated" in refusal(content[: int(len(content) * share)] + b"\xff\xd9")


def test_a_progressive_jpeg_without_its_last_passes_is_refused(picture):
    content = file_of(picture, "JPEG", quality=90, progressive=True)
    last = content.rindex(b"\xff\xda")
    for cut in (len(content) // 8, last):
        assert refusal(content[:cut] + b"\xff\xd9") == "it is truncated"


def test_a_jpeg_that_lost_a_restart_interval_is_refused(picture):
    content = file_of(picture, "JPEG", restart_marker_rows=1)
    start, end = content.index(b"\xff\xd2"), content.index(b"\xff\xd4")
    assert "restart marks" in refusal(content[:start] + content[end:])


def test_picture_data_after_the_picture_are_noted(picture):
    content = file_of(picture, "JPEG")
    (note,) = decode(content[:-2] + b"\x55" * 40 + content[-2:]).notes
    assert "continue after the picture" in note


def test_several_jpegs_in_a_file_are_read_as_before(picture):
    content = file_of(picture, "MPO", save_all=True, append_images=[picture.rotate(90)])
    assert decode(content).notes == ()
    assert decode(content + b"trailer" * 9).notes == ()


FORMATS = {
    "JPEG": {},
    "PNG": {},
    "GIF": {},
    "BMP": {},
    "WEBP": {},
    "WEBP without loss": {"lossless": True},
    "TIFF": {},
    "TIFF with LZW": {"compression": "tiff_lzw"},
    "TIFF with deflate": {"compression": "tiff_adobe_deflate"},
    "TIFF with JPEG": {"compression": "jpeg"},
    "AVIF": {},
}


@pytest.mark.filterwarnings("ignore:Truncated File Read")
@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_file_of_any_format_is_called_truncated(picture, name):
    content = file_of(picture.resize((80, 60)), name.split()[0], **FORMATS[name])
    decode(content)
    for end in (20, len(content) // 3, 2 * len(content) // 3, len(content) - 10):
        assert refusal(content[:end]) == "it is truncated", end


def test_a_cut_heic_is_called_truncated(picture):
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra heif is not installed")
    stream = io.BytesIO()
    pillow_heif.from_pillow(picture).save(stream, quality=80)
    content = stream.getvalue()
    for end in (20, len(content) // 3, 2 * len(content) // 3, len(content) - 10):
        assert refusal(content[:end]) == "it is truncated", end


@pytest.mark.filterwarnings("ignore:Truncated File Read")
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_called_truncated_wherever_it_is_cut(picture, name):
    """From the first bytes on that tell the format."""
    content = file_of(picture.resize((33, 32)), name.split()[0], **FORMATS[name])
    for end in range(13, len(content) - 1, 1 + len(content) // 97):
        assert "truncated" in refusal(content[:end]), end


@pytest.mark.parametrize(
    "text", [b"RIFF is a word", b"GIF is a format", b"II* are stars", b"\x89PNG is not PNG"]
)
def test_text_is_not_taken_for_a_cut_image(text):
    assert "not an image" in refusal(text * 9)


@pytest.mark.parametrize("options", [{}, {"interlace": 1}])
def test_every_flipped_bit_of_a_png_is_refused(picture, options):
    content = file_of(picture.resize((16, 12)), "PNG", **options)
    for at in range(8 * 8, 8 * len(content), 5):
        changed = bytearray(content)
        changed[at // 8] ^= 1 << at % 8
        refusal(bytes(changed))


def test_a_png_with_other_pixels_under_an_old_checksum_is_refused(picture):
    content = file_of(picture.resize((16, 12)), "PNG")
    start = content.index(b"IDAT")
    (length,) = struct.unpack(">I", content[start - 4 : start])
    packed = zlib.compress(bytes(12 * (1 + 48)))
    head, rest = content[: start - 4], content[start + 4 + length :]
    assert "checksum" in refusal(head + struct.pack(">I", len(packed)) + b"IDAT" + packed + rest)


def test_a_zeroed_tail_is_refused_where_the_coder_never_writes_zeros(picture):
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra heif is not installed")
    heic = io.BytesIO()
    pillow_heif.from_pillow(picture).save(heic, quality=80)
    files = {"HEIC": heic.getvalue(), "AVIF": file_of(picture, "AVIF")}
    files |= {kind: file_of(picture, kind) for kind in ("JPEG", "PNG", "GIF")}
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        files[compression] = file_of(picture, "TIFF", compression=compression)
    for name, content in files.items():
        tail = len(content) // 4
        assert refusal(content[:-tail] + bytes(tail)), name


def test_flat_pictures_are_not_taken_for_zeroed_ones():
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra heif is not installed")
    for colour in ("black", "white", "#808080"):
        image = Image.new("RGB", (700, 500), colour)
        heic = io.BytesIO()
        pillow_heif.from_pillow(image).save(heic, quality=50)
        files = [file_of(image, kind) for kind in ("JPEG", "PNG", "AVIF", "WEBP", "GIF")]
        assert all(decode(content).notes == () for content in (*files, heic.getvalue()))


def test_a_tiff_packed_by_deflate_is_compared_with_its_checksum(picture):
    content = bytearray(file_of(picture, "TIFF", compression="tiff_adobe_deflate"))
    at = len(content) // 2
    content[at : at + 40] = bytes(40)
    assert "checksum" in refusal(bytes(content))


def test_a_tiff_that_unpacks_to_more_than_its_picture_is_refused():
    packed = zlib.compress(bytes(10_000_000), 9)
    tags = [(256, 64), (257, 64), (258, 8), (259, 8), (262, 1), (273, 8), (277, 1), (278, 64)]
    tags.append((279, len(packed)))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = struct.pack("<2sHI", b"II", 42, 8 + len(packed))
    bomb = head + packed + struct.pack("<H", len(tags)) + entries + bytes(4)
    assert "unpacks to more" in refusal(bomb)


def test_what_a_decoder_warns_of_is_noted(picture):
    exif = Image.Exif()
    exif[0x010E] = "a description that is longer than four bytes"
    content = file_of(picture, "JPEG", exif=exif)
    at = content.index(b"\x01\x0e\x00\x02")
    changed = content[: at + 8] + b"\xff\xff\xff\xf0" + content[at + 12 :]
    (note,) = decode(changed).notes
    assert "may be damaged" in note
