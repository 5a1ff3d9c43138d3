"""One slot for a similarity projection: who has it, what goes through it, what is kept of it."""

import json

import numpy as np
import pytest
import torch

from gpcache import DataError, GPCacheClassifier
from gpcache.methods import State, registry, restore, state_of
from gpcache.methods.options import OPTION_NAMES
from gpcache.similarity import ProjectionFacts, SimilarityProjection

WITH = sorted(
    name for name, method in registry().items() if "projection" in method.constructor().get_params()
)
WITHOUT = set(registry()) - set(WITH)
CACHE = ["gpcache", "gpcache-paper", "gpcache-f", "tip-adapter", "tip-adapter-f"]
ADDED_TO_TEXT = ["gda", "proker", "tip-x", "ape"]
ON_THEIR_OWN = ["linear-probe", "lp++", "timo"]  # their text, if any, is a part of what they learn
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture
def matrix():
    return 0.3 * np.random.default_rng(0).normal(size=(12, 12))


@pytest.fixture
def facts():
    return ProjectionFacts(
        "contrastive", "lite", "abc", images=40, views=2, change=0.3, transductive=True
    )


@pytest.fixture
def make(problem, tools):
    """An estimator of this name in float64, at numbers that are given wherever it has any."""

    def make(name, **options):
        constructor = registry()[name].constructor
        known = set(constructor().get_params())
        if name in CACHE:
            if "likelihood" in known:
                known |= set(OPTION_NAMES)
            known |= {"epochs"} if "training" in known else set()
            if constructor.from_options(**options)._options().likelihood == "softmax":
                known.discard("noise")  # which regression alone has
        numbers = {"alpha": 2.0, "beta": 2.5, "noise": 0.2, "gain": 0.8, "gamma": 0.5, "lam": 0.1}
        numbers |= {"strength": 10.0, "epochs": 5}
        given = {key: value for key, value in numbers.items() if key in known}
        if name == "timo":
            draw = np.random.default_rng(1).normal
            names, vectors = problem.prior.class_names, problem.prior.vectors
            given["prompt_vectors"] = {
                label: vector + 0.1 * draw(size=(3, 12))
                for label, vector in zip(names, vectors, strict=True)
            }
        make = constructor.from_options
        return make(**{"text_prior": problem.prior} | given | tools.float64 | options)

    return make


def test_every_method_that_compares_images_has_the_slot():
    assert {*CACHE, *ADDED_TO_TEXT, *ON_THEIR_OWN} <= set(WITH)
    assert {"task-res", "clip-adapter", "clap", "coop", "ape-t", "calip", "zero-shot"} <= WITHOUT


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in WITH), ("gpcache", {"likelihood": "gaussian"})]
)
def test_a_projection_that_changes_nothing_changes_nothing(name, options, problem, make):
    plain = make(name, **options).fit(problem.X, problem.y)
    same = make(name, projection=np.zeros((12, 12)), **options).fit(problem.X, problem.y)
    # Adam makes whole steps of rounding errors where a gradient is zero.
    close = {"rtol": 1e-4} if name == "gpcache-f" else CLOSE
    np.testing.assert_allclose(same.logits(problem.queries), plain.logits(problem.queries), **close)
    if name == "gpcache" and not options:
        close = {"rtol": 0, "atol": 1e-5}  # folds of the softmax likelihood are in float32
    np.testing.assert_allclose(same.loo_.logits, plain.loo_.logits, **close)
    assert same.temperature_ == pytest.approx(plain.temperature_, rel=1e-4)


@pytest.mark.parametrize("name", ["gpcache", "gda"])
def test_it_may_be_a_matrix_a_function_or_a_similarity_projection(
    name, problem, make, matrix, tools
):
    tensor = torch.from_numpy(matrix)
    forms = [
        matrix,
        tensor,
        SimilarityProjection((tensor,)),
        SimilarityProjection((tensor + torch.eye(12, dtype=torch.float64),), residual=False),
        lambda rows: torch.from_numpy(tools.unit(rows.numpy() @ (matrix + np.eye(12)).T)),
    ]
    found = [
        make(name, projection=form).fit(problem.X, problem.y).logits(problem.queries)
        for form in forms
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-7, atol=1e-7)
    assert np.abs(found[0] - make(name).fit(problem.X, problem.y).logits(problem.queries)).max() > 0


@pytest.mark.parametrize("name", [*ADDED_TO_TEXT, *ON_THEIR_OWN])
def test_what_is_learned_is_behind_it_and_the_text_before(name, problem, make, matrix, tools):
    """As if the rows had come projected, but for the text that is added."""

    def behind(rows):
        return tools.unit(tools.unit(rows) @ (matrix + np.eye(12)).T)

    queries = problem.queries
    by_slot = make(name, projection=matrix).fit(problem.X, problem.y).logits(queries)
    by_hand = make(name).fit(behind(problem.X), problem.y).logits(behind(queries))
    if name in ADDED_TO_TEXT:
        by_slot = by_slot - tools.zero_shot(problem.prior, queries)
        by_hand = by_hand - tools.zero_shot(problem.prior, behind(queries))
    np.testing.assert_allclose(by_slot, by_hand, **CLOSE)


@pytest.mark.parametrize("name", ["gpcache", "tip-adapter", "gda"])
def test_to_turn_all_images_alike_means_nothing(name, problem, make):
    """Likeness between images stays as it was, and the text never sees them turned.

    The softmax likelihood may shrink towards the diagonal of the scatter, which turns with them.
    """
    options = {"likelihood": "gaussian"} if name == "gpcache" else {}
    turned, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))
    plain = make(name, **options).fit(problem.X, problem.y)
    found = make(name, projection=turned - np.eye(12), **options).fit(problem.X, problem.y)
    np.testing.assert_allclose(found.logits(problem.queries), plain.logits(problem.queries))


@pytest.mark.parametrize("name", ["gda", "linear-probe"])
def test_views_and_validation_rows_go_through_it_too(name, problem, make, matrix, tools):
    views = np.random.default_rng(2).normal(problem.X[:, None], 0.2, (14, 3, 12))

    def behind(rows):
        return tools.unit(tools.unit(rows) @ (matrix + np.eye(12)).T)

    numbers = {"alpha": "auto"} if name == "gda" else {"strength": "auto"}
    validation = problem.queries, np.array(["oak", "ash", "fir", "elm", "oak"] * 2)[:9]
    rows = make(name, text_prior=None, projection=matrix, **numbers)
    rows.fit(problem.X, problem.y, views=views, validation=validation)
    known = make(name, text_prior=None, **numbers).fit(
        behind(problem.X),
        problem.y,
        views=behind(views.reshape(-1, 12)).reshape(views.shape),
        validation=(behind(validation[0]), validation[1]),
    )
    np.testing.assert_allclose(
        rows.logits(problem.queries), known.logits(behind(problem.queries)), rtol=1e-6, atol=1e-6
    )
    assert rows.temperature_ == pytest.approx(known.temperature_, rel=1e-5)


@pytest.mark.parametrize("name", WITH)
def test_it_is_saved_with_where_it_came_from(name, problem, make, matrix, facts):
    projection = SimilarityProjection((torch.from_numpy(matrix),), facts=facts)
    original = make(name, projection=projection).fit(problem.X, problem.y)
    settings, arrays = state_of(original)
    assert settings["projection"]["transductive"] is True
    found = restore(State(json.loads(json.dumps(settings)), arrays), device="cpu")
    assert found.projection.facts == facts
    assert torch.equal(found.projection.matrix, projection.matrix)
    np.testing.assert_allclose(
        found.logits(problem.queries), original.logits(problem.queries), rtol=1e-5, atol=1e-5
    )


def test_a_bare_matrix_is_saved_without_an_origin(problem, make, matrix):
    settings, arrays = state_of(make("gda", projection=matrix).fit(problem.X, problem.y))
    assert settings["projection"] is None
    np.testing.assert_array_equal(arrays["projection"], matrix)
    plain = state_of(make("gda").fit(problem.X, problem.y))
    assert "projection" not in plain.settings


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_method_without_the_slot_says_so(name, tools, matrix):
    estimator = registry()[name].constructor()
    assert estimator.with_projection(None) is estimator
    with tools.one_sentence(DataError, "takes no projection: leave it out"):
        estimator.with_projection(SimilarityProjection((torch.from_numpy(matrix),)))


@pytest.mark.parametrize("name", ["gpcache", "gda"])
@pytest.mark.parametrize(
    ("projection", "sentence"),
    [
        (np.eye(5), r"matrix of shape \(12, 12\), got shape \(5, 5\)"),
        (np.full((12, 12), np.nan), "must hold finite numbers only"),
        (np.full((12, 12), "a"), "must hold finite numbers only"),
        (SimilarityProjection((torch.zeros(5, 5),)), r"\(12, 12\), got shape \(5, 5\)"),
        (lambda rows: rows[:3], "must map 14 rows to as many"),
    ],
)
def test_what_is_no_projection_is_refused(name, projection, sentence, problem, make, tools):
    with tools.one_sentence(DataError, sentence):
        make(name, projection=projection).fit(problem.X, problem.y)


def test_beside_text_the_columns_must_stay(problem, make, tools):
    with tools.one_sentence(DataError, "of GDAClassifier must keep the 12 columns"):
        make("gda", projection=lambda rows: rows[:, :4]).fit(problem.X, problem.y)
    GPCacheClassifier.from_options(projection=lambda rows: rows[:, :4]).fit(problem.X, problem.y)
