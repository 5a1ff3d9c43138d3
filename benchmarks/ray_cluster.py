"""Extraction, fitting and serving on three Ray nodes, beside one process, and with a node killed.

`python benchmarks/ray_cluster.py [PHOTOS]` took ten minutes on two busy cores. PHOTOS is a folder
of photos; without it drawings are made. The nodes share this machine, so nothing can become faster.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from million_keys import make
from pages import table, write_page
from ray_nodes import Cluster, Node, three_nodes
from serving import Answer, Clients, Server, answered, photo, served

from gpcache import FeatureStore, GPCacheClassifier, load_encoder
from gpcache.cluster.connection import connected
from gpcache.cluster.extraction import encoded_on_ray
from gpcache.cluster.fitting import rows_on_ray
from gpcache.features.extract import Extraction, Stream, extract
from gpcache.features.stream import encoded
from gpcache.images.sources import open_source

DRAWINGS, SHARD_ROWS = 1_000, 32
KEYS, CLASSES = 20_000, 100
REPLICAS, AT_ONCE, REQUESTS, SECONDS = 3, 16, 300, 10.0
KILLED_AT = 5  # passes
QUIET = 0.5  # processes that want a core, at most
ONE, THREE, KILLED = "one process", "three nodes", "three nodes, one killed"

ABOUT = """
A Ray cluster of three nodes on one machine: a head and two workers, each with one CPU of Ray's and
80 MB for objects. {network} They share {cores} cores with the clients, and with the process that
they are compared with: the ratios show what Ray costs, not what more machines bring. A node is
killed by SIGKILL to all of its processes; Ray was set to notice this after two seconds. The cluster
runs before the clock starts; actors start, and load torch and the encoder, while it runs. Before
the first measurement {load:.1f} other processes wanted a core on average.
"""
OWN = "Each worker has its own network namespace; the head has that of the machine."
SHARED = "All have the address of the machine, with their own ports (no network namespaces here)."
NOISY = """
**These times are not those of a quiet machine.** Other work shared the cores, and more processes
get a larger share of them: ratios below 1 come from that. Only the results of the kills count.
"""


def compared(seconds: dict[str, float]) -> str:
    """A line for each way: its name, its seconds, and how often it takes those of one process."""
    rows = [[name, f"{one:.1f}", f"{one / seconds[ONE]:.1f}"] for name, one in seconds.items()]
    return table([["", "seconds", "ratio"], *rows])


def kill_when(ready: Callable[[], Node | None]) -> list[str]:
    """Kill the node that `ready` gives, once it does; its name is in the list then."""
    killed: list[str] = []

    def work() -> None:
        while (node := ready()) is None:
            time.sleep(0.005)
        node.kill()
        killed.append(node.name)

    threading.Thread(target=work, daemon=True).start()
    return killed


def fitting(cluster: Cluster, place: Path) -> str:
    """A fit with all choices on rows of a mapped file."""
    made = make(place, KEYS, CLASSES, torch.device("cpu"))
    seconds: dict[str, float] = {}
    answers: dict[str, Any] = {}
    passes, killed = 0, ["none"]
    for name in (ONE, THREE, KILLED):
        source: AbstractContextManager[Any] = (
            nullcontext(made.rows) if name == ONE else rows_on_ray(made.rows)
        )
        start = time.perf_counter()
        with source as given:
            if name == KILLED:
                last = cluster.workers[-1]
                killed = kill_when(lambda g=given, w=last: w if g.passes >= KILLED_AT else None)
            model = GPCacheClassifier(device="cpu").fit(given, made.labels)
            passes = getattr(given, "passes", 0)
        seconds[name] = time.perf_counter() - start
        answers[name] = model.predict_proba(made.queries)
    cluster.complete()
    gap = [np.abs(answers[name] - answers[ONE]).max() for name in (THREE, KILLED)]
    accuracy = 100 * float((answers[KILLED].argmax(1) == made.truth).mean())
    text = (
        f"`GPCacheClassifier` on {KEYS:,} synthetic shots of {CLASSES} classes (those of "
        f"`million_keys.py`, 512 values) in a mapped file, float32, all choices included; the fit "
        f"makes {passes} passes over the rows, and chooses on a part of them in one process."
    )
    outcome = (
        f"Killed after {KILLED_AT} passes: {', '.join(killed)}. The probabilities of "
        f"{len(made.queries):,} queries differ from those of one process by {gap[0]:.0e} at most, "
        f"and by {gap[1]:.0e} after the kill (accuracy {accuracy:.1f} %)."
    )
    return f"{text}\n\n{compared(seconds)}\n{outcome}"


def extraction(cluster: Cluster, photos: Path, place: Path) -> str:
    """Photos into a store."""
    encoder = load_encoder("lite", device="cpu")

    def run(name: str, stream: Stream) -> tuple[Extraction, FeatureStore]:
        store = place / name.replace(" ", "-")
        done = extract(open_source(photos), store, encoder, stream=stream, shard_rows=SHARD_ROWS)
        return done, FeatureStore.open(store)

    def encoding() -> Node | None:
        started = any((place / KILLED.replace(" ", "-") / "shards").glob("*.safetensors"))
        at_work = (node for node in cluster.workers if node.runs("MapWorker"))
        return next(at_work, None) if started else None

    local, expected = run(ONE, encoded)
    undisturbed, _ = run(THREE, encoded_on_ray)
    killed = kill_when(encoding)
    disturbed, found = run(KILLED, encoded_on_ray)
    again, _ = run(KILLED, encoded_on_ray)
    cluster.complete()
    seconds = {ONE: local.seconds, THREE: undisturbed.seconds, KILLED: disturbed.seconds}
    stored = sum(shard.rows for shard in found.manifest.shards)
    same = "equal" if found.items() == expected.items() else "NOT equal"
    gap = np.abs(found.read().features - expected.read().features).max()
    outcome = (
        f"Killed after the first shard: {', '.join(killed)}. The store then holds {stored:,} rows "
        f"of {len(found):,} images, and that of one process {len(expected):,}; their lists of "
        f"images are {same} and their features differ by {gap:.0e} at most. A further run encoded "
        f"{again.encoded}."
    )
    return f"{local.encoded:,} photos through `lite`.\n\n{compared(seconds)}\n{outcome}"


async def requests(server: Server, cluster: Cluster) -> tuple[list[Answer], str]:
    """Requests from many clients; after a quarter of them a node with a replica is killed."""
    clients, numbers, answers = Clients(server), count(), list[Answer]()
    victim = next(node for node in cluster.workers if node.runs("ServeReplica"))

    async def client() -> None:
        while (number := next(numbers)) < REQUESTS:
            answers.append(await clients.ask(number))
            if len(answers) == REQUESTS // 4:
                await asyncio.to_thread(victim.kill)

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return answers, victim.name


def serving(cluster: Cluster) -> str:
    """Requests that a server answers, with and without replicas."""
    rows: list[list[object]] = [
        ["", "requests at once", "photos a second", "ratio", "p50 ms", "p99 ms"]
    ]
    rates: dict[int, float] = {}
    for name, options in ((ONE, ()), (THREE, ("--engine", "ray", "--replicas", str(REPLICAS)))):
        with (
            tempfile.TemporaryDirectory() as folder,
            served(Path(folder), *options) as server,
        ):
            for clients in (1, AT_ONCE):
                rate, late, _ = answered(server, clients, SECONDS)
                ratio = rates.setdefault(clients, rate) / rate
                rows.append([name, clients, f"{rate:.1f}", f"{ratio:.1f}", *late])
            if name == THREE:
                answers, killed = asyncio.run(requests(server, cluster))
    cluster.complete()
    statuses = Counter(answer.status for answer in answers)
    accepted = len(answers) - statuses[429]
    text = f"Drawings of 640 × 480 pixels through `lite`, {REPLICAS} replicas on the nodes."
    outcome = (
        f"Killed during {REQUESTS} requests, {AT_ONCE} at once: {killed}. {accepted} requests were "
        f"accepted, {statuses[200]} answered, {accepted - statuses[200]} lost (to be 0); the "
        f"longest wait was {max(one.seconds for one in answers):.1f} s."
    )
    return f"{text}\n\n{table(rows)}\n{outcome}"


def drawings(place: Path) -> Path:
    """A folder of drawings."""
    place.mkdir()
    for seed in range(DRAWINGS):
        (place / f"{seed:04}.jpg").write_bytes(photo(seed))
    return place


def main() -> None:
    """Measure and write the section."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary, three_nodes() as cluster:
        place = Path(temporary)
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else drawings(place / "photos")
        network = OWN if cluster.isolated else SHARED
        os.environ |= cluster.environment
        with connected():
            parts = [fitting(cluster, place), extraction(cluster, given, place)]
        parts.append(serving(cluster))
    headings = ("## Fitting", "## Extraction", "## Serving")
    body = [f"{heading}\n\n{part}" for heading, part in zip(headings, parts, strict=True)]
    about = ABOUT.format(network=network, cores=os.cpu_count(), load=load)
    about += NOISY if load > QUIET else ""
    made_by = "`python benchmarks/ray_cluster.py PHOTOS`"
    write_page("scale", "On three Ray nodes", about, *body, made_by=made_by)


if __name__ == "__main__":
    main()
