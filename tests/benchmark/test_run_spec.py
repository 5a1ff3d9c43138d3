"""The program that runs specs on a machine without gpcache, typer and matplotlib."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpcache.benchmark.output import write_tables
from gpcache.benchmark.rows import read_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_spec(tmp_path):
    absent = tmp_path / "absent"
    absent.mkdir()
    for name in ("typer", "matplotlib"):
        (absent / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here')")
    paths = os.pathsep.join([str(absent), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment["GPCACHE_DEV_DATA"] = str(tmp_path / "data")

    def run(*words):
        program = [sys.executable, ROOT / "benchmarks" / "run_spec.py", *words]
        return subprocess.run(
            program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return run


def test_it_runs_goes_on_and_its_rows_make_tables(run_spec, write_features, write_spec, tmp_path):
    place = write_features()
    (tmp_path / "data").mkdir()
    place.rename(tmp_path / "data" / place.name)
    spec = write_spec()
    words = (spec.name, "-o", "results", "--device", "cpu")
    done = run_spec(*words, "--jobs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    rows = read_rows(tmp_path / "results" / "toy.jsonl")
    assert len(rows) == 12
    typed = "gpcache benchmark toy.toml -o results --root build/data --device cpu --jobs 2"
    assert {row["command"] for row in rows} == {typed}
    assert "12 known before" in run_spec(*words).stdout
    # Rows and spec in a folder are all that tables need.
    back = tmp_path / "back"
    back.mkdir()
    (back / "toy.jsonl").write_bytes((tmp_path / "results" / "toy.jsonl").read_bytes())
    (back / "toy.toml").write_bytes(spec.read_bytes())
    assert write_tables(back, tmp_path / "pages", "gpcache benchmark tables back")
    assert typed in (tmp_path / "pages" / "toy.md").read_text()


def test_a_mistake_is_one_sentence(run_spec, write_spec, spec_text):
    spec = write_spec(spec_text.replace("toy.npz", "nodata"))
    found = run_spec(spec.name, "-o", "results")
    assert found.returncode != 0
    assert found.stderr.startswith("In the spec ")
    assert found.stderr.count("\n") == 1
