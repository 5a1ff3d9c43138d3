"""`gpcache benchmark`: from a spec to rows, tables and figures; its other commands."""

import json

import numpy as np
import pytest

SPEC = """
name = "toy"
title = "A toy"
datasets = ["toy.npz"]
shots = [2, 4]
seeds = [1]
[[methods]]
name = "gda"
label = "GDA"
[[methods]]
name = "tip-adapter"
label = "Tip"
"""


@pytest.fixture
def spec(tmp_path):
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((3, 8))
    arrays = {"classnames": np.array(["ant", "bee", "cat"]), "text": centres}
    for part, count in {"train": 8, "val": 5, "test": 10}.items():
        labels = np.repeat(np.arange(3), count)
        arrays[f"{part}_x"] = centres[labels] + generator.standard_normal((len(labels), 8))
        arrays[f"{part}_y"] = labels
    np.savez(tmp_path / "toy.npz", **arrays)
    (tmp_path / "toy.toml").write_text(SPEC)
    return tmp_path / "toy.toml"


def test_a_spec_runs_and_the_same_command_goes_on(run, spec, tmp_path):
    results = tmp_path / "results"
    code, out, err = run("benchmark", spec, "-o", results)
    assert (code, err) == (0, "")
    assert out == (f"{results}/toy.jsonl: 4 run now, 0 known before, 0 not possible, 0 failed.\n")
    code, out, _ = run("benchmark", "run", spec, "-o", results, "--json")
    found = json.loads(out)
    assert (code, found["done"], found["known"], found["failed"]) == (0, 0, 4, 0)


def test_tables_and_figures_are_made_of_results(run, spec, tmp_path):
    results = tmp_path / "results"
    run("benchmark", spec, "-o", results)
    code, out, err = run("benchmark", "tables", results)
    assert code == 0
    assert "## A toy: full validation, stored features, 2 shots" in out
    assert "| GDA |" in out
    assert "5 tables are in" in err
    assert (results / "tables" / "toy.md").exists()
    tables = json.loads(run("benchmark", "tables", results, "--json")[1])
    assert tables[0]["header"][:2] == ["method", "toy"]
    code, out, _ = run("benchmark", "figures", results, "-o", tmp_path / "figures")
    assert code == 0
    assert len(out.splitlines()) == 2
    assert sorted(path.suffix for path in (tmp_path / "figures").iterdir()) == [".png", ".svg"]


def test_a_failed_cell_ends_with_one_and_its_reason(run, spec, tmp_path):
    spec.write_text(SPEC + "options = { beta = -3.0 }\n")
    code, out, err = run("benchmark", spec, "-o", tmp_path / "results")
    assert code == 1
    assert "2 run now" in out
    assert "2 failed" in out
    assert "Tip on toy: beta of TipAdapterClassifier must be" in err
    assert err.endswith("(2×)\n")


def test_mistakes_are_one_sentence(mistake, spec, tmp_path):
    spec.write_text("colour = 1\n" + SPEC)
    assert "colour is not known" in mistake("benchmark", spec, "-o", tmp_path / "r")
    spec.write_text(SPEC + "options = { speed = 3 }\n")
    assert "methods[2].options.speed" in mistake("benchmark", spec, "-o", tmp_path / "r")
    spec.write_text(SPEC.replace("toy.npz", "nodata"))
    assert "datasets names 'nodata'" in mistake("benchmark", spec, "-o", tmp_path / "r")
    spec.write_text(SPEC)
    chosen = ("--dataset", "oxford_pet")
    sentence = mistake("benchmark", spec, "-o", tmp_path / "r", *chosen)
    assert "--dataset names 'oxford_pet' (did you mean 'oxford_pets'?)" in sentence
    assert "cannot be read" in mistake("benchmark", "none.toml", "-o", tmp_path / "r")
    assert "holds no results" in mistake("benchmark", "tables", tmp_path)
    assert "no experiment 'x'" in mistake("benchmark", "paper", "--experiment", "x")
    spec.write_text(SPEC.replace("shots", 'protocols = ["legacy"]\nshots'))
    assert "--legacy" in mistake("benchmark", spec, "-o", tmp_path / "r")


def test_another_data_set_takes_the_place_of_the_specs(run, spec, tmp_path):
    other = tmp_path / "elsewhere" / "other.npz"
    other.parent.mkdir()
    other.write_bytes((tmp_path / "toy.npz").read_bytes())
    results = tmp_path / "results"
    run("benchmark", spec, "-o", results, "--dataset", other)
    rows = [json.loads(line) for line in (results / "toy.jsonl").read_text().splitlines()]
    assert {row["dataset"] for row in rows} == {"other"}
    assert "| GDA |" in run("benchmark", "tables", results)[1]


def test_the_experiments_of_the_paper_are_listed_and_drawn(run, tmp_path):
    code, out, _ = run("benchmark", "paper", "--list")
    assert code == 0
    assert {"few-shot", "shots", "modules", "approximations", "backbones"} <= {
        line.split()[0] for line in out.splitlines()
    }
    titles = json.loads(run("benchmark", "paper", "--json")[1])
    assert titles["weight-function"] == "Weight function in one dimension"
    code, out, _ = run(
        "benchmark", "paper", "--experiment", "weight-function", "-o", tmp_path / "r"
    )
    assert code == 0
    assert (tmp_path / "r" / "figures" / "weight-function.png").exists()


def test_data_sets_that_are_missing_are_said_with_their_publisher(run, tmp_path):
    code, out, _ = run("benchmark", "datasets", "--root", tmp_path)
    assert code == 0
    assert out.count("missing") >= 13
    assert "https://www.robots.ox.ac.uk/~vgg/data/pets" in out
    found = json.loads(run("benchmark", "datasets", "--root", tmp_path, "--json")[1])
    pets = next(one for one in found if one["name"] == "oxford_pets")
    assert (pets["state"], pets["known"]["test"], pets["counts"]) == ("missing", 3669, None)


def test_own_photos_need_one_command(run, write_shapes, tmp_path):
    for part, count, seed in (("train", 3, 1), ("test", 2, 2)):
        write_shapes(tmp_path / "photos" / part, count, seed)
    spec = tmp_path / "own.toml"
    spec.write_text(
        'datasets = ["photos"]\nencoders = ["lite"]\nshots = 1\nseeds = [1]\n'
        '[[methods]]\nname = "gpcache"\n[[methods]]\nname = "zero-shot"\n'
    )
    code, out, _ = run("benchmark", spec, "-o", tmp_path / "results")
    assert code == 0
    assert "2 run now" in out
    row = json.loads((tmp_path / "results" / "own.jsonl").read_text().splitlines()[0])
    assert (row["encoder"], row["n_shots"], row["n_test"]) == ("lite", 3, 6)
    (tmp_path / "photos" / "test" / "circle" / "0.png").write_bytes(b"x")
    code, _, err = run("benchmark", spec, "-o", tmp_path / "results")
    assert code == 1
    assert "circle/0.png" in err
