"""Extraction, fitting and serving on three Ray nodes, beside one process.

`python benchmarks/ray_cluster.py [PHOTOS]` takes some minutes. PHOTOS is a folder of photos;
without it drawings are made. The nodes share this machine, so nothing can become faster. What
happens if nodes are killed is tested in tests/cluster/test_three_nodes.py.
"""

import os
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from million_keys import make
from pages import table, text, write_page
from serving import answered, served

from gpcache import FeatureStore, GPCacheClassifier, load_encoder
from gpcache.cluster.connection import connected
from gpcache.cluster.extraction import encoded_on_ray
from gpcache.cluster.fitting import rows_on_ray
from gpcache.features.extract import extract
from gpcache.features.stream import encoded
from gpcache.images.drawn import draw_pictures
from gpcache.images.sources import open_source

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "cluster"))
from ray_nodes import three_nodes

CLASSES, EACH = ("sea", "wood"), 500  # of drawings
KEYS, KEY_CLASSES = 20_000, 100
REPLICAS, AT_ONCE, SECONDS = 3, 16, 10.0
QUIET = 0.5  # processes that want a core, at most
WAYS = ("one process", "three nodes")
OWN = "Each worker has its own network namespace; the head has that of the machine."
SHARED = "All have the address of the machine, with their own ports (no network namespaces here)."


def compared(seconds: list[float]) -> str:
    """A line for each way: its name, its seconds, and how often it takes those of one process."""
    pairs = zip(WAYS, seconds, strict=True)
    rows = ([name, f"{one:.1f}", f"{one / seconds[0]:.1f}"] for name, one in pairs)
    return table([["", "seconds", "ratio"], *rows])


def fitting(place: Path) -> str:
    """A fit with all choices on rows of a mapped file."""
    made = make(place, KEYS, KEY_CLASSES, torch.device("cpu"))
    seconds, answers, passes = [], [], 0
    for source in (nullcontext(made.rows), rows_on_ray(made.rows)):
        start = time.perf_counter()
        with source as given:
            model = GPCacheClassifier(device="cpu").fit(given, made.labels)
            passes = getattr(given, "passes", 0)
        seconds.append(time.perf_counter() - start)
        answers.append(model.predict_proba(made.queries))
    gap = np.abs(answers[1] - answers[0]).max()
    about = text("scale-fitting", keys=KEYS, classes=KEY_CLASSES, passes=passes, gap=gap)
    return f"{about}\n\n{compared(seconds)}"


def extraction(photos: Path, place: Path) -> str:
    """Photos into a store."""
    encoder = load_encoder("lite", device="cpu")
    ways = {place / "local.store": encoded, place / "ray.store": encoded_on_ray}
    source = open_source(photos)
    done = [extract(source, store, encoder, stream=stream) for store, stream in ways.items()]
    expected, found = (FeatureStore.open(store).read() for store in ways)
    same = "equal" if found.items == expected.items else "NOT equal"
    gap = np.abs(found.features - expected.features).max()
    about = text("scale-extraction", photos=done[0].encoded, same=same, gap=gap)
    return f"{about}\n\n{compared([one.seconds for one in done])}"


def serving() -> str:
    """Requests that a server answers, with and without replicas."""
    rows, rates = [["", "requests at once", "photos a second", "ratio", "p50 ms", "p99 ms"]], {}
    options = ((), ("--engine", "ray", "--replicas", str(REPLICAS)))
    for name, engine in zip(WAYS, options, strict=True):
        with tempfile.TemporaryDirectory() as folder, served(Path(folder), *engine) as server:
            for clients in (1, AT_ONCE):
                rate, late, _ = answered(server, clients, SECONDS)
                ratio = rates.setdefault(clients, rate) / rate
                rows.append([name, clients, f"{rate:.1f}", f"{ratio:.1f}", *late])
    about = f"Drawings of 640 × 480 pixels through `lite`, {REPLICAS} replicas on the nodes."
    return f"{about}\n\n{table(rows)}"


def main() -> None:
    """Measure and write the section."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary, three_nodes() as cluster:
        place = Path(temporary)
        given = [Path(one) for one in sys.argv[1:]]
        photos = given[0] if given else draw_pictures(place / "photos", CLASSES, each=EACH)
        os.environ |= cluster.environment
        with connected():
            parts = {"Fitting": fitting(place), "Extraction": extraction(photos, place)}
        parts["Serving"] = serving()
    network = OWN if cluster.isolated else SHARED
    about = [text("scale", network=network, cores=os.cpu_count(), load=load)]
    about += [text("scale-noisy")] if load > QUIET else []
    made_by = "`python benchmarks/ray_cluster.py PHOTOS`"
    about += [f"## {name}\n\n{part}" for name, part in parts.items()]
    write_page("scale", "On three Ray nodes", *about, made_by=made_by)


if __name__ == "__main__":
    main()
