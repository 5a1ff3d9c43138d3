"""Figures: what is drawn is what the rows say, and equal results give equal files."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from gpcache.benchmark.comparison import comparisons_of
from gpcache.benchmark.figures import (
    curves_figure,
    effect_figure,
    figures_of,
    projection_figure,
    ranks_figure,
    weight_functions,
    weights_figure,
)
from gpcache.benchmark.output import write_figures
from gpcache.benchmark.rows import read_rows
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import read_spec
from gpcache.benchmark.tables import tables_of
from gpcache.benchmark.task import Labelled
from gpcache.model.report.drawing import to_file
from gpcache.similarity import SimilarityProjection

TEXT = """
name = "toy"
title = "A toy"
datasets = ["toy.npz", "other.npz", "third.npz"]
shots = [2, 4]
seeds = [1, 2]
[[methods]]
name = "zero-shot"
label = "ZS"
[[methods]]
name = "tip-adapter"
label = "Tip"
[[methods]]
name = "gpcache"
label = "GP"
preset = "paper"
vary = { noise = [0.01, 1.0, 100.0] }
"""


@pytest.fixture
def results(write_features, write_spec, tmp_path):
    for seed, name in enumerate(("toy", "other", "third")):
        write_features(name, seed=seed)
    spec = read_spec(write_spec(TEXT))
    run(spec, tmp_path / "results")
    return spec, read_rows(tmp_path / "results" / "toy.jsonl"), tmp_path / "results"


def test_curves_effects_and_ranks_are_drawn_from_the_rows(results):
    spec, rows, _ = results
    names = [name for name, _ in figures_of(spec, rows)]
    start = "toy-full-validation-stored-features"
    assert names == [
        f"{start}-curves-training-free",
        f"{start}-2-noise",
        f"{start}-2-ranks",
        f"{start}-4-noise",
        f"{start}-4-ranks",
    ]
    comparisons = comparisons_of(spec, rows)
    figure = curves_figure(comparisons, spec.methods)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["mean of 3", "toy", "other", "third"]
    for axes, name in zip(figure.axes[1:], ("toy", "other", "third"), strict=True):
        drawn = {line.get_label(): line for line in axes.containers}["Tip"].lines[0].get_ydata()
        expected = [
            100 * np.mean([row["accuracy"] for row in rows if row["dataset"] == name
                           and row["label"] == "Tip" and row["shots"] == shots])
            for shots in (2, 4)
        ]  # fmt: skip
        assert drawn == pytest.approx(expected)
    effect = effect_figure(spec, comparisons[1], "noise")
    line = effect.axes[0].get_lines()[0]
    assert line.get_label() == "GP, validation"
    assert line.get_xdata().tolist() == [0.01, 1.0, 100.0]
    expected = [
        100 * np.mean([row["validation_accuracy"] for row in rows
                       if row["label"] == f"GP, noise = {noise}" and row["shots"] == 4])
        for noise in (0.01, 1.0, 100.0)
    ]  # fmt: skip
    assert line.get_ydata() == pytest.approx(expected)
    assert effect.axes[0].get_xlabel() == "σ², noise variance"


def test_the_mean_is_of_data_sets_that_have_all_numbers_of_shots(results):
    spec, rows, _ = results
    less = [row for row in rows if (row["dataset"], row["shots"]) != ("third", 2)]
    figure = curves_figure(comparisons_of(spec, less), spec.methods)
    assert figure.axes[0].get_title() == "mean of 2"
    drawn = {line.get_label(): line for line in figure.axes[0].containers}["Tip"].lines[0]
    expected = [
        100 * np.mean([row["accuracy"] for row in rows if row["dataset"] != "third"
                       and row["label"] == "Tip" and row["shots"] == shots])
        for shots in (2, 4)
    ]  # fmt: skip
    assert drawn.get_ydata() == pytest.approx(expected)
    by_shots = next(t for t in tables_of(spec, less) if "mean by shots" in t.title)
    assert by_shots.notes[0] == "Mean accuracy in % over toy, other."
    tip = next(row for row in by_shots.rows if row[0] == "Tip")
    assert [float(cell.split(" ")[0]) for cell in tip[1:]] == pytest.approx(expected, abs=0.005)


def test_files_are_pictures_and_the_same_each_time(results, tmp_path):
    _, _, folder = results
    files = write_figures(folder, tmp_path / "figures")
    assert {path.suffix for path in files} == {".png", ".svg"}
    again = write_figures(folder, tmp_path / "again")
    for one, other in zip(files, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    for path in files:
        if path.suffix == ".png":
            assert min(Image.open(path).size) > 200
        else:
            assert ElementTree.fromstring(path.read_bytes()).tag.endswith("svg")


def test_protocols_do_not_meet_in_a_figure(results):
    spec, rows, _ = results
    both = replace(spec, protocols=("full validation", "no validation"))
    other = [row | {"protocol": "no validation"} for row in rows]
    names = [name for name, _ in figures_of(both, rows + other)]
    assert len(names) == 10
    assert len({name for name in names if "no-validation" in name}) == 5


def test_no_name_of_the_ranks_covers_another():
    ranks = {f"a method with a long name {number}": 1.0 + 0.8 * number for number in range(9)}
    figure = ranks_figure(ranks, 11)
    figure.canvas.draw()
    words = [
        text.get_window_extent() for text in figure.axes[0].texts if "method" in text.get_text()
    ]
    assert len(words) == 9
    for row, one in enumerate(words):
        assert not any(one.overlaps(other) for other in words[row + 1 :])


def test_weights_are_those_of_the_posterior_and_of_the_kernel():
    x, plain, weighed = weight_functions(1.0)
    targets = np.sin(5 * x)
    kernel = np.exp(-100.0 * (x[:, None] - x) ** 2)
    mean = np.exp(-100.0 * (0.5 - x) ** 2) @ np.linalg.inv(kernel + np.eye(200)) @ targets
    assert weighed @ targets == pytest.approx(mean)
    assert (weighed < 0).any()
    assert (plain > 0).all()
    # With much noise the process weighs as the plain cache does.
    _, plain, weighed = weight_functions(1e9)
    assert weighed / weighed.max() == pytest.approx(plain / plain.max(), abs=1e-6)
    assert len(weights_figure().axes) == 2


def test_the_identity_leaves_the_features_where_they_are():
    # Few points: they are laid out by PCA, which rounding does not scatter.
    features = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    rows = Labelled(features, np.repeat(["a", "b"], 4))
    figure = projection_figure(rows, SimilarityProjection((torch.zeros(6, 6),)))
    before, after = (np.asarray(axes.collections[0].get_offsets()) for axes in figure.axes)
    assert before == pytest.approx(after, abs=1e-4)
    turned = projection_figure(rows, SimilarityProjection((torch.eye(6).roll(1, 0),)))
    moved = np.asarray(turned.axes[1].collections[0].get_offsets())
    assert np.abs(moved - before).max() > 0.1
    assert to_file(figure, "png")[:4] == b"\x89PNG"
