"""The result pages: made of the rows that lie beside them, and never at odds with each other."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def modules():
    """`results` and `row_files`, which are programs of the repository, not of the package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import results
        import row_files

        yield results, row_files
    finally:
        sys.path.remove(str(BENCHMARKS))


def row(**changes):
    place = {"protocol": "no validation", "encoder": "stored features", "dataset": "dtd_rn50"}
    place |= {"test": "dtd_rn50", "shots": 4, "seed": 0, "label": "GPCache", "method": "gpcache"}
    figures = {"status": "done", "accuracy": 0.5, "nll": 1.0, "ece": 0.1, "seconds": 2.0}
    made = {"n_test": 100, "versions": {"gpcache": "1.0", "source": "abc"}, "aurc": 0.25}
    return {"key": "k" * 64, **place, **figures, **made, **changes}


def test_the_pages_are_those_of_the_rows(modules):
    """`make results` renews them."""
    assert modules[0].problems() == []


def test_there_are_at_most_eight_pages_and_every_one_is_in_the_index():
    place = ROOT / "docs" / "results"
    pages = {page.name for page in place.rglob("*.md")} - {"index.md"}
    assert len(pages) <= 8
    index = (place / "index.md").read_text()
    assert all(f"({page})" in index for page in pages)


def test_rows_are_appended_once_and_the_last_of_a_cell_counts(modules, tmp_path):
    row_files = modules[1]
    run = tmp_path / "toy.jsonl"
    run.write_text(json.dumps(row()) + "\n")
    rows = tmp_path / "rows"
    for _ in range(2):
        row_files.append([run], rows)
    found = row_files.read(rows / "toy.csv")
    assert len(found) == 1
    assert (found[0]["accuracy"], found[0]["version"], found[0]["aurc"]) == (0.5, "1.0", 0.25)
    run.write_text(json.dumps(row(accuracy=0.75)) + "\n")
    row_files.append([run], rows)
    assert [one["accuracy"] for one in row_files.read(rows / "toy.csv")] == [0.75]
    with (rows / "toy.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2
    assert row_files.known_keys("toy", folder=rows) == {"k" * row_files.KEY_LENGTH}


def test_two_specs_with_different_figures_for_one_cell_are_found(modules, tmp_path):
    results, row_files = modules
    for name, accuracy in (("one", 0.5), ("two", 0.5), ("three", 0.6)):
        run = tmp_path / f"{name}.jsonl"
        run.write_text(json.dumps(row(accuracy=accuracy)) + "\n")
        row_files.append([run], tmp_path / "rows")
    (found,) = results.contradictions(tmp_path / "rows")
    assert "show 0.5 / 0.1 and 0.6 / 0.1" in found
    (tmp_path / "rows" / "three.csv").unlink()
    assert results.contradictions(tmp_path / "rows") == []


def test_a_page_with_rows_of_two_versions_is_found(modules, tmp_path):
    results, row_files = modules
    for name, version in (("coverage", "1.0"), ("rejection", "1.1")):
        run = tmp_path / f"{name}.jsonl"
        run.write_text(json.dumps(row(versions={"gpcache": version, "source": "abc"})) + "\n")
        row_files.append([run], tmp_path / "rows")
    expected = ["calibration.md shows rows of the versions 1.0 and 1.1"]
    assert results.contradictions(tmp_path / "rows") == expected


def test_every_spec_is_on_a_page(modules):
    shown = {spec for _, _, specs, _ in modules[0].PAGES.values() for spec in specs}
    # features.toml draws a figure and has no rows.
    assert shown == {path.stem for path in (BENCHMARKS / "shared").glob("*.toml")} - {"features"}


def test_a_page_that_was_changed_by_hand_is_found(modules, monkeypatch):
    results = modules[0]
    pages = dict(results.generated())
    page = ROOT / "docs" / "results" / "headline.md"
    monkeypatch.setattr(results, "generated", lambda: pages | {page: "other"})
    assert results.problems() == [
        "docs/results/headline.md is not what `make results` writes: run it"
    ]


def test_rows_are_computed_without_pydantic(write_features, write_spec, tmp_path):
    write_features()
    plan = tmp_path / "plan.json"
    program = [sys.executable, str(BENCHMARKS / "run_spec.py")]
    subprocess.run([*program, str(write_spec()), "--plan", str(plan)], check=True)
    code = (
        "import sys, runpy\n"
        "absent = ['pydantic', 'jinja2', 'rich', 'timm', 'typer', 'matplotlib']\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        f"sys.argv = ['run_spec.py', {str(plan)!r}, '-o', {str(tmp_path / 'out')!r}, '--device', "
        f"'cpu', '--root', {str(tmp_path)!r}]\n"
        f"runpy.run_path({str(BENCHMARKS / 'run_spec.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len((tmp_path / "out" / "toy.jsonl").read_text().splitlines()) == 12
