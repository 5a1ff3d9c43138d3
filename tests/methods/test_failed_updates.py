"""An update that cannot be done says why in one sentence and leaves the model as it was."""

import numpy as np
import pytest

from gpcache import DataError, GPCacheFClassifier

BAD = {
    "a row below zero": (lambda e, _: e.remove([-1]), "whole numbers from 0 to 13"),
    "a row beyond the last": (lambda e, _: e.remove([14]), "whole numbers from 0 to 13"),
    "half a row": (lambda e, _: e.remove([0.5]), "whole numbers from 0 to 13"),
    "a row by name": (lambda e, _: e.remove(["a"]), "whole numbers from 0 to 13"),
    "a row twice": (lambda e, _: e.remove([3, 3]), "differ from each other"),
    "all rows": (lambda e, _: e.remove(range(14)), "keep at least one"),
    "relabel beyond the last": (lambda e, _: e.relabel([14], ["oak"]), "from 0 to 13"),
    "relabel with too few labels": (lambda e, _: e.relabel([0, 1], ["oak"]), "2 rows and 1 labels"),
    "relabel to an unknown class": (lambda e, _: e.relabel([0], ["beech"]), "'beech'.* is none of"),
    "relabel to another kind": (lambda e, _: e.relabel([0], [1]), "1.* is none of"),
    "add with too few labels": (lambda e, p: e.add(p.X[:2], ["oak"]), "2 rows and 1 labels"),
    "add another width": (lambda e, p: e.add(p.X[:2, :5], ["oak", "oak"]), "5 features.* 12"),
    "add NaN": (lambda e, p: e.add(np.nan * p.X[:1], ["oak"]), "NaN or inf in row 0"),
    "add no label": (
        lambda e, p: e.add(p.X[:1], np.array([None])),
        "contains None in row 0, which is not a class",
    ),
    "add a zero row": (lambda e, p: e.add(0 * p.X[:1], ["oak"]), "all zeros"),
}


@pytest.fixture(params=["exact", "grouped", "softmax"])
def fitted(request, problem, tools):
    if request.param == "softmax":
        return tools.softmax_cache(kernel_space="raw").fit(problem.X, problem.y)
    estimator = tools.gp_cache(kernel_space="raw", precision=request.param)
    return estimator.fit(problem.X, problem.y)


def assert_refused(estimator, problem, update, phrase):
    before, classes = estimator.logits(problem.queries), estimator.classes_.copy()
    with pytest.raises(ValueError, match=phrase) as error:
        update(estimator, problem)
    assert "\n" not in str(error.value)
    assert estimator.classes_.tolist() == classes.tolist()
    np.testing.assert_array_equal(estimator.logits(problem.queries), before)
    assert len(estimator.loo_.logits) == len(problem.X)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_update_is_refused(name, fitted, problem):
    assert_refused(fitted, problem, *BAD[name])


def test_with_text_a_new_class_is_refused(problem, tools):
    for make in (tools.gp_cache, tools.softmax_cache):
        estimator = make(problem, kernel_space="raw").fit(problem.X, problem.y)
        assert_refused(
            estimator, problem, lambda e, p: e.add(p.X[:1], ["beech"]), "'beech'.* is none of the 5"
        )


def test_a_new_class_of_another_kind_is_refused(problem, tools):
    """Classes must sort: a name among numbers would turn all of them into names."""
    estimator = tools.gp_cache(kernel_space="raw").fit(problem.X, np.arange(14) % 3)
    with pytest.raises(DataError) as error:
        estimator.add(problem.X[:2], ["oak", "elm"])
    assert "\n" not in str(error.value)
    assert estimator.classes_.tolist() == [0, 1, 2]
    assert estimator.logits(problem.queries).shape == (9, 3)


@pytest.mark.parametrize(
    "update",
    [
        lambda e, p: e.add(p.X[:1], [5]),
        lambda e, _: e.relabel([0], [5]),
        lambda e, p: e.explain(p.X[:1], labels=[5]),
        lambda e, p: e.fit(p.X, p.y.astype(object), validation=(p.X[:1], [5])),
    ],
    ids=["add", "relabel", "explain", "validation"],
)
def test_a_number_among_labels_that_are_objects_is_refused(update, problem, tools):
    """What is no word cannot be looked up among words, whatever the array calls itself."""
    estimator = tools.gp_cache(kernel_space="raw").fit(problem.X, problem.y.astype(object))
    with tools.one_sentence(DataError, "Label.* 5"):
        update(estimator, problem)


@pytest.mark.parametrize("nothing", [np.array([], dtype=int), []], ids=["no numbers", "a list"])
def test_to_remove_nothing_is_no_mistake(nothing, problem, tools):
    """`remove(np.flatnonzero(bad))` where nothing is bad."""
    estimator = tools.gp_cache(kernel_space="raw").fit(problem.X, problem.y)
    before = estimator.logits(problem.queries)
    estimator.remove(nothing)
    np.testing.assert_allclose(estimator.logits(problem.queries), before, atol=1e-12)


def test_a_label_that_is_not_a_number_makes_no_class(problem, tools):
    numbers = np.unique(problem.y, return_inverse=True)[1].astype(float)
    estimator = tools.gp_cache(kernel_space="raw").fit(problem.X, numbers)
    with tools.one_sentence(DataError, "not a class"):
        estimator.add(problem.X[:1], [np.nan])
    assert estimator.classes_.tolist() == [0, 1, 2, 3]
    assert estimator.logits(problem.queries).shape == (9, 4)


@pytest.mark.parametrize("text", [None, {"oak": 1}])
def test_text_that_is_none_is_refused(text, problem, tools):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    with tools.one_sentence(DataError, "must be a TextPrior"):
        estimator.set_text(text)


def test_text_that_was_trained_with_the_keys_stays(problem, tools):
    options = {"trains": "classes", "epochs": 1, "stopping": "last", "calibrate": False}
    model = GPCacheFClassifier.from_options(text_prior=problem.prior, **options, **tools.float64)
    model.fit(problem.X, problem.y)
    with tools.one_sentence(DataError, "trained with its keys"):
        model.set_text(problem.prior)
