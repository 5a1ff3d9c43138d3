"""Zero-shot CLIP: logits = s · f W, whatever the shots."""

import numpy as np
import pytest

from gpcache import DataError, TextPrior
from gpcache.methods import ZeroShotClassifier


def test_logits_are_the_scaled_cosines_with_the_text(problem):
    estimator = ZeroShotClassifier(text_prior=problem.prior, dtype="float64")
    found = estimator.fit(problem.X, problem.y).logits(problem.queries)
    assert estimator.classes_.tolist() == ["ash", "elm", "fir", "oak", "yew"]
    for i, f in enumerate(problem.queries):
        for j, name in enumerate(estimator.classes_):
            w = problem.prior.vectors[problem.prior.class_names.index(name)]
            cosine = f @ w / np.linalg.norm(f) / np.linalg.norm(w)
            assert found[i, j] == pytest.approx(12.0 * cosine, abs=1e-12)


def test_float32_agrees_to_six_digits(problem):
    def logits(dtype):
        estimator = ZeroShotClassifier(text_prior=problem.prior, dtype=dtype)
        return estimator.fit(problem.X, problem.y).logits(problem.queries)

    np.testing.assert_allclose(logits("float32"), logits("float64"), atol=12 * 1e-6)


def test_the_scale_multiplies_the_logits(problem):
    prior = problem.prior
    hotter = TextPrior(prior.class_names, prior.vectors, logit_scale=3 * prior.logit_scale)
    first, second = (
        ZeroShotClassifier(text_prior=p, dtype="float64").fit(problem.X, problem.y)
        for p in (prior, hotter)
    )
    np.testing.assert_allclose(
        second.logits(problem.queries), 3 * first.logits(problem.queries), rtol=1e-12
    )


def test_shots_and_their_labels_change_nothing(problem):
    one = ZeroShotClassifier(text_prior=problem.prior).fit(problem.X, problem.y)
    other = ZeroShotClassifier(text_prior=problem.prior).fit(-problem.X[:2], ["yew", "ash"])
    np.testing.assert_array_equal(one.logits(problem.queries), other.logits(problem.queries))


def test_probabilities_are_the_softmax_of_the_logits(problem, tools):
    estimator = ZeroShotClassifier(text_prior=problem.prior).fit(problem.X, problem.y)
    expected = tools.softmax(estimator.logits(problem.queries))
    np.testing.assert_allclose(estimator.predict_proba(problem.queries), expected, rtol=1e-6)


def test_a_row_like_a_text_gets_its_class(problem):
    estimator = ZeroShotClassifier(text_prior=problem.prior).fit(problem.X, problem.y)
    assert estimator.predict(problem.prior.vectors).tolist() == list(problem.prior.class_names)


def test_without_text_there_is_one_clear_sentence(problem):
    with pytest.raises(DataError, match=r"predicts from text: give it text_prior=") as error:
        ZeroShotClassifier().fit(problem.X, problem.y)
    assert "\n" not in str(error.value)
