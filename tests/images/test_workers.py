"""The pool of decoding processes: real processes, killed, starved and timed out."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpcache import DataError, ImageRefusedError
from gpcache.images import Preprocess
from gpcache.images.augment import Views
from gpcache.images.worker import MEMORY_LIMIT
from gpcache.images.workers import DecodePool, prepare, small_picture

SMALL = Preprocess(size=32)
REFUSED = ("empty.jpg", "cut_in_half.jpg", "bomb_88.png", "text.png")


@pytest.fixture(scope="session")
def large(hostile):
    """An image at the limit of pixels: it takes a good part of a second."""
    return (hostile.folder / "largest.png").read_bytes()


@pytest.fixture
def small(hostile):
    return (hostile.folder / "photo.webp").read_bytes()


def waited(condition, seconds=300):
    """Whether the condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("views", [None, Views(count=3, seed=5)])
def test_the_same_pixels_and_notes_as_in_this_process(views, hostile, children):
    contents = {
        name: (hostile.folder / name).read_bytes()
        for name in hostile.module.ACCEPTED
        if name != "largest.png"
    }
    keys = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    with DecodePool(SMALL, views, workers=2) as pool:
        futures = {name: pool.submit(contents[name], keys[name]) for name in contents}
        again = {name: pool.submit(contents[name], keys[name]) for name in reversed(contents)}
    for name, content in contents.items():
        expected = prepare(content, SMALL, views, keys[name])
        for result in (futures[name].result(), again[name].result()):
            assert np.array_equal(result.pixels, expected.pixels), name
            assert result.notes == expected.notes, name
        result.pixels[:] = 0  # the caller may write to them
    assert children() == []


def test_refusals_carry_the_reason_and_the_rest_goes_on(hostile, small):
    contents = [(hostile.folder / name).read_bytes() for name in REFUSED]
    with DecodePool(SMALL, workers=1) as pool:
        futures = [pool.submit(content, "key") for content in contents]
        good = pool.submit(small, "key")
    for content, future in zip(contents, futures, strict=True):
        with pytest.raises(ImageRefusedError) as expected:
            prepare(content, SMALL, None, "key")
        assert future.exception().reason == expected.value.reason
    assert good.result().pixels.shape == (1, 32, 32, 3)


def test_too_slow_is_refused_and_the_rest_goes_on(small, children):
    """A stopped process stands for a decoder that never ends."""
    with DecodePool(SMALL, workers=1, time_limit=1.5) as pool:
        assert pool.submit(small, "key").result().notes == ()
        (slow,) = children()
        os.kill(slow, signal.SIGSTOP)
        with pytest.raises(ImageRefusedError, match=r"longer than 1\.5 s"):
            pool.submit(small, "key").result()
        assert pool.submit(small, "key").result().notes == ()
        assert len(children()) == 1
        assert slow not in children()


def test_a_limit_that_nothing_meets(small):
    with DecodePool(SMALL, workers=2, time_limit=1e-5) as pool:
        futures = [pool.submit(small, str(number)) for number in range(4)]
    for future in futures:
        assert future.exception().reason == "decoding took longer than 1e-05 s"


def test_a_killed_worker_costs_its_image_alone(small, children):
    """One is stopped, so that it holds an image when it is killed."""
    with DecodePool(SMALL, workers=2) as pool:
        first = []
        assert waited(lambda: first.append(pool.submit(small, "key")) or len(children()) == 2)
        assert all(future.result().pixels.any() for future in first)
        victim, other = children()
        os.kill(victim, signal.SIGSTOP)
        futures = [pool.submit(small, str(number)) for number in range(6)]
        assert waited(lambda: sum(future.done() for future in futures) == 5)
        os.kill(victim, signal.SIGKILL)
        errors = [future.exception() for future in futures]
        assert sorted(map(str, errors)) == [
            *["None"] * 5,
            "The image was refused: the decoder crashed.",
        ]
        assert waited(lambda: pool.submit(small, "key").result() and len(children()) == 2)
        assert other in children()
        assert victim not in children()


def test_one_killed_while_idle_costs_no_image(small, children):
    with DecodePool(SMALL, workers=1) as pool:
        pool.submit(small, "key").result()
        (idle,) = children()
        os.kill(idle, signal.SIGKILL)
        assert waited(lambda: children() == [])
        assert pool.submit(small, "key").result().pixels.any()


def largest(kind, mode, **options):
    """A file of 50 million pixels in this format and mode."""

    def encode(corpus):
        colour = {"RGBA": (9, 8, 7, 99), "LA": (9, 99), "I;16": 3000}.get(mode, 3)
        image = Image.new(mode, (8192, 6100), colour)
        exif = Image.Exif()
        exif[0x0112] = 6
        turned = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP") else {}
        return corpus.encoded(image, kind, **turned, **options)

    return pytest.param(encode, id=f"{kind}-{mode}")


@pytest.mark.parametrize(
    "encode",
    [
        largest("JPEG", "CMYK", progressive=True),
        largest("PNG", "RGBA", compress_level=1),
        largest("PNG", "I;16", compress_level=1),
        largest("WEBP", "RGBA", lossless=True, method=0),
        largest("TIFF", "I", compression="tiff_lzw"),
        largest("GIF", "P"),
        largest("AVIF", "RGBA", speed=10),
    ],
)
def test_the_largest_image_of_every_mode_fits(encode, hostile):
    with DecodePool(SMALL, Views(count=2), workers=1, time_limit=120) as pool:
        assert pool.submit(encode(hostile.module), "key").result().pixels.shape[0] == 2


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="needs Linux")
def test_memory_is_limited(small, children, measured, hostile):
    """The workers' own limit stands; and a limit that an image breaks makes it a refusal."""
    with DecodePool(SMALL, workers=1) as pool:
        pool.submit(small, "key").result()
        limits = Path(f"/proc/{children()[0]}/limits").read_text()
    (space,) = [line.split()[3] for line in limits.splitlines() if "address space" in line]
    assert MEMORY_LIMIT < int(space) < MEMORY_LIMIT + 2**30
    script = """
import json, sys
from gpcache.errors import ImageRefusedError
from gpcache.images import Preprocess
from gpcache.images.worker import limit_memory, prepare
limit_memory(150_000_000)
try:
    prepare(sys.argv[1], Preprocess(), None, "key")
except ImageRefusedError as error:
    prepared = prepare(sys.argv[2], Preprocess(), None, "key")
    print(json.dumps([error.reason, prepared.pixels.shape]))
"""
    reason, shape = measured(script, hostile.folder / "largest.png", hostile.folder / "photo.webp")
    assert "memory" in reason
    assert shape == [1, 224, 224, 3]


SCRIPT = """
import sys, time
from gpcache.images import Preprocess
from gpcache.images.workers import DecodePool
pool = DecodePool(Preprocess(), workers=2)
content = open(sys.argv[1], "rb").read()
shapes = [pool.submit(content, "key").result().pixels.shape for _ in range(4)]
futures = [pool.submit(content, "key") for _ in range(4)]
print(shapes[0], flush=True)
if len(sys.argv) > 2:
    time.sleep(60)
"""


def test_a_script_without_a_guard_and_without_closing(hostile, tmp_path):
    """It runs in a folder whose files have the names of modules: none of them is imported."""
    for name in ("numpy", "json", "struct", "PIL"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    command = [sys.executable, script, hostile.folder / "photo.webp"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1, 224, 224, 3)\n", "")


def test_workers_die_with_a_killed_parent(hostile, children):
    command = [sys.executable, "-c", SCRIPT, hostile.folder / "photo.webp", "stay"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    parent.stdout.readline()
    workers = children(parent.pid)
    assert workers
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert waited(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def test_an_exception_inside_the_block_drops_what_is_queued(large, children):
    futures = []

    def interrupted():
        with pool:
            futures.extend(pool.submit(large, "key") for _ in range(3))
            raise KeyError

    pool = DecodePool(SMALL, workers=1)
    with pytest.raises(KeyError):
        interrupted()
    assert futures[-1].cancelled()
    assert children() == []
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(large, "key")


def test_bad_options():
    with pytest.raises(DataError, match="workers"):
        DecodePool(SMALL, workers=0)
    with pytest.raises(DataError, match="time_limit"):
        DecodePool(SMALL, time_limit=0)


def test_a_thumbnail_comes_from_the_same_decode(hostile):
    content = (hostile.folder / "photo.webp").read_bytes()
    with DecodePool(SMALL, workers=1) as pool:
        with_one = pool.submit(content, "key", thumbnail=160).result()
        without = pool.submit(content, "key").result()
    assert with_one.thumbnail == prepare(content, SMALL, None, "key", thumbnail=160).thumbnail
    assert without.thumbnail == b""
    assert np.array_equal(with_one.pixels, without.pixels)


def test_cancelling_stops_a_decode_and_makes_room(small, children):
    """A stopped process stands for a decoder that takes very long."""
    with DecodePool(SMALL, workers=1, time_limit=3_600) as pool:
        pool.submit(small, "key").result()
        (slow,) = children()
        os.kill(slow, signal.SIGSTOP)
        running = pool.submit(small, "key")
        time.sleep(0.2)
        for _ in range(10):  # more than may be queued at once
            assert pool.submit(small, "key").cancel()
        wanted = pool.submit(small, "key")
        assert running.cancel()
        assert wanted.result(timeout=600).pixels.any()
        assert slow not in children()


def test_single_pictures_are_decoded_in_a_limited_process(tmp_path):
    """Six small files that unpack to 150 MB each: the caller's own memory does not grow by them."""
    script = """
import io, resource, sys
from PIL import Image
from gpcache.images.workers import small_picture
content = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert all(small_picture(content).startswith(b"\\xff\\xd8") for _ in range(6))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    path = tmp_path / "large.webp"
    Image.new("RGB", (8000, 6000)).save(path, lossless=True)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 30_000  # KiB
    with pytest.raises(ImageRefusedError):
        small_picture(b"no image")
