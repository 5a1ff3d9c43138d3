"""scikit-learn's classifiers, measures, protocols and parts of files in a spec."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegressionCV
from sklearn.neighbors import KNeighborsClassifier

from gpcache import GPCacheClassifier
from gpcache.benchmark.datasets.stored_features import open_features
from gpcache.benchmark.protocols import (
    AT_RANDOM,
    KEPT_CHOICES,
    ONE_BY_ONE,
    SUGGESTED,
    UNEQUAL_SHOTS,
    WRONG_LABELS,
    Sample,
    changed,
    halves,
)
from gpcache.benchmark.rows import read_rows
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import read_spec
from gpcache.benchmark.transduction import predicted_together
from gpcache.errors import DataError

SPEC = """
title = "Peers"
protocols = {protocols}
datasets = ["toy.npz"]
shots = [{shots}]
seeds = [0]
measures = {measures}
"""


@pytest.fixture
def rows_of(write_spec, tmp_path):
    """Run methods on toy.npz and return the rows by label."""

    def rows_of(*methods, protocols=("no validation",), shots=4, measures=()):
        text = SPEC.format(protocols=list(protocols), shots=shots, measures=list(measures))
        text += "".join(f'[[methods]]\nname = "{name}"\n' for name in methods)
        run(read_spec(write_spec(text)), tmp_path / "results", device="cpu")
        rows = read_rows(tmp_path / "results" / "toy.jsonl")
        return {(row["protocol"], row["label"]): row for row in rows}

    return rows_of


def test_peers_are_scikit_learn_as_it_is(write_features, rows_of):
    task = open_features(write_features())
    names = ("logistic-regression-cv", "nearest-neighbour", "shrinkage-lda", "linear-svc")
    found = rows_of(*names)
    shots, test = task.draw(4, 0).shots, task.test
    for name, model in (
        ("logistic-regression-cv", LogisticRegressionCV(cv=4, max_iter=1000)),
        ("nearest-neighbour", KNeighborsClassifier(1)),
    ):
        expected = model.fit(shots.features, shots.labels).score(test.features, test.labels)
        assert found["no validation", name]["accuracy"] == expected
    assert found["no validation", "logistic-regression-cv"]["ece"] > 0
    for name in ("nearest-neighbour", "linear-svc"):  # they have no probabilities
        assert found["no validation", name]["ece"] is None


def test_peers_run_at_one_shot_and_want_no_validation_rows(write_features, rows_of):
    write_features()
    names = ("logistic-regression-cv", "shrinkage-lda", "linear-svc")
    found = rows_of(*names, protocols=("no validation", "full validation"), shots=1)
    assert all(found["no validation", name]["status"] == "done" for name in names)
    whys = {found["full validation", name]["why"] for name in names}
    assert whys == {"chooses by cross-validation of the shots"}


def test_measures_add_figures_and_a_wrong_name_is_one_sentence(write_features, rows_of):
    place = write_features()
    with np.load(place) as file:
        arrays = dict(file)
    arrays["outside_x"] = -arrays["test_x"][:30]
    np.savez(place, **arrays)
    measures = ("calibration", "coverage", "rejection")
    row = rows_of("gpcache", measures=measures)["no validation", "gpcache"]
    assert 0 <= row["aurc"] <= 1 - row["accuracy"] + 0.2
    assert row["coverage_0.05"] >= row["coverage_0.2"]
    assert row["set_size_0.05"] >= row["set_size_0.2"]
    assert row["auroc_both"] > 0.5
    assert 0 <= row["refused_inside"] <= row["refused_outside"] <= 1
    with pytest.raises(DataError, match=r"has no measure 'covrage' \(did you mean 'coverage'\?\)"):
        rows_of("gpcache", measures=("covrage",))


def test_wrong_labels_are_found(write_features, rows_of):
    write_features(train=40, test=5)
    methods = ("gpcache", "logistic-regression")
    found = rows_of(*methods, protocols=("wrong labels",), shots=40, measures=("label errors",))
    for method in methods:
        row = found["wrong labels", method]
        assert row["errors_ap"] > 0.3  # a tenth by chance
        assert row["errors_found"] > 0.5
        assert 0 < row["errors_listed"] < 160
    assert found["wrong labels", "gpcache"]["errors_certain"] >= 0
    plain = rows_of("gpcache", measures=("label errors",))["no validation", "gpcache"]
    assert not any(name.startswith("errors") for name in plain)


def test_labels_are_given_at_random_or_as_suggested(write_features, rows_of):
    task = open_features(write_features(train=30, test=5))
    for protocol in (AT_RANDOM, SUGGESTED):
        shots = [Sample(task, protocol, 2, seed).drawn.shots for seed in (0, 0, 1)]
        assert all(len(set(one.names)) == len(one.labels) == 8 for one in shots)
        first, same, other = (set(one.names) for one in shots)
        assert first == same != other
        for one in shots:  # the true labels of these rows
            rows = [task.pool.names.index(name) for name in one.names]
            assert (task.pool.labels[rows] == one.labels).all()
    # From the same rows, suggestions reach the classes that chance leaves out.
    classes = {
        protocol: sum(
            len(set(Sample(task, protocol, 1, seed).drawn.shots.labels)) for seed in range(10)
        )
        for protocol in (AT_RANDOM, SUGGESTED)
    }
    assert classes[SUGGESTED] > classes[AT_RANDOM]
    assert rows_of("gpcache", protocols=(SUGGESTED,), shots=2)[SUGGESTED, "gpcache"]["n_shots"] == 8
    write_features(train2=2, val=3, test=5)
    row = rows_of("gpcache", protocols=(SUGGESTED,), shots=2)[SUGGESTED, "gpcache"]
    assert row["why"] == "'toy' has no stored features to choose from"


def test_shots_are_added_to_a_model_of_the_first_five(write_features, rows_of):
    task = open_features(write_features(train=12, test=25))
    protocols = ("no validation", ONE_BY_ONE, KEPT_CHOICES)
    found = rows_of("gpcache", "gda", protocols=protocols, shots=6)
    at_once, one_by_one, kept = (found[protocol, "gpcache"] for protocol in protocols)
    assert at_once["n_shots"] == one_by_one["n_shots"] == kept["n_shots"] == 24
    # Few shots: every added one lets the model choose again, so that the end is the fit of all.
    for name in ("accuracy", "nll", "ece"):
        assert one_by_one[name] == pytest.approx(at_once[name], abs=1e-6)

    X, y, _ = task.draw(6, 0).shots
    first = np.concatenate([np.flatnonzero(y == name)[:5] for name in task.class_names])
    others = np.setdiff1d(np.arange(len(y)), first)
    model = GPCacheClassifier(text_prior=task.prior, device="cpu").fit(X[first], y[first])
    assert kept["hyper_parameters"]["alpha"] == pytest.approx(model.alpha_)
    assert at_once["hyper_parameters"]["alpha"] != pytest.approx(model.alpha_)
    model.add(X[others], y[others], refit=False)
    assert kept["accuracy"] == model.score(task.test.features, task.test.labels)

    assert found[ONE_BY_ONE, "gda"]["why"] == "cannot add shots to a fitted model"
    few = rows_of("gpcache", protocols=(KEPT_CHOICES,))[KEPT_CHOICES, "gpcache"]
    assert few["why"] == "needs more than 5 shots of a class"


def test_other_measures_are_another_row(write_features, rows_of):
    write_features()
    assert "aurc" not in rows_of("gpcache")["no validation", "gpcache"]
    assert "aurc" in rows_of("gpcache", measures=("calibration",))["no validation", "gpcache"]


def test_without_validation_rows_each_half_is_judged_by_the_other(write_features):
    task = open_features(write_features(val=9, train2=2))
    first, second = halves(task.test.labels)
    assert sorted([*first, *second]) == list(range(36))
    assert np.unique(task.test.labels[first], return_counts=True)[1].max() <= 5
    parts = Sample(task, "full validation", 2, 0).parts
    for choosing, tested in parts:
        assert len(choosing.labels) == 18
        assert len(tested) == 18
        chosen_on = {row.tobytes() for row in choosing.features}
        assert not any(row.tobytes() in chosen_on for row in task.test.features[tested])


def test_unequal_shots_keep_every_class_and_wrong_labels_change_a_tenth(write_features):
    drawn = open_features(write_features()).draw(10, 0)
    fewer = changed(UNEQUAL_SHOTS, drawn, 0).shots
    counts = np.unique(fewer.labels, return_counts=True)[1]
    assert len(counts) == 4
    assert 1 <= counts.min() < counts.max() <= 10
    wrong = changed(WRONG_LABELS, drawn, 0).shots
    assert (wrong.labels != drawn.shots.labels).sum() == 4
    np.testing.assert_array_equal(wrong.features, drawn.shots.features)


def test_a_file_names_its_draws_and_its_parts(write_features):
    place = write_features(train=6, val=3, test=5)
    with np.load(place) as file:
        arrays = dict(file)
    arrays |= {"draw1_7": np.array([0, 6, 12, 18]), "sub_labels": np.array([3, 1])}
    arrays["sub_text"] = arrays.pop("text")[[3, 1]]
    np.savez(place, **arrays)
    whole, text, half = (open_features(f"{place}{part}") for part in ("", ":text", ":half"))
    drawn = whole.draw(1, 7)
    np.testing.assert_array_equal(drawn.shots.features, whole.pool.keys(np.array([0, 6, 12, 18])))
    assert (text.name, text.class_names) == ("toy:text", ["dog", "bee"])
    assert set(text.test.labels) == {"bee", "dog"}
    assert len(half.class_names) == 2
    assert (len(half.test.labels), len(half.outside)) == (10, 10)
    rest = open_features(f"{place}:other-half")
    assert {*half.class_names, *rest.class_names} == set(whole.class_names)
    with pytest.raises(DataError, match="has no part 'third'"):
        open_features(f"{place}:third")


def test_a_few_classes_of_a_file_are_a_data_set(write_features):
    place = write_features(train=6, val=3, test=5)
    whole = open_features(place)
    few, again = (open_features(f"{place}:2-classes-7") for _ in range(2))
    assert few.class_names == again.class_names
    assert set(few.test.labels) == set(few.prior.class_names) == set(few.class_names)
    np.testing.assert_array_equal(few.prior.vectors, whole.prior.aligned(np.array(few.class_names)))
    drawn = {tuple(open_features(f"{place}:2-classes-{seed}").class_names) for seed in range(9)}
    assert len(drawn) > 2
    with pytest.raises(DataError, match="has 4 classes, fewer than 5"):
        open_features(f"{place}:5-classes-0")


def test_images_that_are_predicted_together_help_each_other():
    generator = np.random.default_rng(0)
    centres = np.eye(3, 256)
    labels = np.repeat(np.arange(3), 40)
    rows = centres[labels] + 0.04 * generator.normal(size=(120, 256))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    # A method is sure of three images in four, and leans to a wrong class for the others.
    weak = np.full((120, 3), 0.05)
    weak[np.arange(120), labels] = 0.9
    unsure = np.arange(120) % 4 == 0
    weak[unsure] = 0.3
    weak[unsure, (labels[unsure] + 1) % 3] = 0.4
    found = predicted_together(weak, rows, centres, np.arange(3))
    np.testing.assert_allclose(found.sum(1), 1)
    assert (weak.argmax(1) == labels).mean() == 0.75
    assert (found.argmax(1) == labels).mean() > 0.95


def test_the_transductive_protocol_needs_probabilities(write_features, rows_of):
    write_features()
    found = rows_of("gda", "nearest-neighbour", protocols=("no validation", "transductive"))
    assert found["transductive", "gda"]["accuracy"] > 0.5
    assert found["transductive", "nearest-neighbour"]["why"].startswith("has no probabilities")
