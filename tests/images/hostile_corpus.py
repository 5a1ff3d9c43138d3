"""Writes the hostile corpus: files and tar shards that are broken, huge, odd or malicious.

Run `python tests/images/hostile_corpus.py FOLDER`. Nothing in it is larger than a few megabytes.
"""

import gzip
import io
import struct
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, TiffImagePlugin

# File → a part of the reason for which it is refused.
REFUSED = {
    "cut_in_half.jpg": "truncated",
    "last_two_bytes_missing.jpg": "truncated",
    "cut_in_half.png": "truncated",
    "flipped_byte.png": "checksum differs",
    "cut_in_half.gif": "truncated",
    "cut_in_half.webp": "truncated",
    "cut_in_half.avif": "truncated",
    "cut_in_half.tif": "truncated",
    "cut_in_half.bmp": "truncated",
    "bomb_88.png": "more than 50 million pixels",
    "bomb_144.png": "more than 50 million pixels",
    "bomb_400.png": "more than 50 million pixels",
    "bomb_88.gif": "more than 50 million pixels",
    "bomb_88.tif": "more than 50 million pixels",
    "bomb_88.bmp": "more than 50 million pixels",
    "long_side.png": "longer than 16,384",
    "text_bomb.png": "cannot be decoded",
    "profile_bomb.png": "cannot be decoded",
    "postscript.jpg": "not an image",
    "vector.svg": "not an image",
    "page.html": "not an image",
    "page.jpg": "not an image",
    "text.png": "not an image",
    "archive.jpg": "not an image",
    "empty.jpg": "empty",
    "twenty_bytes.jpg": "truncated",
    "twenty_bytes.png": "truncated",
    "photoshop.png": "not an image",
    "bitmap_list.png": "not an image",
    "float.tif": "floating-point",
    "beyond_sixteen_bits.tif": "beyond 16 bits",
    "white_is_zero.tif": "zero as white",
    "no_pixels.png": "not an image|cannot be decoded|no pixels",
    "sparse_21_mb.jpg": "larger than 20 MB",
}

# File → the size that it decodes to, and parts of its notes.
ACCEPTED = {
    "one_pixel.png": ((1, 1), ["too small"]),
    "line.png": ((1, 5000), ["too small"]),
    "cmyk.jpg": ((90, 60), []),
    "adobe_cmyk.tif": ((90, 60), []),
    "progressive.jpg": ((90, 60), []),
    "grey16.png": ((90, 60), []),
    "grey16.tif": ((90, 60), []),
    "grey16_big_endian.tif": ((90, 60), []),
    "grey32.tif": ((90, 60), []),
    "colour16.png": ((90, 60), []),
    "invisible.png": ((90, 60), []),
    "invisible_palette.png": ((90, 60), []),
    "invisible_grey.png": ((90, 60), []),
    "invisible.webp": ((90, 60), []),
    "keyed.png": ((90, 60), []),
    "one_bit.png": ((90, 60), []),
    "lab.tif": ((90, 60), []),
    "ycbcr.tif": ((90, 60), []),
    "animated.gif": ((90, 60), ["first frame"]),
    "animated.webp": ((90, 60), ["first frame"]),
    "animated.png": ((90, 60), ["first frame"]),
    "animated.avif": ((90, 60), ["first frame"]),
    "pages.tif": ((90, 60), ["first page"]),
    "turned.jpg": ((60, 90), []),
    "turned.png": ((60, 90), []),
    "turned.webp": ((60, 90), []),
    "turned.tif": ((60, 90), []),
    "damaged_exif.jpg": ((90, 60), []),
    "photo.avif": ((90, 60), []),
    "photo.webp": ((90, 60), []),
    "photo.bmp": ((90, 60), []),
    "photo_with_zip.jpg": ((90, 60), []),
    "flipped_byte.jpg": ((90, 60), []),
    "named_wrongly.png": ((90, 60), []),
    "largest.png": ((8192, 6100), []),
}


def photo():
    """A smooth colour image, 90 × 60."""
    y, x = np.mgrid[:60, :90]
    return Image.fromarray(np.stack([x * 2, y * 4, 255 - x * 2], -1).astype(np.uint8))


def encoded(image, kind, **options):
    """The bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, content):
    """A chunk of a PNG file."""
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def png(width, height, *chunks, bits=1, colour=0):
    """A PNG of zeros, squeezed as it is written: a bomb is a few kilobytes."""
    squeeze = zlib.compressobj(9)
    row = bytes(1 + (width * bits + 7) // 8)
    data = b"".join(squeeze.compress(row) for _ in range(height)) + squeeze.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", data), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(array, photometric=1, kind=1):
    """A grey TIFF of the array's own byte order and width, which Pillow cannot write."""
    order = "MM" if array.dtype.byteorder == ">" else "II"
    mark = ">" if order == "MM" else "<"
    height, width = array.shape
    data = array.tobytes()
    tags = [
        (256, width),
        (257, height),
        (258, array.itemsize * 8),
        (259, 1),
        (262, photometric),
        (273, 8),
        (277, 1),
        (278, height),
        (279, len(data)),
        (339, kind),
    ]
    entries = b"".join(struct.pack(mark + "HHII", tag, 4, 1, value) for tag, value in tags)
    start = struct.pack(mark + "2sHI", order.encode(), 42, 8 + len(data))
    return start + data + struct.pack(mark + "H", len(tags)) + entries + bytes(4)


def broken(image):
    """Files that end too early, or hold a wrong byte."""
    jpeg, plain = encoded(image, "JPEG", quality=90), encoded(image, "PNG")
    files = {
        "cut_in_half.jpg": jpeg[: len(jpeg) // 2],
        "last_two_bytes_missing.jpg": jpeg[:-2],
        "cut_in_half.png": plain[: len(plain) // 2],
        "twenty_bytes.jpg": jpeg[:20],
        "twenty_bytes.png": plain[:20],
        "empty.jpg": b"",
    }
    for kind, suffix in (("GIF", "gif"), ("WEBP", "webp"), ("AVIF", "avif"), ("BMP", "bmp")):
        content = encoded(image, kind)
        files[f"cut_in_half.{suffix}"] = content[: len(content) // 2]
    content = encoded(image, "TIFF", compression="tiff_lzw")
    files["cut_in_half.tif"] = content[: len(content) // 2]
    for name, content, at in (("flipped_byte.png", plain, 0.5), ("flipped_byte.jpg", jpeg, 0.7)):
        changed = bytearray(content)
        changed[int(len(changed) * at)] ^= 0x10
        files[name] = bytes(changed)
    return files


def bombs():
    """Small files that unpack to hundreds of megabytes."""
    text = b"Comment\0\0" + zlib.compress(bytes(50_000_000), 9)
    profile = b"icc\0\0" + zlib.compress(bytes(50_000_000), 9)
    gif = bytearray(encoded(Image.new("P", (10, 10)), "GIF"))
    gif[6:10] = struct.pack("<HH", 11000, 8000)
    bmp = bytearray(encoded(Image.new("1", (16, 16)), "BMP"))
    bmp[18:26] = struct.pack("<ii", 11000, 8000)
    tif = TiffImagePlugin.ImageFileDirectory_v2()
    squeezed = encoded(Image.new("1", (11000, 8000)), "TIFF", compression="group4", tiffinfo=tif)
    return {
        "bomb_88.png": png(11000, 8000),
        "bomb_144.png": png(12000, 12000),
        "bomb_400.png": png(20000, 20000),
        "bomb_88.gif": bytes(gif),
        "bomb_88.bmp": bytes(bmp),
        "bomb_88.tif": squeezed,
        "long_side.png": png(20000, 40),
        "text_bomb.png": png(64, 64, chunk(b"zTXt", text)),
        "profile_bomb.png": png(64, 64, chunk(b"iCCP", profile)),
        "largest.png": png(8192, 6100),
        "no_pixels.png": png(0, 10),
    }


def no_images():
    """Other things under the name of an image."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("a.txt", "text")
    page = b"<!doctype html><script>alert(1)</script>"
    return {
        "postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nquit\n",
        "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "page.html": page,
        "page.jpg": page,
        "text.png": b"just text " * 9,
        "archive.jpg": archive.getvalue(),
        "photoshop.png": b"8BPS" + bytes(60),
        "bitmap_list.png": encoded(photo(), "PPM"),
        "photo_with_zip.jpg": encoded(photo(), "JPEG") + archive.getvalue(),
    }


def modes(image):
    """Every way to store colour, grey and transparency."""
    grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
    clear = image.copy()
    clear.putalpha(0)
    palette = image.quantize(16)
    high = np.repeat(np.asarray(image), 2, axis=2)  # every byte twice: 16 bits, big-endian
    rows = b"".join(b"\0" + row.tobytes() for row in high)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 90, 60, 16, 2, 0, 0, 0))
    keyed = Image.new("L", (90, 60), 7)
    return {
        "one_pixel.png": encoded(image.resize((1, 1)), "PNG"),
        "line.png": encoded(image.resize((1, 5000)), "PNG"),
        "cmyk.jpg": encoded(image.convert("CMYK"), "JPEG", quality=95),
        "adobe_cmyk.tif": encoded(image.convert("CMYK"), "TIFF"),
        "progressive.jpg": encoded(image, "JPEG", progressive=True, quality=95),
        "grey16.png": encoded(Image.fromarray(grey), "PNG"),
        "grey16.tif": tiff(grey.astype("<u2")),
        "grey16_big_endian.tif": tiff(grey.astype(">u2")),
        "grey32.tif": tiff(grey.astype("<i4"), kind=2),
        "beyond_sixteen_bits.tif": tiff(grey.astype("<i4") * 9, kind=2),
        "white_is_zero.tif": tiff(grey.astype("<u2"), photometric=0),
        "float.tif": tiff(grey.astype("<f4"), kind=3),
        "colour16.png": b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b""),
        "invisible.png": encoded(clear, "PNG"),
        "invisible_palette.png": encoded(palette, "PNG", transparency=bytes(16)),
        "invisible_grey.png": encoded(clear.convert("LA"), "PNG"),
        "invisible.webp": encoded(clear, "WEBP", lossless=True, exact=True),
        "keyed.png": encoded(keyed, "PNG", transparency=7),
        "one_bit.png": encoded(image.convert("1"), "PNG"),
        "lab.tif": encoded(Image.new("LAB", (90, 60), (128, 128, 128)), "TIFF"),
        "ycbcr.tif": encoded(image.convert("YCbCr"), "TIFF"),
        "named_wrongly.png": encoded(image, "JPEG", quality=95),
    }


def kinds(image):
    """Sound files of every format, animated, of several pages, and turned."""
    others = [image.transpose(Image.Transpose.ROTATE_180)] * 9
    several = {"save_all": True, "append_images": others}
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg = encoded(image, "JPEG", quality=95, exif=exif)
    return {
        "photo.avif": encoded(image, "AVIF", quality=95),
        "photo.webp": encoded(image, "WEBP", quality=95),
        "photo.bmp": encoded(image, "BMP"),
        "animated.gif": encoded(image, "GIF", **several),
        "animated.webp": encoded(image, "WEBP", **several),
        "animated.png": encoded(image, "PNG", **several),
        "animated.avif": encoded(image, "AVIF", **several),
        "pages.tif": encoded(image, "TIFF", **several),
        "turned.jpg": jpeg,
        "turned.png": encoded(image, "PNG", exif=exif),
        "turned.webp": encoded(image, "WEBP", lossless=True, exif=exif),
        "turned.tif": encoded(image, "TIFF", exif=exif),
        "damaged_exif.jpg": jpeg.replace(b"Exif\0\0MM\0*", b"Exif\0\0XX\0*"),
    }


def write_images(folder):
    """Write every image case into a folder."""
    image = photo()
    cases = broken(image) | bombs() | no_images() | modes(image) | kinds(image)
    for name, content in cases.items():
        (folder / name).write_bytes(content)
    with (folder / "sparse_21_mb.jpg").open("wb") as file:
        file.truncate(21_000_000)


def member(name, kind=tarfile.REGTYPE, size=0, **fields):
    """The header of a member of a tar."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar(*members, kind=tarfile.PAX_FORMAT, end=True):
    """A tar of (header, content); the headers may lie about the sizes."""
    parts = []
    for info, content in members:
        info.size = info.size or len(content)
        parts += [info.tobuf(kind), content, bytes(-len(content) % 512)]
    return b"".join(parts) + (bytes(1024) if end else b"")


def write_shards(folder):
    """Write every tar case into a folder; each holds the sound image "good", where it can."""
    jpeg = encoded(photo(), "JPEG")
    first = (member("first.jpg"), jpeg)
    good = [(member("good.jpg"), jpeg), (member("good.cls"), b"cat")]
    bad = {
        "parent": member("../evil.jpg"),
        "deep_parent": member("a/../../evil.jpg"),
        "absolute": member("/tmp/evil.jpg"),
        "no_image": member("evil.mp4"),
    }
    special = {
        "symlink": member("evil.jpg", tarfile.SYMTYPE, linkname="/etc/passwd"),
        "hardlink": member("evil.jpg", tarfile.LNKTYPE, linkname="../../etc/passwd"),
        "link_to_parent": member("evil", tarfile.SYMTYPE, linkname=".."),
        "character_device": member("evil.jpg", tarfile.CHRTYPE, devmajor=1, devminor=5),
        "block_device": member("evil.jpg", tarfile.BLKTYPE, devmajor=8),
        "fifo": member("evil.jpg", tarfile.FIFOTYPE),
    }
    shards = {name: tar((info, jpeg), *good) for name, info in bad.items()}
    shards |= {name: tar((info, b""), *good) for name, info in special.items()}
    whole = tar(first, *good)
    second = (member("other.jpg"), jpeg)
    huge = 2**31
    shards |= {
        "folders": tar((member("a", tarfile.DIRTYPE), b""), *good),
        "through_link": tar((special["link_to_parent"], b""), (member("evil/x.jpg"), jpeg), *good),
        "duplicate_member": tar((member("evil.jpg"), jpeg), (member("evil.jpg"), jpeg), *good),
        "duplicate_key": tar((member("evil.jpg"), jpeg), *good, (member("evil.jpg"), jpeg)),
        "two_images": tar((member("evil.jpg"), jpeg), (member("evil.png"), jpeg), *good),
        "too_large": tar((member("evil.jpg"), bytes(21_000_000)), *good),
        "large_label": tar(
            (member("evil.cls"), bytes(2_000_000)), (member("evil.jpg"), jpeg), *good
        ),
        "bad_label": tar((member("evil.cls"), b"\xff\xfe"), (member("evil.jpg"), jpeg), *good),
        "bad_json": tar((member("evil.json"), b"[" * 99999), (member("evil.jpg"), jpeg), *good),
        "no_utf8_name": tar((member("evil\udcff.jpg"), jpeg), *good, kind=tarfile.GNU_FORMAT),
        "cut_in_member": tar(first, *good, second)[: len(whole) + 200],
        "cut_in_header": tar(first, *good, second)[: len(whole) - 1024 + 100],
        "no_end_mark": tar(first, *good, end=False),
        "garbage_header": tar(first, *good, end=False) + b"\x07" * 512 + whole,
        "not_a_tar": b"this is text " * 99,
        "empty": b"",
        "lying_size": tar(first, *good, (member("evil.jpg", size=huge), jpeg)),
        "negative_size": tar(
            first, *good, (member("evil.jpg", size=-512), b""), kind=tarfile.GNU_FORMAT
        ),
        "name_bomb": gzip.compress(
            tar(first, *good, end=False) + member("x", tarfile.GNUTYPE_LONGNAME, huge).tobuf()
        ),
        "gzip_bomb": gzip.compress(tar(first, *good, (member("evil.jpg"), bytes(30_000_000)))),
        "cut_gzip": gzip.compress(tar(first, *good, second), mtime=0)[:-60],
        "sparse": tar((member("evil.jpg", tarfile.GNUTYPE_SPARSE), jpeg), *good),
    }
    for name, content in shards.items():
        (folder / f"{name}.tar").write_bytes(content)
    return sorted(shards)


if __name__ == "__main__":
    for part, write in (("images", write_images), ("shards", write_shards)):
        target = Path(sys.argv[1], part)
        target.mkdir(parents=True, exist_ok=True)
        write(target)
