"""Commands and a server as processes: requests, writers at the same time, kills."""

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
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import numpy as np
import schemathesis
from development_data import folder
from hypothesis import HealthCheck, Phase, given, settings
from serving import add_photo, served

from gpcache import FeatureStore, ImageClassifier, load_encoder
from gpcache.errors import GPCacheError, StoreError
from gpcache.images.drawn import draw_pictures

CLASSES = ("bricks", "marble", "wood")
GPCACHE = (sys.executable, "-m", "gpcache")
WRITERS, ROUNDS, KILLS, REQUESTS = 4, 5, 40, 60
EXTRACTION_KILLS, SHARD_ROWS = 60, 32
PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
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


def fitted(place: Path) -> Path:
    """A model of drawn pictures."""
    draw_pictures(place / "photos", CLASSES, each=4)
    subprocess.run([*GPCACHE, "fit", place / "photos", "-o", place / "materials.gpc"], check=True)
    return place / "materials.gpc"


def photo_names(client: httpx.Client) -> Counter[str]:
    """How often each photo is in a workspace."""
    return Counter(str(one["name"]) for one in client.get("/v1/state").json()["photos"])


def fuzzed_requests(place: Path) -> Iterator[tuple[str, str]]:
    """Requests that follow the OpenAPI document of the server, and requests that break it."""
    with served(place) as server, server.client() as client:
        document = client.get("/openapi.json").json()
        options = {"base_url": server.address, "headers": server.headers}
        for found in schemathesis.openapi.from_dict(document).get_all_operations():
            operation = found.ok()
            for mode in schemathesis.GenerationMode:
                if mode.is_negative and not operation.body and not operation.query:
                    continue
                kind = "break" if mode.is_negative else "follow"
                for outcome in _answers(operation.as_strategy(generation_mode=mode), options):
                    yield f"requests that {kind} the document", outcome


def _answers(cases: Any, options: dict[str, Any]) -> list[str]:
    """The outcomes of requests that are drawn from a strategy."""
    outcomes: list[str] = []

    @settings(max_examples=REQUESTS, derandomize=True, phases=[Phase.generate], **PATIENT)
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        answer = case.call(timeout=60, **options)
        refused = answer.status_code >= 400
        failed = answer.status_code >= 500 or (refused and answer.json().keys() != {"error"})
        outcomes.append("failed" if failed else "refused" if refused else "kept")

    ask()
    return outcomes


def parallel_writers(place: Path) -> Iterator[tuple[str, str]]:
    """Several processes or clients that change the same model, store or workspace."""
    model = fitted(place)

    def command(*words: object) -> bool:
        return subprocess.run([*GPCACHE, *words], capture_output=True).returncode == 0

    def add(number: int) -> bool:
        wood = draw_pictures(place / f"{number}", ["wood"], each=1, seed=100 + number) / "wood"
        (wood / "00.jpg").rename(wood / f"new{number}.jpg")
        return command("add", model, wood.parent)

    with ThreadPoolExecutor(WRITERS) as pool:
        for start in range(0, ROUNDS * WRITERS, WRITERS):
            done = list(pool.map(add, range(start, start + WRITERS)))
            there = {one.name for one in ImageClassifier.load(model, device="cpu").examples}
            for number, well in enumerate(done, start):
                present = f"wood/new{number}.jpg" in there
                yield "`gpcache add` on one model", kept(well and present)
        for number in range(ROUNDS):
            store = place / f"{number}.store"
            extract = partial(command, "extract", place / "photos", "-o")
            done = list(pool.map(extract, [store] * WRITERS))
            whole = _whole_rows(store) == 4 * len(CLASSES)
            for well in done:
                yield "`gpcache extract` into one store", kept(whole and well)
        with served(place / "workspace", photos=0) as server, server.client() as client:
            added = list(pool.map(partial(add_photo, client), range(10 * ROUNDS * WRITERS)))
            names = photo_names(client)
    for name in added:
        yield "photos added to one workspace", kept(names[name] == 1)


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
    # Not a picture of the model, which would count once.
    model, pool = fitted(place), draw_pictures(place / "pool", ["wood"], each=1, seed=100)
    extra = pool / "wood/00.jpg"
    moments, known = random.Random(0), {file.name for file in place.iterdir()}
    for _ in range(KILLS):
        killed_at(moments.uniform(0, 1.0), UPDATES, model, extra)
        whole = False
        with suppress(GPCacheError):
            whole = len(ImageClassifier.load(model, device="cpu").examples) in (12, 13)
        yield "a model, killed while it is updated", kept(whole)
    subprocess.run([*GPCACHE, "relabel", model, "bricks/00.jpg", "wood"], check=True)
    left = {file.name for file in place.iterdir()} - known
    yield "files left beside the model after all kills", kept(not left)
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
        if killed:
            rows = _whole_rows(store)
            yield "a store, killed while it is written", kept(rows >= before)
            kills, before = kills + 1, max(rows, 0)
        else:
            yield "stores that were completed", kept(_holds(store, photos))
            stores, before = stores + 1, 0


def _whole_rows(store: Path) -> int:
    """How many rows a store has; -1 if it is damaged."""
    if not (store / "store.json").exists():
        return 0  # killed before the manifest was there
    with suppress(StoreError):
        opened = FeatureStore.open(store)
        return -1 if opened.damaged() else len(opened)
    return -1


def _holds(store: Path, photos: Path) -> bool:
    """Whether a store has every photo once, with the encoder's own features."""
    rows = FeatureStore.open(store).read()
    every = max(1, len(rows.paths) // 16)
    some = [photos / name for name in rows.paths[::every]]
    direct = load_encoder("lite", device="cpu").encode_images(some)
    alike = float(np.abs(direct - rows.features[::every]).max()) < 1e-4
    return alike and rows.paths == sorted(path.name for path in photos.iterdir())
