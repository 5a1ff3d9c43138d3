"""`lite` and `lite0`: images a second on the CPU, and megabytes.

python benchmarks/encoder_speed.py
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from extraction import BATCH, noise
from measuring import least
from pages import table, write_page

from gpcache import load_encoder
from gpcache.encoders.efficientnet import load_network, weights_file
from gpcache.encoders.lite import LiteEncoder

WANTED, LEAST = 10, 3
PATIENCE = 20 * 60  # seconds
# A batch counts where other processes took less than this share of the cores meanwhile.
QUIET = 0.05
SHOWN = {"lite0": "`lite0` (Lite0, 224 px)", "lite": "`lite` (Lite2, 260 px)"}
# The wheels on the package index, in megabytes.
WHEELS = {"lite0": 17.4, "lite": 22.7}


def cpu_seconds() -> tuple[float, float]:
    """What the cores have spent on any process, or were denied by the host; and on this one."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    own = os.times()
    return (sum(fields) - sum(fields[3:5])) / os.sysconf("SC_CLK_TCK"), own.user + own.system


def timed(work: Callable[[], object]) -> tuple[float, bool]:
    """Seconds of some work, and whether the machine was quiet meanwhile."""
    everyone, own = cpu_seconds()
    seconds = least(work)
    later, own_later = cpu_seconds()
    others = (later - everyone) - (own_later - own)
    return seconds, others < QUIET * seconds * (os.cpu_count() or 1)


def tasks(encoder: LiteEncoder) -> dict[str, Callable[[], object]]:
    """One batch through the whole encoder, and through its image network in eager torch."""
    pixels = noise(encoder)
    images = encoder.preprocess.normalised(torch.from_numpy(pixels)).contiguous()
    network = load_network(encoder.recipe)

    def eager() -> None:
        with torch.inference_mode():
            network.extract_features(images)

    return {encoder.name: lambda: encoder.encode_pixels(pixels), f"{encoder.name}, eager": eager}


def quiet_rates(works: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Images a second of the batches at quiet moments, task by task in turn."""
    for work in works.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    end = time.monotonic() + PATIENCE
    while min(map(len, found.values())) < WANTED and time.monotonic() < end:
        # A look before each batch: on a busy machine most of the time goes by asleep.
        if not timed(lambda: time.sleep(0.3))[1]:
            time.sleep(1)
            continue
        name = min(found, key=lambda name: len(found[name]))
        seconds, quiet = timed(works[name])
        found[name] += [BATCH / seconds] if quiet else []
    return found


def main() -> None:
    """Measure and write the page."""
    encoders = [load_encoder(name, device="cpu") for name in SHOWN]
    works = {name: work for encoder in encoders for name, work in tasks(encoder).items()}
    found = quiet_rates(works)
    if min(map(len, found.values())) < LEAST:
        sys.exit("The machine was hardly ever quiet: run it again when nothing else runs.")
    figures = [
        (
            float(np.median(found[one.name])),
            max(found[one.name]),
            float(np.median(found[f"{one.name}, eager"])),
            WHEELS[one.name],
            weights_file(one.recipe).stat().st_size / 1e6,
        )
        for one in encoders
    ]
    columns = list(zip(*figures, strict=True))
    # Side by side, the times of an image add up, and so do the files.
    together = [1 / sum(1 / rate for rate in column) for column in columns[:3]]
    figures.append((*together, sum(columns[3]), sum(columns[4])))
    head = ["encoder", "images a second", "best batch", "eager torch", "wheel, MB", "weights, MB"]
    rows = [
        [name, *(f"{rate:.0f}" for rate in row[:3]), *(f"{size:.1f}" for size in row[3:])]
        for name, row in zip([*SHOWN.values(), "both side by side"], figures, strict=True)
    ]
    counts = ", ".join(f"{len(rates)} ({name})" for name, rates in found.items())
    write_page(
        "encoder-speed",
        "The encoder `lite`: images a second and megabytes",
        f"Preprocessed pixels to vectors, without decoding, in batches of {BATCH} on "
        f"{torch.get_num_threads()} threads of {os.cpu_count()} cores: the median of the batches "
        f"during which other processes took less than {QUIET:.0%} of the cores. Such batches: "
        f"{counts}. The bar for `lite` is 70 images a second. *eager torch* is the image network "
        "alone, as its package runs it. The sentence encoder, which both share, is a wheel of 83.5 "
        "MB more.",
        table([head, *rows]),
    )


if __name__ == "__main__":
    main()
