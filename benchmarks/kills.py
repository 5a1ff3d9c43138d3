"""Kills an extraction at random moments, many times: is the store ever corrupt, is work lost?

    python benchmarks/kills.py [KILLS]

Photos go through `lite` in shards of 32 rows. After each kill -9 every file is verified.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from development_data import folder
from pages import table, write_page

from gpcache import FeatureStore, load_encoder
from gpcache.errors import StoreError

SHARD_ROWS = 32
HEAD = ["kills", "corrupt stores", "rows lost that were there before", "stores completed"]
PROGRAM = f"""
import sys
from gpcache import load_encoder
from gpcache.features.extract import extract
from gpcache.images.sources import open_source
source, encoder = open_source(sys.argv[1]), load_encoder("lite", device="cpu")
print("start", flush=True)
extract(source, sys.argv[2], encoder, shard_rows={SHARD_ROWS})
print("end", flush=True)
"""


def killed_at(seconds: float, program: str, *arguments: Path) -> bool:
    """Kill a program some seconds after its first line; False if it ended before."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        if process.poll() is not None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
    return True


def main() -> None:
    """Extract, kill, verify, and start again with an empty store whenever one is complete."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    photos = folder("images") / "unlabelled"
    total = len(list(photos.iterdir()))
    moments = random.Random(0)
    corrupt = lost = rounds = full = done = before = 0
    with tempfile.TemporaryDirectory() as place:
        store = Path(place) / "0"
        while done < kills:
            ended = not killed_at(moments.uniform(0, 3.0), PROGRAM, photos, store)
            done, rounds = done + (not ended), rounds + 1
            try:
                opened = FeatureStore.open(store)
                corrupt += bool(opened.damaged())
                rows = len(opened)
            except StoreError:
                # Killed before the manifest was there: an empty store, not a corrupt one.
                corrupt += (store / "store.json").exists()
                rows = 0
            lost += rows < before
            before = rows
            if ended:
                full += rows == total
                check(store, photos)
                store, before = Path(place) / str(rounds), 0
    write_page(
        "kills",
        "Killed while extracting",
        f"{total} photos through `lite` in shards of {SHARD_ROWS}; `kill -9` of the whole process "
        "group at a uniformly random moment of the first three seconds after loading, then the "
        "next run continues in the same store. Every file is checked against its SHA-256 after "
        "each kill. When a store is complete, every photo must be there once, with the "
        "features of an undisturbed run.",
        table([HEAD, [done, corrupt, lost, full]]),
    )


def check(store: Path, photos: Path) -> None:
    """A complete store holds every photo once, with the encoder's own features."""
    rows = FeatureStore.open(store).read()
    names = sorted(path.name for path in photos.iterdir())
    assert rows.paths == names
    some = rows.paths[:: max(1, len(names) // 16)]
    direct = load_encoder("lite", device="cpu").encode_images([photos / name for name in some])
    stored = rows.features[:: max(1, len(names) // 16)]
    assert float(np.abs(direct - stored).max()) < 1e-4


if __name__ == "__main__":
    main()
