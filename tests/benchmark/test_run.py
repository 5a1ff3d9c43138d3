"""Runs of real cells on small data: killed, continued, and refused where a protocol says so."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpcache.benchmark.datasets.loading import open_task
from gpcache.benchmark.protocols import Sample, rows_to_choose_on
from gpcache.benchmark.rows import correct_rows, read_rows
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import read_spec
from gpcache.benchmark.task import Labelled
from gpcache.errors import DataError, ProtocolError
from gpcache.features.splits import draw_shots
from gpcache.methods import GPCacheClassifier, TextPrior
from gpcache.similarity import SimilarityProjection
from gpcache.similarity.folder import ProjectionFacts, save_projection
from gpcache.support.files import sha256_of_file

TIMES = ("seconds", "predict_seconds")


def rows_in(folder, name="toy"):
    """The rows without what a clock says."""
    rows = read_rows(folder / f"{name}.jsonl")
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def test_a_cell_is_what_the_estimator_says(write_features, write_spec, results):
    data = dict(np.load(write_features(), allow_pickle=False))
    outcome = run(read_spec(write_spec()), results)
    assert outcome.counts == {"done": 12}
    rows = rows_in(results)
    names = data["classnames"]
    unit = {
        part: data[f"{part}_x"] / np.linalg.norm(data[f"{part}_x"], axis=1, keepdims=True)
        for part in ("train", "val", "test")
    }
    labels = {part: names[data[f"{part}_y"]] for part in ("train", "val", "test")}
    identifiers = [f"{row:08d}" for row in range(len(labels["train"]))]
    drawn = draw_shots(labels["train"].tolist(), identifiers, 4, 2).indices
    model = GPCacheClassifier.paper(TextPrior(list(names), data["text"]), random_state=2)
    model.fit(
        unit["train"][drawn].astype(np.float32),
        labels["train"][drawn],
        validation=(unit["val"].astype(np.float32), labels["val"]),
    )
    correct = model.predict(unit["test"].astype(np.float32)) == labels["test"]
    row = next(
        row for row in rows if (row["label"], row["shots"], row["seed"]) == ("GPCache", 4, 2)
    )
    assert row["accuracy"] == pytest.approx(correct.mean())
    assert correct_rows(row).tolist() == correct.tolist()
    assert row["hyper_parameters"]["beta"] == model.beta_
    assert row["hyper_parameters"]["eta"] == model.eta_
    assert (row["n_shots"], row["n_choosing"], row["n_test"]) == (16, 24, 100)
    assert row["versions"]["gpcache"]
    assert len(row["split_hash"]) == len(row["encoder_fingerprint"]) == 64


def test_what_is_done_is_not_run_again_and_a_changed_spec_runs_what_is_new(
    write_features, write_spec, spec_text, results
):
    write_features()
    run(read_spec(write_spec()), results)
    before = (results / "toy.jsonl").read_bytes()
    again = run(read_spec(write_spec()), results)
    assert (again.counts, again.known) == ({}, 12)
    assert (results / "toy.jsonl").read_bytes() == before
    wider = write_spec(spec_text.replace("shots = [2, 4]", "shots = [2, 4, 8]"))
    assert (lambda it: (it.counts["done"], it.known))(run(read_spec(wider), results)) == (6, 12)
    changed = spec_text.replace('label = "Tip"', 'label = "Tip"\noptions = { beta = 3.0 }')
    assert (lambda it: (it.counts["done"], it.known))(
        run(read_spec(write_spec(changed)), results)
    ) == (4, 8)
    assert (results / "toy.jsonl").read_bytes().startswith(before)


def test_other_data_under_the_same_name_runs_anew(write_features, write_spec, results):
    write_features()
    run(read_spec(write_spec()), results)
    write_features(seed=1)
    assert run(read_spec(write_spec()), results).counts["done"] == 12


def test_experiments_in_one_folder_share_their_rows(write_features, write_spec, spec_text, results):
    write_features()
    run(read_spec(write_spec()), results)
    renamed = spec_text.replace('name = "toy"', 'name = "other"').replace('"Tip"', '"T"')
    outcome = run(read_spec(write_spec(renamed, name="other")), results)
    assert (outcome.counts, outcome.known) == ({}, 12)
    assert {row["label"] for row in rows_in(results, "other")} == {"ZS", "T", "GPCache"}


PROGRAM = """
import sys
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import read_spec
run(read_spec(sys.argv[1]), sys.argv[2])
"""
# A process that is started anew imports the program.
GUARD = '\nif __name__ == "__main__":\n    run'


def test_a_killed_run_goes_on_and_gives_the_same_rows(
    write_features, write_spec, spec_text, results, tmp_path
):
    write_features()
    many = spec_text.replace("seeds = [1, 2]", "seeds = [1, 2, 3, 4, 5, 6]")
    path = write_spec(many)
    command = [sys.executable, "-c", PROGRAM, str(path), str(results)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    file = results / "toy.jsonl"
    end = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < end:
        if file.exists() and file.read_bytes().count(b"\n") >= 5:
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(read_rows(file))
    assert 5 <= done < 36
    # The moment of the kill rarely tears a line: tear one as a power cut would.
    with file.open("ab") as stream:
        stream.write(b'{"key": "0123')
    outcome = run(read_spec(path), results)
    assert (outcome.known, outcome.counts["done"]) == (done, 36 - done)
    assert "was torn" in outcome.notices[0]
    run(read_spec(path), tmp_path / "whole")
    assert rows_in(results) == rows_in(tmp_path / "whole")


def test_several_processes_give_the_rows_of_one(write_features, write_spec, spec_text, results):
    write_features()
    write_features("abroad", seed=0, test=9)
    text = spec_text.replace("shots = ", 'tests = ["abroad.npz"]\nshots = ')
    text += '\n[[methods]]\nname = "calip"\n'
    path = write_spec(text)
    alone = run(read_spec(path), results)
    together = run(read_spec(path), results.with_name("together"), jobs=2)
    assert together.counts == alone.counts == {"done": 24, "not possible": 8}

    def ordered(folder):
        return sorted(rows_in(folder), key=lambda row: (row["key"], row["test"]))

    assert ordered(results.with_name("together")) == ordered(results)
    assert run(read_spec(path), results.with_name("together"), jobs=2).known == 24


def is_running(process_id):
    """Whether a process computes: a dead one that nobody has asked about is a zombie."""
    stat = Path(f"/proc/{process_id}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")
def test_workers_of_a_killed_run_end(write_features, write_spec, spec_text, results):
    write_features()
    path = write_spec(spec_text.replace("seeds = [1, 2]", f"seeds = {list(range(200))}"))
    program = PROGRAM.replace("sys.argv[2])", "sys.argv[2], jobs=2)").replace("\nrun", GUARD)
    script = results.with_name("program.py")
    script.write_text(program)
    command = [sys.executable, str(script), str(path), str(results)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    end = time.monotonic() + 300
    while time.monotonic() < end and not rows_in(results):
        time.sleep(0.05)
    task = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    children = task.read_text().split()
    assert len(children) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    while time.monotonic() < end and any(map(is_running, children)):
        time.sleep(0.05)
    assert not any(map(is_running, children))


def test_what_cannot_run_is_noted_and_the_rest_goes_on(
    write_features, write_spec, spec_text, results
):
    write_features(text=False)
    broken = spec_text + '\n[[methods]]\nname = "gda"\noptions = { alpha = -1.0 }\n'
    broken += "".join(f'\n[[methods]]\nname = "{name}"\n' for name in ("calip", "coop", "timo"))
    outcome = run(read_spec(write_spec(broken)), results)
    assert outcome.counts == {"done": 8, "not possible": 16, "failed": 4}
    why = {row["label"]: row.get("why") for row in rows_in(results)}
    assert why["ZS"] == "needs text of every class"
    assert why["calip"] == "needs spatial features"
    assert why["coop"] == "needs a text encoder"
    assert why["timo"] == "needs a vector of every prompt"
    assert "alpha of GDAClassifier must be" in why["gda"]
    size = (results / "toy.jsonl").stat().st_size
    assert run(read_spec(write_spec(broken)), results).known == 8
    assert (results / "toy.jsonl").stat().st_size == size


def test_a_data_set_that_cannot_be_opened_costs_only_itself(
    write_features, write_spec, spec_text, results, tmp_path
):
    write_features()
    text = spec_text.replace('["toy.npz"]', '["oxford_pets", "toy.npz"]')
    outcome = run(read_spec(write_spec(text)), results, root=tmp_path / "empty")
    assert outcome.counts == {"done": 12, "failed": 1}
    assert next(iter(outcome.reasons)).startswith("The data set oxford_pets was not opened: ")


@pytest.mark.parametrize("key", ["datasets", "tests"])
def test_an_unknown_data_set_is_refused_before_anything_runs(
    key, write_features, write_spec, spec_text, results
):
    write_features()
    given = f'{key} = ["oxford_pet"]\nshots = '
    text = spec_text.replace('datasets = ["toy.npz"]\n', "") if key == "datasets" else spec_text
    path = write_spec(text.replace("shots = ", given))
    with pytest.raises(DataError) as error:
        run(read_spec(path), results)
    start = f"In the spec {path}, {key} names 'oxford_pet' (did you mean 'oxford_pets'?), which is"
    assert str(error.value).startswith(start)
    assert "imagenet, " in str(error.value)
    assert not results.exists()


def test_paths_are_found_below_the_root_too(write_features, write_spec, results, tmp_path):
    place = write_features()
    (tmp_path / "data").mkdir()
    place.rename(tmp_path / "data" / place.name)
    outcome = run(read_spec(write_spec()), results, root=tmp_path / "data")
    assert outcome.counts == {"done": 12}


def test_models_are_tested_elsewhere_with_the_numbers_of_home(
    write_features, write_spec, spec_text, results
):
    write_features()
    write_features("abroad", seed=0, test=9)
    text = spec_text.replace("shots = ", 'tests = ["abroad.npz"]\nshots = ')
    assert run(read_spec(write_spec(text)), results).counts["done"] == 24
    rows = rows_in(results)
    home, abroad = ([row for row in rows if row["test"] == test] for test in ("toy", "abroad"))
    assert [row["hyper_parameters"] for row in home] == [row["hyper_parameters"] for row in abroad]
    assert {row["n_test"] for row in abroad} == {36}


def test_a_ready_made_draw_runs_once(write_features, write_spec, spec_text, results):
    write_features(train2=2, train4=4, val=6, test=10)
    run(read_spec(write_spec(spec_text)), results)
    assert {(row["shots"], row["seed"], row["draw"]) for row in rows_in(results)} == {
        (2, 1, "ready-made"),
        (4, 1, "ready-made"),
    }


LINES = """
name = "toy"
datasets = ["toy.npz"]
shots = [4]
seeds = [1]
[[methods]]
name = "gpcache"
preset = "paper"
options = { precision = "nystrom", n_landmarks = "2c" }
[[methods]]
name = "gpcache"
label = "identity"
preset = "paper"
options = { precision = "nystrom", n_landmarks = "2c" }
projection = "{encoder}.gpp"
[[methods]]
name = "gpcache"
label = "foreign"
projection = "foreign.gpp"
[[methods]]
name = "gpcache"
label = "missing"
projection = "missing.gpp"
[[methods]]
name = "task-res"
projection = "{encoder}.gpp"
"""


def test_multiples_of_classes_and_projections(write_features, write_spec, results, tmp_path):
    fingerprint = sha256_of_file(write_features())
    identity = SimilarityProjection((torch.zeros(16, 16),))
    facts = ProjectionFacts("contrastive", "x", fingerprint, images=1, views=1, change=0.0)
    save_projection(tmp_path / "stored features.gpp", identity, facts)
    save_projection(tmp_path / "foreign.gpp", identity, replace(facts, fingerprint="other"))
    run(read_spec(write_spec(LINES)), results)
    rows = {row["label"]: row for row in rows_in(results)}
    assert rows["gpcache"]["options"]["n_landmarks"] == 8
    # φ = identity changes nothing but the key, which knows of the projection.
    assert rows["identity"]["correct"] == rows["gpcache"]["correct"]
    assert rows["identity"]["key"] != rows["gpcache"]["key"]
    assert len(rows["identity"]["projection"]) == 64
    for label, why in {
        "foreign": "is of another encoder",
        "missing": "there is no projection",
        "task-res": "takes no projection",
    }.items():
        assert rows[label]["status"] == "not possible"
        assert why in rows[label]["why"]


# Protocols.


def labelled(count, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(["a", "b", "c"], count)
    return Labelled(generator.standard_normal((len(labels), 4)).astype(np.float32), labels)


@pytest.mark.parametrize(("shots", "each"), [(1, 1), (4, 4), (16, 4)])
def test_small_validation_is_a_seeded_part_of_the_whole(shots, each):
    whole = labelled(9)
    task = SimpleNamespace(name="d", validation=whole, test=labelled(5, 1))

    def drawn(seed):
        return rows_to_choose_on("min(k,4) validation", task, None, shots, seed)

    found = drawn(3)
    assert np.unique(found.labels, return_counts=True)[1].tolist() == [each] * 3
    assert {tuple(row) for row in found.features} <= {tuple(row) for row in whole.features}
    assert np.array_equal(found.features, drawn(3).features)
    assert not np.array_equal(found.features, drawn(4).features)


def test_legacy_is_refused_outside_imagenet_and_unless_asked_for(
    write_features, write_spec, spec_text, results
):
    write_features()
    spec = read_spec(write_spec(spec_text.replace("full validation", "legacy")))
    with pytest.raises(ProtocolError, match="--legacy"):
        run(spec, results)
    with pytest.raises(ProtocolError, match=r"refused on 'toy\.npz'"):
        run(spec, results, legacy=True)
    assert not results.exists()
    task = SimpleNamespace(name="imagenet", validation=labelled(4), test=labelled(5))
    assert rows_to_choose_on("legacy", task, None, 1, 0) is task.test
    other = SimpleNamespace(name="dtd", validation=None, test=labelled(5))
    with pytest.raises(ProtocolError, match="refused on 'dtd'"):
        rows_to_choose_on("legacy", other, None, 1, 0)


def test_without_validation_rows_training_rows_that_are_no_shots_serve(write_features, tmp_path):
    path = write_features(train=12, test=5)
    task = open_task(path.name, lambda: None, folder=tmp_path, root=None, cache=tmp_path, wanted=[])
    drawn = task.draw(4, 1)
    assert np.unique(drawn.spare.labels, return_counts=True)[1].tolist() == [4] * 4
    shots = {tuple(row) for row in drawn.shots.features}
    assert not shots & {tuple(row) for row in drawn.spare.features}


# Photos.


def test_photos_are_encoded_once_and_only_those_that_are_drawn(encoder, write_photos, tmp_path):
    folder = write_photos()
    calls = []

    def opened(wanted):
        def counted():
            calls.append(len(list((tmp_path / "cache").rglob("*.safetensors"))))
            return encoder

        return open_task(
            str(folder), counted, folder=tmp_path, root=None, cache=tmp_path / "cache",
            wanted=wanted,
        )  # fmt: skip

    task = opened([(2, 1)])
    drawn = task.draw(2, 1)
    assert drawn.shots.features.shape == (6, encoder.dim)
    assert drawn.spare.features.shape == (12, encoder.dim)
    assert task.test.features.shape == (15, encoder.dim)
    names = sorted(path for path in (folder / "test").rglob("*.png"))
    assert np.allclose(task.test.features, encoder.encode_images(names), atol=1e-5)
    # Keys are means of ten views, so not the centre view of the same photo.
    again = opened([(2, 1)])
    assert np.array_equal(again.draw(2, 1).shots.features, drawn.shots.features)
    assert calls[0] == 0
    shards = list((tmp_path / "cache").rglob("*.safetensors"))
    opened([(2, 1)])
    assert list((tmp_path / "cache").rglob("*.safetensors")) == shards


def test_another_photo_under_the_same_name_is_other_content(encoder, write_photos, tmp_path):
    folder = write_photos()

    def opened():
        return open_task(
            str(folder), lambda: encoder, folder=tmp_path, root=None, cache=tmp_path / "cache",
            wanted=[(2, 1)],
        )  # fmt: skip

    def content(task):
        return task.content, Sample(task, "full validation", 2, 1).content

    task = opened()
    before = content(task)
    assert content(opened()) == before
    drawn = draw_shots(task.pool.labels.tolist(), task.pool.names, 2, 1).indices
    shot = folder / task.pool.names[drawn[0]]
    shot.write_bytes((folder / "test" / "red" / "0.png").read_bytes())
    test, shots = content(opened())
    assert test == before[0]
    assert shots != before[1]
    asked = folder / "test" / "green" / "0.png"
    asked.write_bytes((folder / "test" / "blue" / "0.png").read_bytes())
    assert content(opened())[0] != before[0]


def test_text_that_comes_later_is_other_content(write_features, tmp_path):
    def content(text):
        path = write_features(text=text)
        return open_task(
            path.name, lambda: None, folder=tmp_path, root=None, cache=tmp_path, wanted=[]
        ).content

    assert content(text=False) != content(text=True)


def test_rows_say_where_other_rows_serve_as_validation(
    write_features, write_spec, spec_text, results
):
    write_features(train=12, test=5)
    both = spec_text.replace('["full validation"]', '["full validation", "no validation"]')
    run(read_spec(write_spec(both)), results)
    noted = {(row["protocol"], len(row["notes"])) for row in rows_in(results)}
    assert noted == {("full validation", 1), ("no validation", 0)}
    assert "training rows that are not shots" in rows_in(results)[0]["notes"][0]


def test_a_corrupt_photo_is_named(encoder, write_photos, tmp_path):
    folder = write_photos()
    bad = folder / "test" / "blue" / "3.png"
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(DataError, match=r"test/blue/3\.png"):
        open_task(
            str(folder), lambda: encoder, folder=tmp_path, root=None, cache=tmp_path / "cache",
            wanted=[(2, 1)],
        )  # fmt: skip


def test_rows_are_json_without_nan(write_features, write_spec, results):
    write_features()
    run(read_spec(write_spec()), results)

    def refuse(constant):
        raise AssertionError(constant)

    for line in (results / "toy.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
