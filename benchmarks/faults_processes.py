"""Commands and a server as processes: requests, writers at the same time, kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import numpy as np
import schemathesis
from development_data import folder
from hypothesis import HealthCheck, Phase, given, settings
from serving import Server, add_photo, served

from gpcache import FeatureStore, ImageClassifier, load_encoder
from gpcache.errors import GPCacheError, StoreError
from gpcache.images.drawn import draw_pictures

CLASSES = ("bricks", "marble", "wood")
GPCACHE = (sys.executable, "-m", "gpcache")
WRITERS, ROUNDS, KILLS, REQUESTS = 4, 5, 40, 60
EXTRACTION_KILLS, SHARD_ROWS = 60, 32
# Adds a photo and removes it again, and writes the model each time, until it is killed.
UPDATES = """
import sys
from gpcache import ImageClassifier
model = ImageClassifier.load(sys.argv[1], device="cpu")
print("start", flush=True)
while True:
    model.add([sys.argv[2]], ["wood"]).save(sys.argv[1])
    model.remove(names=[model.examples[-1].name]).save(sys.argv[1])
"""
EXTRACTION = f"""
import sys
from gpcache import load_encoder
from gpcache.features.extract import extract
from gpcache.images.sources import open_source
source, encoder = open_source(sys.argv[1]), load_encoder("lite", device="cpu")
print("start", flush=True)
extract(source, sys.argv[2], encoder, shard_rows={SHARD_ROWS})
"""


def kept(whole: bool) -> str:
    """The outcome of a write."""
    return "kept" if whole else "failed"


def draw(place: Path) -> None:
    """Pictures to learn from, and some more."""
    draw_pictures(place / "photos", CLASSES, each=4)
    draw_pictures(place / "pool", ["wood"], each=4, seed=2)


def photo_names(client: httpx.Client) -> Counter[str]:
    """How often each photo is in a workspace."""
    return Counter(str(one["name"]) for one in client.get("/v1/state").json()["photos"])


def fuzzed_requests(place: Path) -> Iterator[tuple[str, str]]:
    """Requests that follow the OpenAPI document of the server, and requests that break it."""
    with served(place) as server:
        yield from _fuzzed(server)


def _fuzzed(server: Server) -> Iterator[tuple[str, str]]:
    document = httpx.get(f"{server.address}/openapi.json", headers=server.headers).json()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:
            if mode.is_negative and not operation.body and not operation.query:
                continue
            kind = "break" if mode.is_negative else "follow"
            cases = operation.as_strategy(generation_mode=mode)
            for outcome in _answers(cases, {"base_url": server.address, "headers": server.headers}):
                yield f"requests that {kind} the document", outcome


def _answers(cases: Any, options: dict[str, Any]) -> list[str]:
    """The outcomes of requests that are drawn from a strategy."""
    outcomes: list[str] = []

    @settings(
        max_examples=REQUESTS,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        answer = case.call(timeout=60, **options)
        refused = answer.status_code >= 400
        if answer.status_code >= 500 or (refused and answer.json().keys() != {"error"}):
            outcomes.append("failed")
        else:
            outcomes.append("refused" if refused else "kept")

    ask()
    return outcomes


def parallel_writers(place: Path) -> Iterator[tuple[str, str]]:
    """Several processes or clients that change the same model, store or workspace."""
    draw(place)
    model, files = place / "materials.gpc", sorted((place / "photos").rglob("*.jpg"))
    subprocess.run([*GPCACHE, "fit", place / "photos", "-o", model], check=True)
    with ThreadPoolExecutor(WRITERS) as pool:
        for start in range(0, ROUNDS * WRITERS, WRITERS):
            folders = [place / f"new{number}" for number in range(start, start + WRITERS)]
            for number, folder in enumerate(folders, start):
                draw_pictures(folder, ["wood"], each=1, seed=100 + number)
                (folder / "wood" / "00.jpg").rename(folder / "wood" / f"new{number}.jpg")
            commands = [[*GPCACHE, "add", model, folder] for folder in folders]
            done = pool.map(lambda command: subprocess.run(command, capture_output=True), commands)
            codes = [one.returncode for one in done]
            names = {example.name for example in ImageClassifier.load(model, device="cpu").examples}
            for number, code in enumerate(codes, start):
                there = f"wood/new{number}.jpg" in names
                yield "`gpcache add` on one model", kept(there and not code)
        for start in range(ROUNDS):
            store = place / f"{start}.store"
            commands = [[*GPCACHE, "extract", place / "photos", "-o", store]] * WRITERS
            codes = [one.returncode for one in pool.map(subprocess.run, commands)]
            rows = FeatureStore.open(store)
            whole = len(rows) == len(files) and not rows.damaged()
            for code in codes:
                yield "`gpcache extract` into one store", kept(whole and not code)
        with served(place / "workspace", photos=0) as server, server.client() as client:
            numbers = range(10 * ROUNDS * WRITERS)
            names = Counter(pool.map(lambda number: add_photo(client, number), numbers))
            there = photo_names(client)
    for name in names:
        yield "photos added to one workspace", kept(there[name] == 1)


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


def killed_updates(place: Path) -> Iterator[tuple[str, str]]:
    """A model that is changed, and a server that learns, killed at random moments."""
    draw(place)
    model, extra = place / "materials.gpc", next((place / "pool").rglob("*.jpg"))
    subprocess.run([*GPCACHE, "fit", place / "photos", "-o", model], check=True)
    moments, known = random.Random(0), {file.name for file in place.iterdir()}
    for _ in range(KILLS):
        killed_at(moments.uniform(0, 1.0), UPDATES, model, extra)
        try:
            whole = len(ImageClassifier.load(model, device="cpu").examples) in (12, 13)
        except GPCacheError:
            whole = False
        yield "a model, killed while it is updated", kept(whole)
    subprocess.run([*GPCACHE, "relabel", model, "bricks/00.jpg", "wood"], check=True)
    left = {file.name for file in place.iterdir()} - known
    yield "files left beside the model after all kills", kept(not left)
    yield from _killed_servers(place, moments)


def _killed_servers(place: Path, moments: random.Random) -> Iterator[tuple[str, str]]:
    acknowledged: list[str] = []
    for _ in range(KILLS // 4):
        with served(place / "workspace", photos=0) as server, server.client() as client:
            acknowledged.append(add_photo(client, len(acknowledged)))
            Timer(moments.uniform(0, 3.0), server.process.kill).start()
            with suppress(httpx.TransportError):
                while True:
                    acknowledged.append(add_photo(client, len(acknowledged)))
    with served(place / "workspace", photos=0) as server, server.client() as client:
        there = photo_names(client)
    for name in acknowledged:
        yield f"photos that {KILLS // 4} killed servers acknowledged", kept(there[name] == 1)


def killed_extractions(place: Path) -> Iterator[tuple[str, str]]:
    """An extraction that is killed and goes on in its store, again and again."""
    photos, moments = folder("images") / "unlabelled", random.Random(0)
    kills = stores = before = 0
    while kills < EXTRACTION_KILLS:
        store = place / str(stores)
        killed = killed_at(moments.uniform(0, 3.0), EXTRACTION, photos, store)
        rows = _whole_rows(store)
        if killed:
            kills, outcome = kills + 1, kept(rows >= before)
            before = max(rows, 0)
            yield "a store, killed while it is written", outcome
        else:
            stores, before = stores + 1, 0
            yield "stores that were completed", kept(_holds(store, photos))


def _whole_rows(store: Path) -> int:
    """How many rows a store has; -1 if it is damaged."""
    if not (store / "store.json").exists():
        return 0  # killed before the manifest was there
    try:
        opened = FeatureStore.open(store)
    except StoreError:
        return -1
    return -1 if opened.damaged() else len(opened)


def _holds(store: Path, photos: Path) -> bool:
    """Whether a store has every photo once, with the encoder's own features."""
    rows = FeatureStore.open(store).read()
    every = max(1, len(rows.paths) // 16)
    some = [photos / name for name in rows.paths[::every]]
    direct = load_encoder("lite", device="cpu").encode_images(some)
    alike = float(np.abs(direct - rows.features[::every]).max()) < 1e-4
    return alike and rows.paths == sorted(path.name for path in photos.iterdir())
