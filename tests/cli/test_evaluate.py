"""`gpcache evaluate`: its figures are those of the answers that predict gives."""

import json
import math
import shutil

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def mixed(unseen, tmp_path):
    """Unseen photos, one of which lies in the wrong folder."""
    folder = shutil.copytree(unseen, tmp_path / "mixed")
    (folder / "circle" / "0.png").rename(folder / "square" / "stray.png")
    return folder


def test_the_figures_are_those_of_the_answers(run, model, mixed):
    code, out, err = run("evaluate", model, mixed, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    _, answers, _ = run("predict", model, mixed, "--json", "--top", "3")
    right, likelihood, bins = [], [], [[] for _ in range(15)]
    for answer in map(json.loads, answers.splitlines()):
        truth = answer["image"].split("/")[0]
        right.append(answer["label"] == truth)
        likelihood += [top["probability"] for top in answer["top"] if top["label"] == truth]
        bins[min(14, int(15 * answer["probability"]))].append((answer["probability"], right[-1]))
    ece = sum(abs(sum(p - hit for p, hit in group)) for group in bins) / len(right)
    assert found["n"] == len(right) == 9
    assert found["accuracy"] == pytest.approx(8 / 9) == pytest.approx(sum(right) / 9)
    assert found["nll"] == pytest.approx(-sum(map(math.log, likelihood)) / 9, abs=1e-6)
    assert found["ece"] == pytest.approx(ece, abs=1e-6)
    assert found["interval"][0] < 8 / 9 < found["interval"][1]
    assert found["per_class"]["square"] == {"n": 4, "recall": 0.75, "precision": 1.0}
    assert found["confusions"] == [{"truth": "square", "answer": "circle", "images": 1}]
    assert found["refused"] == []


def test_people_read_the_same(run, model, mixed):
    code, out, err = run("evaluate", model, mixed)
    assert (code, err) == (0, "")
    assert f"data         {mixed}, n = 9\n" in out
    assert "accuracy     88.9 % (95 % interval 56.5 – 98.0)\n" in out
    assert "confused     square → circle 1×\n" in out
    assert "rejected     " in out


def test_what_the_doubts_are_worth(run, model, mixed, tmp_path):
    noise = tmp_path / "noise"
    noise.mkdir()
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(noise / f"{seed}.png")
    options = ("--coverage", "0.33", "--unknown", noise, "--reject", "0.2")
    code, out, _ = run("evaluate", model, mixed, *options, "--json")
    found = json.loads(out)
    _, told, _ = run("predict", model, mixed, "--json", "--reject", "0.2")
    answers = sorted(map(json.loads, told.splitlines()), key=lambda one: -one["probability"])
    right = [one["label"] == one["image"].split("/")[0] for one in answers]
    assert code == 0
    assert found["accuracy_at_coverage"]["0.33"] == pytest.approx(np.mean(right[:3]))
    wrong = right.index(False)
    assert found["error_separation"]["auroc"] == pytest.approx(wrong / 8)
    _, told, _ = run("predict", model, noise, "--json", "--reject", "0.2")
    foreign = list(map(json.loads, told.splitlines()))
    assert found["unknown"]["n"] == 3
    assert found["unknown"]["rejected"] == sum(one["rejected"] for one in foreign)
    _, out, _ = run("evaluate", model, mixed, *options)
    share = f"{100 * np.mean(right[:3]):.1f}"
    assert f"of the most confident 33.0 % of the answers {share} % are right\n" in out
    assert "unknown      n = 3, " in out
    assert (
        f"selective    AURC {found['aurc']:.4f}; separating right answers from wrong ones: " in out
    )


def test_broken_images_are_listed_and_not_counted(run, model, broken, reasons):
    code, out, err = run("evaluate", model, broken, "--json")
    found = json.loads(out)
    assert (code, found["n"]) == (1, 6)
    assert {one["path"] for one in found["refused"]} == set(reasons)
    assert "4 refused:" in err
    assert run("evaluate", model, broken)[0] == 1


def test_a_list_names_the_images(run, model, unseen, tmp_path):
    folder = shutil.copytree(unseen, tmp_path / "photos")
    table = folder / "list.csv"
    table.write_text("path,label\ncircle/0.png,circle\nsquare/0.png,square\nsquare/no.png,square\n")
    code, out, err = run("evaluate", model, table, "--json")
    assert (code, json.loads(out)["n"]) == (1, 2)
    assert "square/no.png  there is no such file (row 4)" in err


def test_report_and_plots(run, model, mixed, tmp_path):
    pytest.importorskip("matplotlib")
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    code, out, _ = run("evaluate", model, mixed, "--report", page, "--plots", plots)
    assert code == 0
    assert f"report       {page}\n" in out
    assert f"plots        {plots}\n" in out
    assert "square/stray.png" in page.read_text(encoding="utf-8")
    assert {file.suffix for file in plots.iterdir()} == {".png", ".svg"}


@pytest.mark.parametrize(
    ("images", "options", "sentence"),
    [
        ("flat", [], "has no label to compare with: give class folders"),
        ("other", [], "'star', which is not a class of the model: it has 'circle', 'square'"),
        ("empty", [], "There is no image in"),
        ("good", ["--report", "{tmp}/no/report.html"], "make the folder"),
        ("good", ["--report", "{tmp}"], "is a folder: give the name of a file"),
    ],
)
def test_a_mistake_is_one_sentence(mistake, model, unseen, tmp_path, images, options, sentence):
    places = {name: tmp_path / name for name in ("flat", "other", "empty")} | {"good": unseen}
    shutil.copytree(unseen / "circle", places["flat"])
    shutil.copytree(unseen / "circle", places["other"] / "star")
    places["empty"].mkdir()
    given = (option.format(tmp=tmp_path) for option in options)
    assert sentence in mistake("evaluate", model, places[images], *given)


def test_a_model_of_text_alone_is_evaluated_too(run, text_model, unseen):
    code, out, _ = run("evaluate", text_model, unseen, "--json")
    found = json.loads(out)
    assert (code, found["n"], found["rejected"]) == (0, 9, 0)
    assert np.isfinite(found["nll"])
