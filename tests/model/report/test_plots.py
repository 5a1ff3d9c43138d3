"""Plots as files: whole, well-formed, the same each time; matplotlib's settings stay alone."""

import sys
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from gpcache import MissingExtraError
from gpcache.model.report import Report, save_plots
from gpcache.model.report.plots import Surface, confusion_figure, search_figure

NAMES = ["confusion", "reliability", "risk-coverage", "map-features", "map-kernel", "search"]


def test_each_plot_is_saved_in_each_format(full, tmp_path):
    written = save_plots(full(), tmp_path / "new" / "plots")
    assert [path.name for path in written] == [f"{n}.{f}" for n in NAMES for f in ("png", "svg")]
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
            assert min(picture.size) > 500
            assert 0.001 < (colours != 255).any(1).mean() < 0.9
        else:
            root = ElementTree.parse(path).getroot()
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert len(list(root.iter())) > 30


def test_same_report_gives_the_same_files(full, tmp_path):
    first, second = (save_plots(full(), tmp_path / name) for name in "ab")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_hostile_names_are_drawn_without_a_warning(hostile, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = save_plots(hostile, tmp_path)
    assert len(written) == 2 * len(NAMES)
    for path in written:
        if path.suffix == ".svg":
            ElementTree.parse(path)
            assert b"script" not in path.read_bytes()


def test_settings_of_matplotlib_stay_as_they_are(full, tmp_path):
    import matplotlib as library

    before = dict(library.rcParams)
    save_plots(full(), tmp_path)
    assert dict(library.rcParams) == before


def test_without_matplotlib_the_extra_is_named(full, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"A report needs matplotlib.*gpcache\[report\]"):
        save_plots(full(), tmp_path)


def test_a_report_of_nothing_has_no_plots(tmp_path):
    assert save_plots(Report("empty"), tmp_path) == []


def test_confusion_names_and_counts_are_drawn_where_they_can_be_read(evaluation):
    small = confusion_figure(evaluation(60, 5)).axes[0]
    assert [t.get_text() for t in small.get_yticklabels()] == [f"class {i}" for i in range(5)]
    assert sum(int(text.get_text()) for text in small.texts) == 60
    large = confusion_figure(evaluation(200, 41)).axes[0]
    assert len(large.get_yticklabels()) == 0
    assert len(large.texts) == 0


def columns(beta, noise, score):
    return {"beta": np.array(beta), "noise": np.array(noise), "score": np.array(score)}


def test_surface_takes_the_best_of_a_place_and_leaves_out_what_has_no_score():
    surface = Surface.of(
        columns([1.0, 1.0, 2.0, 2.0, 4.0], [0.1, 1.0, 1.0, 1.0, 1.0], [1, 2, 5, 3, np.nan])
    )
    found = dict(zip(zip(surface.beta, surface.other, strict=True), surface.score, strict=True))
    assert found == {(1, 0.1): 1, (1, 1): 2, (2, 1): 3}
    assert surface.chosen == (1.0, 0.1)


def test_choice_that_was_scored_again_is_compared_by_its_first_score():
    surface = Surface.of(columns([1.0, 2.0, 1.0], [0.1, 0.1, 0.1], [0.2, 0.9, 0.8]))
    assert dict(zip(surface.beta, surface.score, strict=True)) == {2.0: 0.9, 1.0: 0.8}
    assert surface.chosen == (1.0, 0.1)


def test_settings_of_the_softmax_likelihood_are_compared_with_their_shrinkage():
    """The choice comes again only if all of it does: here the last row has another shrinkage."""
    table = columns([1.0, 2.0, 1.0], [0.1, 0.1, 0.1], [0.2, 0.9, 0.8])
    table["tau"] = table.pop("noise")
    table |= {"shrinkage": np.array([1.0, 1.0, 3.0]), "offset": np.full(3, 0.7)}
    surface = Surface.of(table)
    assert surface.name == "tau"
    assert dict(zip(surface.beta, surface.score, strict=True)) == {1.0: 0.2, 2.0: 0.9}
    table["shrinkage"][2] = 1.0
    scores = dict(zip((again := Surface.of(table)).beta, again.score, strict=True))
    assert scores == {2.0: 0.9, 1.0: 0.8}
    table["tau"] = np.array([0.1, 3.0, 30.0])
    assert "τ" in search_figure(Surface.of(table)).axes[0].get_ylabel()


@pytest.mark.parametrize(
    ("beta", "noise", "label"),
    [
        ([1.0, 2.0, 4.0], [0.1, 0.1, 0.1], "β"),
        ([1.0, 1.0, 1.0], [0.1, 1.0, 10.0], "noise"),
        ([1.0, 2.0, 4.0], [np.nan] * 3, "β"),
    ],
)
def test_search_over_one_number_is_a_curve(beta, noise, label):
    axes = search_figure(Surface.of(columns(beta, noise, [1.0, 2.0, 3.0]))).axes[0]
    assert label in axes.get_xlabel()
    assert "score" in axes.get_ylabel()
    curve, mark = axes.lines
    np.testing.assert_array_equal(curve.get_ydata(), [1, 2, 3])
    assert set(mark.get_xdata()) == {beta[0] if label == "β" else noise[0]}
