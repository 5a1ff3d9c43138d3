"""Extraction on a local Ray cluster against the usual engine, and with a process killed.

python benchmarks/ray_extraction.py [PHOTOS]
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from development_data import folder
from pages import table

from gpcache import FeatureStore, load_encoder
from gpcache.cluster.extraction import encoded_on_ray
from gpcache.features.extract import Extraction, Stream, extract
from gpcache.features.stream import encoded
from gpcache.images.sources import open_source

SHARD_ROWS = 32
ENCODING = "ray::MapWorker(MapBatches(_Encode)).submit"


def lines(photos: Path, place: Path) -> list[str]:
    """The speeds of both engines and the account of a killed actor, as Markdown."""
    encoder = load_encoder("lite", device="cpu")

    def run(name: str, stream: Stream) -> tuple[Extraction, FeatureStore]:
        source = open_source(photos)
        report = extract(source, place / name, encoder, stream=stream, shard_rows=SHARD_ROWS)
        return report, FeatureStore.open(place / name)

    local, expected = run("local", encoded)
    undisturbed, _ = run("ray", encoded_on_ray)
    killed: list[int] = []
    watcher = threading.Thread(target=kill_an_encoder, args=(place / "killed", killed), daemon=True)
    watcher.start()
    disturbed, found = run("killed", encoded_on_ray)
    again, _ = run("killed", encoded_on_ray)
    names = ["this machine's processes", "Ray", "Ray, an encoding actor killed by `kill -9`"]
    reports = [local, undisturbed, disturbed]
    speeds = [
        [name, report.encoded, f"{report.seconds:.1f}", f"{report.encoded / report.seconds:.1f}"]
        for name, report in zip(names, reports, strict=True)
    ]
    rows = sum(shard.rows for shard in found.manifest.shards)
    difference = np.abs(found.read().features - expected.read().features).max()
    return [
        f"The same photos through `lite` on {os.cpu_count()} cores, in one run of the command; "
        "Ray's times hold the start and the end of its local cluster and the loading of the "
        "encoder by its actors.",
        "",
        *table([["engine", "images", "seconds", "images/s"], *speeds]).splitlines(),
        "",
        f"{len(killed)} actor was killed after the first shard. The store then holds {rows:,} rows "
        f"of {len(found):,} images, and the usual engine's has {len(expected):,}; their lists of "
        f"images are {'equal' if found.items() == expected.items() else 'NOT equal'} and their "
        f"features differ by {difference:.0e} at most. A further run encoded {again.encoded}.",
    ]


def kill_an_encoder(store: Path, killed: list[int]) -> None:
    """Kill an actor of this process's cluster that encodes, once the store has a shard."""
    while not killed:
        started = any((store / "shards").glob("*.safetensors"))
        for pid in descendants(os.getpid()) if started else []:
            if title(pid).startswith(ENCODING):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                break
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has just ended
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def title(pid: int) -> str:
    """What a process calls itself; Ray's actors say what they are at."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:  # it is gone
        return ""


def main() -> None:
    """Print the lines for the unlabelled photos, or for a folder that is given."""
    photos = Path(sys.argv[1]) if len(sys.argv) > 1 else folder("images") / "unlabelled"
    with tempfile.TemporaryDirectory() as place:
        print("\n".join(lines(photos, Path(place))))


if __name__ == "__main__":
    main()
