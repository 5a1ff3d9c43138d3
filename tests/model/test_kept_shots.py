"""Models of many shots that keep them in an index on disk, to explain their answers."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpcache import FeatureStore, GPCacheClassifier, ImageClassifier, ModelFileError
from gpcache.features.store import Item
from gpcache.methods import Explicit
from gpcache.methods.cache import explicit_choice, explicit_reasons
from gpcache.support.array_folders import SHOTS

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
ROWS = 240


def pictures_of(n, n_classes, seed):
    """Noisy pictures around the colour of each class, with its name."""
    colours = np.random.default_rng(0).uniform(40, 215, (n_classes, 3))
    noise = np.random.default_rng(seed).normal(0, 90, (n, 8, 8, 3))
    labels = np.arange(n) % n_classes
    pixels = (colours[labels][:, None, None] + noise).clip(0, 255).astype(np.uint8)
    return pixels, np.array([f"class {number}" for number in labels])


def stored(folder, n_classes=4, seed=1):
    """A feature store of pictures."""
    encoder = tiny.ColourEncoder()
    pixels, labels = pictures_of(ROWS, n_classes, seed)
    hashes = [f"{seed:032x}{row:032x}" for row in range(ROWS)]
    items = [Item("drawn", f"{row}.png", hashes[row], str(labels[row])) for row in range(ROWS)]
    store = FeatureStore.create(folder, encoder)
    store.append(hashes, encoder.encode_images(pixels))
    store.record("drawn", items, [])
    return folder


def fitted(store, **options):
    method = GPCacheClassifier(approximation=Explicit(60), dtype="float64")
    model = ImageClassifier(tiny.ColourEncoder(), method=method, prompt=None, device="cpu")
    return model.fit(store, **options)


def loaded(folder):
    return ImageClassifier.load(folder, encoder=tiny.ColourEncoder(), device="cpu")


def dicts(model, queries, **options):
    return [answer.as_dict() for answer in model.predict(queries, why=5, **options)]


@pytest.fixture(autouse=True)
def _many(monkeypatch):
    """So few shots count as many."""
    monkeypatch.setattr(explicit_choice, "PART_ROWS", 60)


@pytest.fixture
def store(tmp_path):
    return stored(tmp_path / "a.store")


@pytest.fixture
def saved(store, tmp_path):
    fitted(store, keep_shots=True).save(tmp_path / "a.gpc")
    return tmp_path / "a.gpc"


@pytest.fixture
def queries():
    return pictures_of(12, 4, seed=2)[0]


def test_each_share_is_that_of_a_scan_over_all_shots(store, saved, queries, monkeypatch):
    monkeypatch.setattr(explicit_reasons, "CANDIDATES", ROWS)
    model, rows = loaded(saved), FeatureStore.open(store).read()
    names = {path: row for row, path in enumerate(rows.paths)}
    features = model.encoder_.encode_images(queries)
    full = model.model.explain(features, top=None, shots=(rows.features, rows.labels))
    assert full.shots.shape == (len(queries), ROWS)
    np.testing.assert_allclose(full.shares.sum(1), full.cache_logit, atol=1e-6)
    missed = 0
    for query, answer in enumerate(model.predict(queries, why=5)):
        share_of = dict(zip(full.shots[query].tolist(), full.shares[query].tolist(), strict=True))
        shown = [names[neighbour.name] for neighbour in answer.neighbours]
        weights = [neighbour.weight for neighbour in answer.neighbours]
        assert weights == pytest.approx([share_of[row] for row in shown], rel=5e-3)
        assert [one.label for one in answer.neighbours] == rows.labels[shown].tolist()
        rest = full.cache_logit[query] - sum(weights)
        assert answer.others_weight == pytest.approx(rest, abs=1e-9)
        missed += len(set(full.shots[query, :5].tolist()) - set(shown))
    assert missed <= 1  # of sixty: a shot counts for its own class and one other in the index


def test_with_two_classes_the_index_has_every_share_and_they_sum_to_the_logit(tmp_path):
    fitted(stored(tmp_path / "a.store", 2), keep_shots=True).save(tmp_path / "a.gpc")
    model = loaded(tmp_path / "a.gpc")
    features = model.encoder_.encode_images(pictures_of(8, 2, seed=2)[0])
    why = model.model.explain(features, top=None, shots=model.content.shots.shots)
    assert why.shots.shape == (8, ROWS)
    np.testing.assert_allclose(why.shares.sum(1), why.cache_logit, rtol=2e-3)


def test_a_model_keeps_its_shots_when_it_is_saved_again(store, saved, queries, tmp_path):
    model, bare = loaded(saved), fitted(store)
    found = dicts(model, queries)
    assert all(len(one["why"]) == 5 for one in found)
    model.save(tmp_path / "b.gpc")
    assert dicts(loaded(tmp_path / "b.gpc"), queries) == found
    model.save(saved)  # in its own place
    assert (dicts(model, queries), dicts(loaded(saved), queries)) == (found, found)
    # They are beside the model, which is the same without them.
    bare.save(tmp_path / "bare.gpc")
    assert not (tmp_path / "bare.gpc" / SHOTS).exists()
    assert "why" not in dicts(loaded(tmp_path / "bare.gpc"), queries)[0]
    files = [place / "model.safetensors" for place in (saved, tmp_path / "bare.gpc")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_answers_without_reasons_do_not_open_the_file(saved, queries):
    model = loaded(saved)
    before = [answer.as_dict() for answer in model.predict(queries)]
    (saved / SHOTS).unlink()
    model = loaded(saved)
    assert [answer.as_dict() for answer in model.predict(queries)] == before
    with pytest.raises(ModelFileError, match=r"^[^\n]*shots.safetensors' is missing[^\n]*\.$"):
        model.predict(queries, why=5)
    (saved / SHOTS).mkdir()
    with pytest.raises(ModelFileError, match=r"shots.safetensors' cannot be read \(Is a dir"):
        loaded(saved).predict(queries, why=5)


def test_a_model_that_was_replaced_does_not_name_the_images_of_the_other(saved, queries, tmp_path):
    model, opened = loaded(saved), loaded(saved)
    found = dicts(opened, queries)
    fitted(stored(tmp_path / "b.store", seed=3), keep_shots=True).save(saved)
    with pytest.raises(ModelFileError, match="another process has replaced the model"):
        model.predict(queries, why=5)
    assert dicts(opened, queries) == found  # it has the old file still
    for one in (model, opened):
        with pytest.raises(ModelFileError, match="another process has replaced the model"):
            one.save(tmp_path / "b.gpc")
        assert not (tmp_path / "b.gpc").exists()


def test_images_that_are_added_end_the_index(saved, queries):
    model = loaded(saved)
    model.add(list(zip(*pictures_of(4, 4, seed=5), strict=True)))
    assert any("no longer keeps" in notice for notice in model.training.notices)
    model.save(saved)
    assert not (saved / SHOTS).exists()
    assert loaded(saved).n_images == ROWS + 4
    assert len(loaded(saved).examples) == len(model.model.loo_.labels) < ROWS
    assert "why" not in dicts(loaded(saved), queries)[0]


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from gpcache.features.shot_index import Residuals, Seal, ShotIndex, write_index
from gpcache.support.array_folders import SHOTS, load_folder, save_folder

folder, generator, unfinished = Path(sys.argv[1]), random.Random(0), 0
labels, rest = np.arange(3000) % 3, np.ones(3000, np.float32)
residuals, names = Residuals(rest, (labels + 1) % 3, rest), ["name"] * 3000
def save(number):
    rows = np.eye(64, dtype=np.float32)[np.full(3000, number % 64)]
    save_folder(
        folder, {"number": number}, {}, "",
        write_shots=lambda place: write_index(place, rows, labels, names, residuals, 3)._asdict(),
    )
save(0)
for start in range(10):
    saved, tell = os.pipe()
    child = os.fork()
    if not child:
        number = 1000 * start
        while True:
            number += 1
            save(number)
            os.write(tell, b".")
    os.read(saved, 1)  # one model was replaced, however busy the machine is
    time.sleep(generator.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(saved), os.close(tell)
    unfinished += any(name.endswith("gpcache-tmp") for name in os.listdir(folder.parent))
    config, _ = load_folder(folder)
    index = ShotIndex(folder / SHOTS, Seal(**config["shots"]))
    assert config["number"] > 1000 * start
    assert (index.rows(np.arange(3000)).argmax(1) == config["number"] % 64).all()
print(unfinished)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_shots_of_the_old_model_or_the_new_one(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0  # kills did come while models were being replaced
