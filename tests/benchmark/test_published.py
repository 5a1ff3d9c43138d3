"""The published tables agree with themselves and each other, but where notes say otherwise."""

import pytest

from gpcache.benchmark.datasets.catalogue import catalogue
from gpcache.benchmark.published import experiments, published
from gpcache.errors import DataError
from gpcache.methods.registry import registry

# Rows of methods that need an encoder at training or prediction time are not in the registry.
METHODS = {*registry()}


@pytest.mark.parametrize("experiment", experiments())
def test_notes_are_on_cells_that_exist(experiment):
    table = published(experiment)
    assert table.title
    assert table.source
    assert {*table.rows, *table.columns} == set(table.titles)
    for note in table.notes:
        assert note.text.endswith(".")
        assert note.kind in ("error", "doubt", "remark")
        assert note.row is None or note.row in table.rows
        assert note.column is None or note.column in table.columns


@pytest.mark.parametrize("experiment", experiments())
def test_accuracies_are_percentages(experiment):
    table = published(experiment)
    for row in table.rows:
        assert any(table.value(row, column) is not None for column in table.columns)
        for column in table.columns:
            value = table.value(row, column)
            if value is not None and not column.endswith("seconds"):
                assert 10 < value < 100
                assert round(value, 2) == value


def test_methods_and_data_sets_have_our_names():
    for experiment in ("few_shot", "shots", "backbones", "domain_generalisation"):
        assert set(published(experiment).rows) <= METHODS
    few_shot = published("few_shot")
    assert {*few_shot.columns, "imagenetv2", "imagenet_sketch"} == {*catalogue(), "mean"}
    assert set(published("domain_generalisation").columns) <= set(catalogue())


def test_printed_means_but_one_follow_from_the_cells():
    table = published("few_shot")
    wrong = {
        row
        for row in table.rows
        if round(table.recomputed_mean(row), 2) != table.value(row, "mean")
    }
    assert wrong == {"tip-x"}
    assert table.value("tip-x", "mean", corrected=True) == round(table.recomputed_mean("tip-x"), 2)


def test_the_wrong_cell_of_tip_adapter():
    table = published("few_shot")
    cell = ("tip-adapter", "stanford_cars")
    assert table.value(*cell) == table.value("clip-adapter", "stanford_cars") == 74.10
    assert table.value(*cell, corrected=True) == 66.71
    assert [note.kind for note in table.notes_on(*cell)] == ["error"]
    mean = table.recomputed_mean("tip-adapter", corrected=True)
    assert mean == pytest.approx(70.355, abs=5e-4)
    assert table.value("tip-adapter", "mean", corrected=True) == round(mean, 2)
    # Two other tables have the mean that follows from the right cell.
    assert published("shots").value("tip-adapter", "16") == round(mean, 2)
    assert published("modules").value("B", "training-free") == pytest.approx(mean, abs=0.01)


def test_the_outlier_of_the_trained_method():
    table = published("few_shot")
    assert {note.kind for note in table.notes_on("gpcache-f", "ucf101")} == {"doubt"}
    gains = {
        column: table.value("gpcache-f", column) - table.value("gpcache", column)
        for column in table.columns
    }
    assert max(gains, key=gains.get) == "ucf101"
    without = [
        (table.recomputed_mean(row) * 11 - table.value(row, "ucf101")) / 10
        for row in ("gpcache-f", "ape-t")
    ]
    assert without == pytest.approx([77.13, 77.04], abs=0.005)
    assert table.value("gpcache-f", "ucf101", corrected=True) == 86.94  # the right one is unknown


def test_means_agree_between_tables():
    few_shot, shots, modules = map(published, ("few_shot", "shots", "modules"))
    for row in shots.rows:
        assert shots.value(row, "16") == few_shot.value(row, "mean", corrected=True)
    for column, row in (("training-free", "gpcache"), ("trained", "gpcache-f")):
        assert modules.value("B+W+C+S", column) == few_shot.value(row, "mean")


def test_baselines_that_differ_between_tables_are_noted():
    few_shot, general = published("few_shot"), published("domain_generalisation")
    differing = {
        row
        for row in general.rows
        if general.value(row, "imagenet") != few_shot.value(row, "imagenet")
    }
    assert differing == {"zero-shot", "tip-adapter", "coop", "clip-adapter", "tip-adapter-f"}
    assert differing == {note.row for note in general.notes}


def test_printed_differences_of_the_modules():
    table = published("modules")
    for more, less, free, trained in [
        ("B+W", "B", 4.03, 1.05),
        ("B+W+C", "B+W", 1.80, 0.63),
        ("B+S", "B", 0.77, 0.48),
        ("B+W+C+S", "B+W+C", 0.57, 0.81),
    ]:
        for column, printed in (("training-free", free), ("trained", trained)):
            found = table.value(more, column) - table.value(less, column)
            assert found == pytest.approx(printed, abs=1e-9)


def test_claims_of_the_text():
    few_shot, backbones = published("few_shot"), published("backbones")
    better = {
        other: sum(
            few_shot.value("gpcache", column) > few_shot.value(other, column)
            for column in few_shot.columns[:-1]
        )
        for other in ("gda", "ape")
    }
    assert better == {"gda": 8, "ape": 11}
    gains = [
        backbones.value(ours, column) - backbones.value(other, column)
        for ours, other in (("gpcache", "gda"), ("gpcache-f", "ape-t"))
        for column in backbones.columns
    ]
    assert gains == pytest.approx([0.52, 0.43, 0.16, 0.71, 0.86, 0.48])


def test_the_claim_on_time_that_the_numbers_do_not_bear_out():
    table = published("approximations")
    seconds = {row: table.value(row, "training-free seconds") for row in table.rows}
    assert min(seconds, key=seconds.get) == "class mean"
    assert min(seconds[row] for row in seconds if row.startswith("grouped")) == 74
    assert any(
        "37 s" in note.text for note in table.notes_on("grouped g=64", "training-free seconds")
    )


def test_without_gradients_only_the_training_differs():
    table = published("approximations")
    for groups in (8, 16, 32, 64):
        for column in ("training-free", "training-free seconds"):
            assert table.value(f"grouped g={groups}", column) == table.value(
                f"grouped g={groups} nograd", column
            )


def test_neighbours_are_best_in_the_middle():
    table = published("hard_mining")
    best = [
        max(table.rows, key=lambda row, column=column: table.value(row, column))
        for column in table.columns
    ]
    assert best == ["64", "128"]


def test_gaps_are_none():
    table = published("approximations")
    assert table.value("nystrom L=4c", "trained") is None
    assert table.value("calip", "trained") is None
    assert table.recomputed_mean("class mean") is None
    assert published("shots").value("gpcache", "4") is None


def test_an_unknown_table():
    with pytest.raises(DataError, match=r"no published numbers of 'figure 9': use .*few_shot"):
        published("figure 9")
