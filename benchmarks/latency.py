"""Times that must stay below their bars; the exit status is 1 if a bar is missed.

    python benchmarks/latency.py

Wall-clock time depends on the machine, so these bars are no tests. Run this on a quiet machine with
two cores. *From a cold start*: a new process, with its files in the cache of the system; the least
of five runs, and the memory of its largest process. The photos are those of caltech20
(GPCACHE_DEV_DATA), five of each class. Updates and a stream have no bar. Writes two sections of
docs/results/speed.md.
"""

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from development_data import folder as shared_folder
from development_data import points, task_of
from measuring import CPU, least, name_of
from numpy.typing import NDArray
from pages import table, text, write_page
from PIL import Image
from scipy.special import softmax
from serving import photo, served

from gpcache import GPCacheClassifier, ImageClassifier
from gpcache.errors import ImageRefusedError
from gpcache.images import decode
from gpcache.images.preprocess import Preprocess
from gpcache.images.workers import DecodePool
from gpcache.support.devices import peak_memory

ASKED, STARTS, STREAM, UPDATE = 60, 5, 10_000, 1_600
# A process takes over the peak of the one that starts it: this one is small.
STARTER = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(time.perf_counter() - start, 1024 * used.ru_maxrss, process.returncode)
"""


def cold_start(*arguments: object) -> tuple[float, float]:
    """The least seconds of `gpcache ...` in a new process, and its largest process in MB."""
    command = [sys.executable, "-m", "gpcache", *map(str, arguments)]
    starter, found = [sys.executable, "-S", "-c", STARTER, *command], []
    for _ in range(STARTS):
        said = subprocess.run(starter, capture_output=True, text=True, check=True).stdout.split()
        if said[2] != "0":
            raise SystemExit(f"{' '.join(command)} ended with {said[2]}.")
        found.append((float(said[0]), int(said[1]) / 1e6))
    seconds, memory = zip(*found, strict=True)
    return min(seconds), max(memory)


def refusing(side: int) -> float:
    """CPU seconds until a picture of too many pixels is refused."""
    decode(photo(0))  # Pillow loads its formats at the first picture
    stream = io.BytesIO()
    Image.new("1", (side, side)).save(stream, "PNG")  # a few kilobytes
    start = time.process_time()
    try:
        decode(stream.getvalue())
    except ImageRefusedError:
        return time.process_time() - start
    raise SystemExit(f"A picture of {side} × {side} pixels was not refused.")


def small_answer(folder: Path) -> float:
    """Seconds of the quickest small answers on one connection.

    A server that waits for the client's acknowledgement of the first half takes 40 ms. The first
    acknowledgements of a connection are quick, so they do not count.
    """
    with served(folder) as server, server.client() as client:
        times = [least(lambda: client.get("/v2/health/live")) for _ in range(ASKED)]
    return min(times[ASKED // 2 :])


def cancelling() -> float:
    """Seconds from cancelling a decode that hangs to the answer of the next one."""
    with DecodePool(Preprocess(size=32), workers=1) as pool:
        pool.submit(photo(0), "first").result()
        # The pool's thread is the parent of the process.
        tasks = Path("/proc/self/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        os.kill(max(children), signal.SIGSTOP)
        hanging = pool.submit(photo(1), "hanging")
        time.sleep(0.2)
        wanted = pool.submit(photo(2), "wanted")
        return least(lambda: (hanging.cancel(), wanted.result()))


def with_bars(place: Path) -> list[tuple[str, float, float]]:
    """What has a bar: commands from a cold start, refusals, a small answer, a cancelled decode."""
    images, model, one = shared_folder("images") / "caltech20", place / "a.gpc", place / "one.png"
    with Image.open(min((images / "test").glob("*/*"))) as picture:
        picture.save(one)
    fitting, _ = cold_start("fit", images / "train", "-o", model, "--shots", 5, "--force")
    asking, memory = cold_start("predict", model, one)
    reasons, _ = cold_start("predict", model, one, "--why")
    return [
        ("`gpcache fit` of 100 photos from a cold start (seconds)", fitting, 5.0),
        ("`gpcache predict` of a photo from a cold start (seconds)", asking, 1.5),
        ("`gpcache predict` of a photo, largest process (MB)", memory, 400),
        ("`gpcache predict --why` of a photo (seconds)", reasons, np.inf),
        ("refuse 88 million pixels (CPU seconds)", refusing(9_400), 0.05),
        ("refuse 144 million pixels (CPU seconds)", refusing(12_000), 0.05),
        ("a small answer on an open connection (seconds)", small_answer(place), 0.03),
        ("the next picture after a cancelled decode (seconds)", cancelling(), 20),
    ]


def changed(model: GPCacheClassifier, row: Any, label: Any, other: Any) -> str:
    """Seconds to add this row of a label, to remove a shot, to give the first shot another label,
    and to remove it, which takes longest: a wrong label moves the model furthest.
    """
    changes = [
        lambda: model.add(row, label),
        lambda: model.remove([1]),
        lambda: model.relabel([0], other),
        lambda: model.remove([0]),
    ]
    return ", ".join(f"{least(change):.3f} s" for change in changes)


def update() -> Iterator[tuple[str, str]]:
    """One shot more, less or relabelled at n = 1,600: seconds, and the distance to a refit."""
    X, y = points(UPDATE + 1, 100, 512, spread=3)
    model = GPCacheClassifier(kernel_space="raw", device="cpu").fit(X[:-1], y[:-1])
    what = "add, remove, relabel one encoded photo, remove that one, at n = 1,600, c = 100"
    yield f"{what}, drawn rows", changed(model, X[-1:], y[-1:], [y[1]])
    real = task_of("caltech101_vitb32")
    default = GPCacheClassifier(device="cpu").fit(real.X, real.y)
    other = real.y[real.y != real.y[0]][:1]
    yield f"{what}, Caltech ViT-B/32", changed(default, real.X_test[:1], real.y_test[:1], other)
    chosen = {name: getattr(model, f"{name}_") for name in ("alpha", "beta", "tau")}
    refit = GPCacheClassifier.from_options(kernel_space="raw", device="cpu", **chosen)
    models, queries = (
        (model, refit.fit(X[2:], y[2:])),
        np.random.default_rng(1).normal(size=(200, 512)),
    )
    found, expected = (softmax(one.logits(queries), axis=1) for one in models)
    yield "largest difference to a refit, in probability", f"{np.abs(found - expected).max():.1e}"


def stream() -> Iterator[tuple[str, str]]:
    """10,000 images that never all exist at once: images a second, and memory on the way."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    marks: list[str] = []

    def images() -> Iterator[NDArray[np.uint8]]:
        for number in range(STREAM):
            pixels[number % 64, number // 64 % 64] = number % 256
            yield pixels.copy()

    def answers() -> None:
        for count, _ in enumerate(model.predict_stream(images()), start=1):
            if count in (STREAM // 10, STREAM):
                marks.append(f"{peak_memory() / 2**20:.0f} MB")

    place = shared_folder("images") / "caltech20" / "train"
    model = ImageClassifier("lite", device="cpu").fit(place, shots=5)
    rate = STREAM / least(answers)
    yield f"predict a stream of {STREAM:,} images of 64 × 64", f"{rate:.0f} images/s"
    yield "peak memory after 10 %, after all of it", ", ".join(marks)


def main() -> None:
    """Print and write the tables."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the first start of five compiles
    with tempfile.TemporaryDirectory() as folder:
        found = with_bars(Path(folder))
    rows = [
        (what, f"{value:.4g}", "–" if bar == np.inf else bar, "yes" if value <= bar else "no")
        for what, value, bar in found
    ]
    about = text("latency", machine=name_of(CPU), starts=STARTS)
    head = ("what", "measured", "bar", "kept")
    write_page("latency", "What people wait for", about, table([head, *rows]))
    further = table([["what", "measured"], *update(), *stream()])
    about = f"{name_of(CPU)}, encoder `lite` already loaded."
    write_page("product", "Speed of the product", about, further, text("updates-speed"))
    sys.exit(any(value > bar for _, value, bar in found))


if __name__ == "__main__":
    main()
