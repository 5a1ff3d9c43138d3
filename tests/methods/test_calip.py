"""CALIP against its equations read one image at a time, and its limits."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from gpcache import DataError, EncoderError, TextPrior
from gpcache.encoders import load_encoder
from gpcache.encoders.base import Encoder
from gpcache.images.preprocess import Preprocess
from gpcache.methods import ZeroShotClassifier, calip
from gpcache.methods.calip import CALIPClassifier, image_and_places
from gpcache.metrics import fit_temperature

SCALE = 30.0
HERE = {"device": "cpu", "dtype": "float64"}
NAMES = ("oak", "ash", "fir", "yew")
GIVEN = {"image_weight": 0.7, "text_weight": 0.3}


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def softmax(values):
    shifted = np.exp(values - values.max())
    return shifted / shifted.sum()


def literal_parts(image, W):
    """s·fW, s·fW_a and s·v_aW of one image (1 + m, d) and class vectors W (d, c), by loops."""
    f, V = unit(image)[0], unit(image)[1:]
    S = 2 * V @ W
    m, c = S.shape
    W_a = np.stack([V.T @ softmax(S[:, y]) for y in range(c)], axis=1)
    V_a = np.stack([softmax(S[i]) @ W.T for i in range(m)])
    v_a = V_a.mean(0) + V_a.max(0)
    return SCALE * np.stack([f @ W, f @ W_a, v_a @ W])


def literal(problem, X, image_weight, text_weight):
    W = unit(problem.prior.vectors[np.argsort(NAMES)]).T
    weights = np.array([1, image_weight, text_weight])
    return np.stack([weights @ literal_parts(image, W) for image in X])


@pytest.fixture
def problem():
    """The class is seen at some places of an image; "yew" has text but no shots."""
    generator = np.random.default_rng(1)
    centres = 1 + generator.normal(size=(4, 10))

    def drawn(classes):
        seen = generator.random((len(classes), 6, 1)) < 0.4
        X = np.where(seen, 2 * centres[classes][:, None], 0)
        X = X + generator.normal(size=(len(classes), 6, 10))
        X[:, 0] = X[:, 1:].mean(1) + 0.5 * generator.normal(size=(len(classes), 10))
        return X, np.array(NAMES)[classes]

    X, y = drawn(np.repeat(np.arange(3), (9, 5, 7)))
    queries, truth = drawn(np.arange(40) % 4)
    text = centres + 0.4 * generator.normal(size=centres.shape)
    prior = TextPrior(NAMES, text, SCALE)
    return SimpleNamespace(X=X, y=y, queries=queries, truth=truth, prior=prior)


def test_the_logits_are_the_equations_of_the_paper(problem):
    model = CALIPClassifier(text_prior=problem.prior, **GIVEN, **HERE).fit(problem.X, problem.y)
    expected = literal(problem, problem.queries, **GIVEN)
    np.testing.assert_allclose(model.logits(problem.queries), expected, atol=1e-10)


def test_without_weights_it_is_zero_shot(problem):
    none = {"image_weight": 0, "text_weight": 0.0}
    model = CALIPClassifier(text_prior=problem.prior, **none, **HERE).fit(problem.X, problem.y)
    zero_shot = ZeroShotClassifier(text_prior=problem.prior, **HERE)
    zero_shot.fit(problem.X[:, 0], problem.y)
    expected = zero_shot.logits(problem.queries[:, 0])
    np.testing.assert_allclose(model.logits(problem.queries), expected, atol=1e-12)


def test_blocks_and_the_order_of_places_mean_nothing(problem, monkeypatch):
    model = CALIPClassifier(text_prior=problem.prior, **HERE).fit(problem.X, problem.y)
    expected = model.logits(problem.queries)
    turned = problem.queries[:, [0, 5, 3, 1, 2, 4]]
    np.testing.assert_allclose(model.logits(turned), expected, atol=1e-10)
    monkeypatch.setattr(calip, "BATCH_ELEMENTS", 3 * 6 * 2 * (10 + 4))
    np.testing.assert_allclose(model.logits(problem.queries), expected, atol=1e-10)


def test_without_labelled_images_the_weights_are_those_of_imagenet(problem):
    model = CALIPClassifier(text_prior=problem.prior, **HERE).fit()
    assert (model.image_weight_, model.text_weight_, model.temperature_) == (1.12, 0.02, 1.0)
    assert model.classes_.tolist() == sorted(NAMES)
    expected = literal(problem, problem.queries, 1.12, 0.02)
    np.testing.assert_allclose(model.logits(problem.queries), expected, atol=1e-10)
    assert CALIPClassifier(text_prior=problem.prior, image_weight=2.0).fit().image_weight_ == 2.0


def test_images_of_a_single_class_choose_nothing(problem):
    model = CALIPClassifier(text_prior=problem.prior, **HERE).fit(problem.X[:9], problem.y[:9])
    assert (model.image_weight_, model.text_weight_, model.temperature_) == (1.12, 0.02, 1.0)
    assert not model.loo_.counted.any()


def test_by_nll_no_weight_nearby_is_better(problem, tools):
    model = CALIPClassifier(text_prior=problem.prior, **HERE).fit(problem.X, problem.y)
    labels = np.searchsorted(model.classes_, problem.y)

    def loss(image_weight, text_weight):
        logits = literal(problem, problem.X, image_weight, text_weight)
        temperature = fit_temperature(torch.tensor(logits), torch.tensor(labels))
        return tools.smoothed_nll(logits / temperature, labels)

    best = np.array([model.image_weight_, model.text_weight_])
    assert best.min() > 0.1
    for number in range(2):
        for step in (-0.05, 0.05):
            moved = best.copy()
            moved[number] = max(0, best[number] + step)
            assert loss(*best) <= loss(*moved) + 1e-9
    assert loss(*best) <= loss(1.12, 0.02)


def test_by_accuracy_no_point_of_the_grid_is_better(problem):
    model = CALIPClassifier(text_prior=problem.prior, criterion="accuracy", **HERE)
    model.fit(problem.X, problem.y)
    labels = np.searchsorted(model.classes_, problem.y)

    def accuracy(*weights):
        return (literal(problem, problem.X, *weights).argmax(1) == labels).mean()

    tried = [accuracy(b, c) for b in calip.GRIDS["image_weight"][::4] for c in (0.0, 0.1, 0.2)]
    assert accuracy(model.image_weight_, model.text_weight_) >= max(tried)
    assert model.loo_.accuracy == pytest.approx(accuracy(model.image_weight_, model.text_weight_))


@pytest.mark.parametrize("criterion", ["nll", "accuracy"])
def test_a_weight_that_is_given_is_kept(criterion, problem):
    model = CALIPClassifier(text_prior=problem.prior, text_weight=0.05, criterion=criterion)
    model.fit(problem.X, problem.y)
    assert model.text_weight_ == 0.05
    assert model.image_weight_ != 1.12


def test_a_validation_set_chooses_instead_of_the_shots(problem):
    one = CALIPClassifier(text_prior=problem.prior, **HERE)
    one.fit(problem.X[:4], problem.y[:4], validation=(problem.queries, problem.truth))
    other = CALIPClassifier(text_prior=problem.prior, **HERE).fit(problem.queries, problem.truth)
    np.testing.assert_array_equal(one.predict_proba(problem.X), other.predict_proba(problem.X))
    assert not one.loo_.counted.any()
    assert other.loo_.counted.all()


def test_a_class_without_shots_is_found_by_its_text(problem):
    model = CALIPClassifier(text_prior=problem.prior, **HERE).fit(problem.X, problem.y)
    of_text = np.repeat(problem.prior.vectors[:, None], 6, axis=1)
    assert model.predict(of_text).tolist() == list(NAMES)
    assert model.predict_proba(of_text).shape == (4, 4)


@pytest.mark.parametrize(
    "given",
    [
        lambda X: torch.tensor(X),
        lambda X: torch.tensor(X, dtype=torch.float32),
        lambda X: np.asfortranarray(X),
        lambda X: X[::-1][:, ::-1][::-1][:, ::-1],
        lambda X: X.tolist(),
    ],
    ids=["tensor", "float32", "fortran", "backwards", "list"],
)
def test_images_of_any_kind_are_read(given, problem):
    model = CALIPClassifier(text_prior=problem.prior, **GIVEN, **HERE).fit(problem.X, problem.y)
    expected = model.logits(problem.queries)
    before = problem.queries.copy()
    np.testing.assert_allclose(model.logits(given(problem.queries)), expected, atol=1e-4)
    np.testing.assert_array_equal(problem.queries, before)


def test_single_precision_is_near(problem):
    model = CALIPClassifier(text_prior=problem.prior, **GIVEN, device="cpu", dtype="float32")
    found = model.fit(problem.X, problem.y).logits(problem.queries)
    np.testing.assert_allclose(found, literal(problem, problem.queries, **GIVEN), atol=1e-3)


def test_a_clone_has_the_options_and_nothing_more(problem):
    model = CALIPClassifier(text_prior=problem.prior, **GIVEN).fit(problem.X, problem.y)
    copy = clone(model)
    assert (copy.image_weight, copy.text_weight) == (0.7, 0.3)
    with pytest.raises(NotFittedError):
        copy.predict(problem.X)


MISTAKES = {
    "two_dimensions": (lambda p: {"X": p.X[:, 0]}, r"encode_spatial\(images\) after encoder"),
    "no_places": (lambda p: {"X": p.X[:, :1]}, r"got \(21, 1, 10\)"),
    "no_images": (lambda p: {"X": p.X[:0]}, "at least one image"),
    "text": (lambda p: {"X": p.X.astype(str)}, "at least one image"),
    "nan": (lambda p: {"X": np.where(np.arange(21)[:, None, None] == 4, np.nan, p.X)}, "Image 4"),
    "zeros": (lambda p: {"X": p.X * (np.arange(126).reshape(21, 6, 1) != 80)}, "Image 13 of X"),
    "width": (lambda p: {"X": p.X[..., :9]}, "X has 9 features but the text vectors have 10"),
    "labels": (lambda p: {"y": np.where(p.y == "oak", "elm", p.y)}, "has no class 'elm'"),
    "no_y": (lambda _: {"y": None}, "both X and y, or neither"),
    "prior": (lambda _: {"text_prior": None}, "answers from text"),
    "weight": (lambda _: {"image_weight": -1}, "image_weight of CALIPClassifier must be 'auto'"),
    "criterion": (lambda _: {"criterion": "loss"}, "criterion of CALIPClassifier must be one of"),
    "device": (lambda _: {"device": "abacus"}, "device must be 'auto' or a torch device"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(mistake, problem, tools):
    change, phrase = MISTAKES[mistake]
    given = {"X": problem.X, "y": problem.y, "text_prior": problem.prior} | change(problem)
    X, y = given.pop("X"), given.pop("y")
    with tools.one_sentence(DataError, phrase):
        CALIPClassifier(**given).fit(X, y)


def test_queries_of_another_width_are_refused(problem, tools):
    model = CALIPClassifier(text_prior=problem.prior).fit(problem.X, problem.y)
    with tools.one_sentence(DataError, "X has 9 features, but CALIPClassifier is expecting 10"):
        model.predict(problem.X[..., :9])
    with tools.one_sentence(DataError, r"got \(21, 10\)"):
        model.predict(problem.X[:, 0])


def test_an_encoder_gives_what_is_needed():
    """End to end through `lite`: the image's feature first, then its 81 places."""
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (60, 80, 3), dtype=np.uint8) for _ in range(3)]
    encoder = load_encoder("lite", device="cpu")
    X = image_and_places(encoder, images)
    assert X.shape == (3, 82, encoder.dim)
    np.testing.assert_allclose(X[:, 0], encoder.encode_images(images), atol=1e-6)
    np.testing.assert_allclose(X[:, 1:], encoder.encode_spatial(images), atol=1e-6)
    prior = TextPrior(["cat", "dog"], encoder.encode_texts(["a cat", "a dog"]))
    assert set(CALIPClassifier(text_prior=prior).fit().predict(X)) <= {"cat", "dog"}


class WithoutPlaces(Encoder):
    """The mean colour of an image."""

    name, dim = "colour", 3
    preprocess = Preprocess()

    def _embed_images(self, batch):
        return batch.mean((2, 3))

    def _embed_texts(self, texts):
        return torch.ones(len(texts), 3)

    def _identity(self):
        yield b"colour"


def test_an_encoder_without_places_is_refused(tools):
    with tools.one_sentence(EncoderError, "'colour' has no spatial features"):
        image_and_places(WithoutPlaces("cpu"), [np.ones((9, 9, 3), dtype=np.uint8)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_and_cpu_agree(problem):
    cpu, gpu = (
        CALIPClassifier(text_prior=problem.prior, device=device, dtype="float64")
        .fit(problem.X, problem.y)
        .predict_proba(problem.queries)
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(gpu, cpu, atol=1e-4)
