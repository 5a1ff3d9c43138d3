"""Tables: every number is one of the rows, protocols never meet, published numbers stand beside."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from gpcache.benchmark.comparison import Comparison, comparisons_of
from gpcache.benchmark.output import paper_specs, write_tables
from gpcache.benchmark.published import published
from gpcache.benchmark.rows import packed
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import Claim, MethodSpec, Spec, read_spec
from gpcache.benchmark.tables import tables_of
from gpcache.errors import DataError, ProtocolError

LINES = {"tip-adapter": "Tip-Adapter", "gpcache": "GPCache"}


@pytest.fixture
def spec(tmp_path):
    methods = tuple(MethodSpec(name, label, published=name) for name, label in LINES.items())
    return Spec(
        "x",
        "Title",
        tmp_path / "x.toml",
        tmp_path,
        datasets=("dtd", "eurosat"),
        methods=methods,
        shots=(16,),
    )


def row(label, dataset, accuracy, *, seed=1, status="done", n=200, **more):
    correct = np.arange(n) < accuracy * n
    found = {
        "key": f"{label} {dataset} {seed}", "status": status, "reference": dataset,
        "dataset": dataset, "test": dataset, "encoder": "clip-rn50", "label": label,
        "protocol": "full validation", "shots": 16, "seed": seed, "accuracy": accuracy,
        "validation_accuracy": 0.5, "held_out_accuracy": None, "nll": 1.0, "ece": 0.05,
        "seconds": 2.0, "device": "cpu", "notes": [], "n_test": n, "correct": packed(correct),
    }  # fmt: skip
    return found | more


@pytest.fixture
def rows():
    accuracies = {"Tip-Adapter": (0.60, 0.70), "GPCache": (0.70, 0.84)}
    return [
        row(label, dataset, accuracy + 0.01 * seed, seed=seed)
        for label, pair in accuracies.items()
        for dataset, accuracy in zip(("dtd", "eurosat"), pair, strict=True)
        for seed in (1, 2)
    ]


def cells(table, line):
    return dict(zip(table.header, next(r for r in table.rows if r[0] == line), strict=True))


def test_cells_are_means_and_deviations_of_the_rows(spec, rows):
    table = tables_of(spec, rows)[0]
    found = cells(table, "GPCache")
    assert table.title == "Title: full validation, clip-rn50, 16 shots"
    assert found["DTD"] == f"{71.5:.2f} ± {np.std([71, 72], ddof=1):.2f}"
    assert found["EuroSAT"] == "85.50 ± 0.71"
    assert found["mean"] == "78.50 ± 0.71"
    assert (found["rank"], cells(table, "Tip-Adapter")["rank"]) == ("1.0", "2.0")
    assert (found["validation"], found["NLL"], found["ECE"]) == ("50.00", "1.000", "5.00")
    assert "full validation" in table.notes[0]


def test_the_published_number_and_the_difference_stand_below(spec, rows):
    table = tables_of(replace(spec, published="few_shot"), rows)[0]
    paper = published("few_shot")
    place = [r[0] for r in table.rows].index("GPCache")
    ours, theirs, gaps = (dict(zip(table.header, r, strict=True)) for r in table.rows[place:][:3])
    assert theirs["method"] == "GPCache, published"
    assert theirs["DTD"] == f"{paper.value('gpcache', 'dtd'):.2f}"
    assert gaps["EuroSAT"] == f"+{85.5 - paper.value('gpcache', 'eurosat'):.2f}"
    assert ours["mean"] == "78.50 ± 0.71"


@pytest.mark.parametrize("change", [{"encoder": "lite"}, {"shots": 8}])
def test_published_numbers_stand_beside_their_own_setting_only(spec, rows, change):
    wider = replace(spec, published="few_shot", shots=(8, 16))
    table = tables_of(wider, [one | change for one in rows])[0]
    assert [r[0] for r in table.rows] == ["Tip-Adapter", "GPCache"]


def test_a_known_error_of_the_paper_is_marked(spec, rows):
    extra = [row(label, "stanford_cars", 0.66, seed=seed) for label in LINES.values()
             for seed in (1, 2)]  # fmt: skip
    table = tables_of(replace(spec, published="few_shot"), rows + extra)[0]
    assert cells(table, "Tip-Adapter, published")["StanfordCars"] == "74.10✗"
    assert any(note.startswith("✗ Tip-Adapter, StanfordCars: ") for note in table.notes)


def test_a_published_mean_needs_all_data_sets(spec, rows):
    eleven = replace(
        spec, published="few_shot", datasets=read_spec(paper_specs()["few-shot"]).datasets
    )
    assert cells(tables_of(eleven, rows)[0], "GPCache, published")["mean"] == "–"


def test_approximations_stand_beside_published_accuracy_and_time(spec):
    method = MethodSpec("gpcache", "groups", published="grouped g=8")
    one = replace(spec, datasets=("imagenet",), methods=(method,), published="approximations")
    table = tables_of(one, [row("groups", "imagenet", 0.65)])[0]
    found = cells(table, "groups, published")
    assert (found["ImageNet"], found["fit s"]) == ("64.28", "114")
    assert cells(table, "difference")["ImageNet"] == "+0.72"


def test_a_published_mean_is_not_taken_for_a_data_set(spec, rows):
    lines = tuple(replace(method, published="B") for method in spec.methods)
    table = tables_of(replace(spec, methods=lines, published="modules"), rows)[0]
    found = cells(table, "Tip-Adapter, published")
    assert (found["DTD"], found["EuroSAT"], found["mean"]) == ("–", "–", "70.35")


def test_protocols_do_not_meet_in_a_table(spec, rows):
    both = replace(spec, protocols=("full validation", "no validation"))
    other = [one | {"protocol": "no validation", "accuracy": 0.1} for one in rows]
    titles = [table.title for table in tables_of(both, rows + other)]
    assert "Title: full validation, clip-rn50, 16 shots" in titles
    assert "Title: no validation, clip-rn50, 16 shots" in titles
    for one in comparisons_of(both, rows + other):
        found = {r["protocol"] for cell in one.cells.values() for r in cell.values()}
        assert found == {one.protocol}
    with pytest.raises(ProtocolError, match="one protocol, got 'full validation', 'no validation'"):
        Comparison.of(rows + other, list(LINES.values()))


def test_what_did_not_run_is_a_dash_and_a_note(spec, rows):
    kept = [one for one in rows if (one["label"], one["dataset"]) != ("Tip-Adapter", "dtd")]
    kept.append(row("Tip-Adapter", "dtd", 0, status="not possible", why="it needs text"))
    table = tables_of(spec, kept)[0]
    found = cells(table, "Tip-Adapter")
    assert (found["DTD"], found["mean"], found["NLL"]) == ("–", "–", "–")
    assert found["EuroSAT"] == "71.50 ± 0.71"
    assert "Tip-Adapter on DTD: it needs text." in table.notes


def test_a_reason_stands_once_under_a_table(spec, rows):
    missing = {"status": "not possible", "accuracy": None}
    calip = [
        row("CALIP", dataset, 0, seed=seed) | missing | {"why": "needs spatial features"}
        for dataset in ("dtd", "eurosat", "food101")
        for seed in (1, 2)
    ]
    no_draw = [
        row(label, "food101", 0) | missing | {"why": "there is no draw"} for label in LINES.values()
    ]
    broken = row("", "ucf101", 0) | {"status": "failed", "why": "It is not there."}
    methods = (*spec.methods, MethodSpec("calip", "CALIP"))
    table = tables_of(replace(spec, methods=methods), [*rows, *calip, *no_draw, broken])[0]
    assert [note for note in table.notes if "Accuracy in" not in note and "*fit" not in note] == [
        "The data set ucf101 was not opened: It is not there.",
        "CALIP: needs spatial features.",
        "All other lines on Food101: there is no draw.",
    ]


def test_the_order_in_which_rows_came_means_nothing(spec, rows):
    assert tables_of(spec, rows[::-1]) == tables_of(spec, rows)


def test_the_last_row_of_a_cell_counts_and_foreign_lines_stay_out(spec, rows):
    later = [row("GPCache", "dtd", 0.9, seed=1), row("Gone", "dtd", 0.99)]
    table = tables_of(spec, rows + later)[0]
    assert cells(table, "GPCache")["DTD"] == f"{81:.2f} ± {np.std([90, 72], ddof=1):.2f}"
    assert "Gone" not in [r[0] for r in table.rows]


def test_significance_is_against_the_best(spec, rows):
    table = tables_of(spec, rows)[1]
    assert table.header[1] == "minus GPCache"
    assert table.rows[0][:2] == ["Tip-Adapter", "−12.00"]
    assert table.rows[0][3] == "< 0.001"


def test_seeds_of_one_line_are_summed_up(spec):
    lines = tuple(
        MethodSpec("gpcache", f"g, {n}", varied={"random_state": n}, family="g") for n in range(3)
    )
    rows = [row(f"g, {n}", "dtd", 0.6 + 0.01 * n) for n in range(3)]
    tables = tables_of(replace(spec, methods=lines, datasets=("dtd",)), rows)
    table = next(one for one in tables if one.name.endswith("-seeds"))
    assert table.rows == [["g", "DTD", "3", "61.00 ± 1.00", "60.00", "62.00"]]


def test_times_say_on_which_device(spec, rows):
    rows[0]["device"] = "cuda"
    assert any("on cpu and cuda" in note for note in tables_of(spec, rows)[0].notes)


def test_means_by_shots_and_claims(spec, rows):
    claims = (
        Claim("GPCache", "Tip-Adapter", "GPCache leads", (8, 16)),
        Claim("Tip-Adapter", "GPCache", "Tip leads", (16,)),
    )
    eight = [one | {"shots": 8, "accuracy": one["accuracy"] - 0.1} for one in rows]
    wider = replace(spec, shots=(8, 16), claims=claims, published="shots")
    tables = {table.name: table for table in tables_of(wider, rows + eight)}
    summary = tables["x-full-validation-clip-rn50-shots"]
    assert cells(summary, "GPCache")["8"] == "68.50 ± 0.71"
    assert cells(summary, "Tip-Adapter, published")["16"] == "70.36"
    verdicts = tables["x-full-validation-clip-rn50-claims"].rows
    assert [(v[1], v[2]) for v in verdicts] == [
        ("8", "holds"),
        ("16", "holds"),
        ("16", "does not hold"),
    ]


def test_the_three_formats_hold_the_same_cells(spec, rows):
    table = tables_of(spec, rows)[0]
    found = list(csv.reader(io.StringIO(table.csv())))
    assert found == [list(table.header), *map(list, table.rows)]
    lines = [line for line in table.markdown().splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == found
    latex = table.latex()
    assert r"Tip-Adapter & 61.50 $\pm$ 0.71 & 71.50 $\pm$ 0.71" in latex
    assert r"\%" in latex


def test_latex_and_markdown_escape_what_would_steer_them(spec, rows):
    named = replace(spec, methods=(MethodSpec("gpcache", "50% & a_b|c"),))
    renamed = [one | {"label": "50% & a_b|c"} for one in rows if one["label"] == "GPCache"]
    table = tables_of(named, renamed)[0]
    assert r"50\% \& a\_b|c &" in table.latex()
    assert r"| 50% & a_b\|c |" in table.markdown()


def test_pages_begin_with_their_command(write_features, write_spec, tmp_path):
    write_features()
    command = "gpcache benchmark toy.toml -o r"
    run(read_spec(write_spec()), tmp_path / "results", command=command)
    tables = write_tables(tmp_path / "results", tmp_path / "tables", "gpcache benchmark tables r")
    page = (tmp_path / "tables" / "toy.md").read_text()
    made_by = f"Made by\n\n```sh\n{command}\ngpcache benchmark tables r\n```\n"
    assert page.startswith(f"# A toy\n\n{made_by}")
    assert (tmp_path / "tables" / "toy.tex").exists()
    assert all((tmp_path / "tables" / f"{table.name}.csv").exists() for table in tables)
    with pytest.raises(DataError, match="holds no results"):
        write_tables(tmp_path / "tables", tmp_path / "x", "c")
