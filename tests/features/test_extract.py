"""Extraction: real images through a real encoder into a store, again and again, killed and not."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpcache import GPCacheClassifier
from gpcache.features.extract import extract
from gpcache.features.store import FeatureStore
from gpcache.images.augment import Views
from gpcache.images.sources import from_iterable, open_source

TINY = Path(__file__).with_name("tiny.py")


@pytest.fixture
def run(photos, tmp_path, encoder):
    def run(source=None, folder=tmp_path / "store", **options):
        return extract(source or open_source(photos), folder, encoder, workers=1, **options)

    return run


@pytest.fixture
def opened(tmp_path):
    return lambda: FeatureStore.open(tmp_path / "store")


def test_features_are_the_encoders_and_labels_the_folders(run, opened, photos, encoder):
    report = run()
    assert (report.encoded, report.known, report.refused) == (12, 0, [])
    rows = opened().read()
    assert rows.labels.tolist() == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    direct = encoder.encode_images([photos / path for path in rows.paths])
    np.testing.assert_array_equal(rows.features, direct)
    assert (
        GPCacheClassifier().fit(rows.features, rows.labels).score(rows.features, rows.labels) == 1
    )


def test_names_that_are_no_utf8_are_text_in_the_store(run, opened, photos, tmp_path):
    source = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    (source / "cat").mkdir(parents=True)
    os.rename(photos / "a" / "0.png", os.fsencode(source) + b"/cat/\xff.png")
    for _ in range(2):
        run(open_source(source))
    (item,) = opened().items()
    assert (item.source, item.path) == (f"{tmp_path}/caf\\xe9", r"cat/\xff.png")


def test_a_second_run_encodes_nothing(run, opened):
    run()
    before = opened().manifest
    report = run()
    assert (report.encoded, report.known) == (0, 12)
    assert opened().manifest == before


def test_new_images_are_added_and_changed_ones_encoded_again(run, opened, photos, write_photo):
    run()
    write_photo(photos / "d" / "new.png", 100)
    write_photo(photos / "a" / "0.png", 101)
    (photos / "b" / "5.png").rename(photos / "c" / "moved.png")
    (photos / "b" / "6.png").unlink()
    report = run()
    assert (report.encoded, report.known) == (2, 10)
    rows = opened().read()
    assert len(rows.items) == 12
    assert dict(zip(rows.paths, rows.labels, strict=True))["c/moved.png"] == "c"
    assert "b/6.png" not in rows.paths


def test_a_copy_shares_its_features(run, opened, photos):
    (photos / "a" / "copy.png").write_bytes((photos / "b" / "4.png").read_bytes())
    report = run()
    assert (report.encoded, report.known) == (12, 1)
    rows = opened().read()
    features = dict(zip(rows.paths, rows.features, strict=True))
    np.testing.assert_array_equal(features["a/copy.png"], features["b/4.png"])


def test_refused_files_are_listed_and_never_replaced(run, opened, photos):
    (photos / "a" / "broken.jpg").write_bytes(b"no image")
    (photos / "b" / "twin.jpg").write_bytes(b"no image")
    whole = (photos / "c" / "8.png").read_bytes()
    (photos / "c" / "cut.png").write_bytes(whole[: len(whole) // 2])
    report = run()
    assert {file.name for file in report.refused} == {"a/broken.jpg", "b/twin.jpg", "c/cut.png"}
    assert all(file.reason for file in report.refused)
    stored = opened().refused()
    assert [entry["path"] for entry in stored] == [file.name for file in report.refused]
    assert len(opened().read().items) == 12
    (photos / "a" / "broken.jpg").unlink()
    run()
    assert len(opened().refused()) == 2


def test_notes_name_the_image(run, photos):
    Image.new("RGB", (3, 3), "red").save(photos / "a" / "dot.png")
    report = run()
    assert [(note.name, "small" in note.reason) for note in report.notes] == [("a/dot.png", True)]


def test_several_shards_and_batches_give_the_same(run, opened, tmp_path):
    run()
    run(folder=tmp_path / "small", shard_rows=3, batch_size=2)
    small = FeatureStore.open(tmp_path / "small")
    assert len(small.manifest.shards) > 2
    np.testing.assert_allclose(small.read().features, opened().read().features, atol=1e-6)


def test_split_names_what_the_source_does_not(run, opened, photos):
    manifest = photos / "list.csv"
    manifest.write_text("path,label,split\na/0.png,x,val\na/1.png,x,\n")
    run(open_source(manifest), split="train")
    assert [item.split for item in opened().items()] == ["val", "train"]


def test_images_that_never_were_files(run, opened, encoder, photos):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    content = (photos / "a" / "0.png").read_bytes()
    pairs = [(pixels, "array"), (Image.fromarray(pixels), "image"), (content, "bytes"), (b"", "no")]
    report = run(from_iterable(pairs))
    assert (report.encoded, report.known, len(report.refused)) == (2, 1, 1)
    rows = opened().read()
    assert rows.labels.tolist() == ["array", "image", "bytes"]
    np.testing.assert_array_equal(rows.features[0], encoder.encode_images([pixels])[0])


@pytest.mark.parametrize("average", [True, False])
def test_views(run, tmp_path, encoder, photos, average):
    views = Views(3, average=average, seed=7)
    run(folder=tmp_path / "views", views=views, batch_size=4)
    rows = FeatureStore.open(tmp_path / "views").read()
    item = rows.items[5]
    with Image.open(photos / item.path) as image:
        pixels = views.pixels(image.convert("RGB"), encoder.preprocess, item.hash)
    singles = encoder.encode_pixels(pixels)
    if average:
        raw = encoder._embed_images(encoder.preprocess.normalised(_tensor(pixels))).mean(0).numpy()
        expected = raw / np.linalg.norm(raw)
    else:
        expected = singles
    np.testing.assert_allclose(rows.features[5], expected, atol=1e-6)


def _tensor(pixels):
    import torch

    return torch.from_numpy(pixels)


def test_an_interrupt_keeps_what_was_encoded(photos, tmp_path, encoder):
    def endless():
        yield from (((photos / "a" / f"{n}.png").read_bytes(), "a") for n in range(4))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(from_iterable(endless()), tmp_path / "s", encoder, batch_size=2, workers=1)
    assert len(FeatureStore.open(tmp_path / "s")) == 4


@pytest.fixture
def many(tmp_path, write_photo):
    folder = tmp_path / "many"
    for number in range(120):
        write_photo(folder / f"{number}.png", 1000 + number)
    return folder


def start(folder, store, shard_rows):
    # On a slow machine a process may wait over a second for its turn, and says so.
    waiting = "ignore:Waiting for another process:RuntimeWarning"
    return subprocess.Popen(
        [sys.executable, "-W", waiting, TINY, folder, store, str(shard_rows)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def test_ten_kills_lose_at_most_a_shard_each(many, tmp_path, encoder):
    """Each run is killed at a random moment after it began; the last one is let be."""
    moments, folder, least = random.Random(0), tmp_path / "killed", 0
    for _ in range(10):
        process = start(many, folder, 8)
        process.stdout.readline()
        time.sleep(moments.uniform(0, 0.6))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if (folder / "store.json").exists():
            store = FeatureStore.open(folder)
            assert store.damaged() == []
            assert len(store) >= least
            assert len(store) == sum(shard.rows for shard in store.manifest.shards)
            least = len(store)
    process = start(many, folder, 8)
    assert process.communicate()[1] == b""
    rows = FeatureStore.open(folder).read()
    assert len(rows.items) == len({item.hash for item in rows.items}) == 120
    np.testing.assert_allclose(
        rows.features, encoder.encode_images([many / path for path in rows.paths]), atol=1e-6
    )


def test_eight_processes_neither_lose_nor_duplicate_rows(many, tmp_path):
    folder = tmp_path / "shared"
    processes = [start(many, folder, 16) for _ in range(8)]
    errors = [process.communicate()[1] for process in processes]
    assert errors == [b""] * 8
    store = FeatureStore.open(folder)
    assert store.damaged() == []
    assert sum(shard.rows for shard in store.manifest.shards) == len(store) == 120
    assert len(store.read().items) == 120


def test_no_decoding_process_outlives_the_killed_one(many, tmp_path):
    process = start(many, tmp_path / "s", 8)
    process.stdout.readline()
    if not Path(f"/proc/{process.pid}/task/{process.pid}/children").exists():
        process.kill()
        pytest.skip("this system does not list the children of a process")
    deadline = time.monotonic() + 300
    while not (pids := children_of(process.pid)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 300
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children_of(pid):
    """The processes that any thread of a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found += task.read_text().split()
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False
