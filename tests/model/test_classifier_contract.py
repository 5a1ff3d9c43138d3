"""ImageClassifier beside scikit-learn: inputs of every kind, its tools, and its conventions."""

import doctest
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.validation import check_is_fitted

from gpcache import DataError, EncoderError, GPCacheClassifier, ImageClassifier
from gpcache.model import classifier as module

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (40, 60, 220)}
LABELS = [name for name in COLOURS for _ in range(4)]


def pictures(start=0):
    """Four patchy pictures (12, 32, 40, 3) of each colour."""
    generator = np.random.default_rng(start)
    plain = np.array([COLOURS[label] for label in LABELS])[:, None, None]
    patches = plain + generator.normal(0, 30, (len(LABELS), 8, 10, 3))
    return np.kron(patches.clip(0, 255), np.ones((1, 4, 4, 1))).astype(np.uint8)


PIXELS, UNSEEN = pictures(), pictures(1)


def make(**options):
    return ImageClassifier(tiny.ColourEncoder(), **{"device": "cpu", "prompt": None} | options)


@pytest.fixture(scope="module")
def fitted():
    return make().fit(PIXELS, LABELS)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return sorted(folder.iterdir())


def one_sentence(phrase, kind=DataError):
    return pytest.raises(kind, match=rf"^[^\n]*{phrase}[^\n]*\.$")


# What goes in.


class ClassLabel:
    """What a column of class numbers of the datasets library offers."""

    names = tuple(COLOURS)

    def int2str(self, number):
        if not isinstance(number, int):
            raise ValueError(f"Values {number} should be an integer or an Iterable")
        return self.names[number]


class Feature:
    """A column of any other kind."""


class Dataset:
    """What a Dataset of the datasets library offers."""

    def __init__(self, rows, **features):
        self._rows, self.features, self.column_names = rows, features, list(features)

    def __len__(self):
        return len(self._rows)

    def __iter__(self):
        return iter(self._rows)


IMAGE_COLUMN = type("Image", (), {})()


def dataset(image="image", label="label", number=int):
    numbers = {name: number(place) for place, name in enumerate(COLOURS)}
    rows = [
        {image: Image.fromarray(p), label: numbers[name], "id": 7}
        for p, name in zip(PIXELS, LABELS, strict=True)
    ]
    return Dataset(rows, **{image: IMAGE_COLUMN, label: ClassLabel(), "id": Feature()})


def tensor(pixels):
    return torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "images",
    [
        PIXELS,
        list(PIXELS),
        tuple(PIXELS),
        [Image.fromarray(pixels) for pixels in PIXELS],
        PIXELS / 255,
        list((PIXELS / 255).astype(np.float32)),
        tensor(PIXELS),
        list(tensor(PIXELS)),
        tensor(PIXELS) / 255,
    ],
    ids=[
        "stack",
        "list",
        "tuple",
        "pillow",
        "floats",
        "float32",
        "tensor",
        "tensors",
        "float-tensor",
    ],
)
@pytest.mark.parametrize("labels", [LABELS, np.array(LABELS)], ids=["list", "array"])
def test_images_in_memory_are_the_same_however_they_are_held(images, labels, fitted):
    found = make().fit(images, labels)
    assert [one.hash for one in found.examples] == [one.hash for one in fitted.examples]
    np.testing.assert_array_equal(found.predict_proba(images), fitted.predict_proba(PIXELS))


def test_paths_and_their_labels(paths, fitted):
    for given in (paths, [str(path) for path in paths], np.array([str(path) for path in paths])):
        found = make().fit(given, LABELS)
        assert [one.name for one in found.examples] == [path.as_posix() for path in paths]
        np.testing.assert_allclose(
            found.predict_proba(UNSEEN), fitted.predict_proba(UNSEEN), atol=1e-6
        )


def test_labels_of_any_type_become_text():
    numbers = [list(COLOURS).index(label) for label in LABELS]
    for labels in (numbers, np.array(numbers), torch.tensor(numbers)):
        assert make().fit(PIXELS, labels).classes == ["0", "1", "2"]
    partly = make().fit(PIXELS, [*LABELS[:-1], None])
    assert len(partly.examples) == 11
    assert [one.reason for one in partly.training.refused] == ["it has no label"]


@pytest.mark.parametrize(
    "given",
    [
        dataset(),
        dataset("img", "fine_label"),
        dataset(number=np.int64),
        dataset(number=torch.tensor),
    ],
    ids=["plain", "other-names", "numpy", "torch"],
)
def test_a_hugging_face_dataset(given, fitted):
    found = make().fit(given)
    assert [one.label for one in found.examples] == LABELS
    np.testing.assert_array_equal(found.predict_proba(given), fitted.predict_proba(PIXELS))
    assert found.score(given) == fitted.score(PIXELS, LABELS)


def test_pairs_and_further_images_with_labels(fitted):
    pairs = list(zip(PIXELS, LABELS, strict=True))
    found = make().fit(pairs[:-1])
    found.add(PIXELS[-1:], LABELS[-1:])
    assert [one.label for one in found.examples] == [one.label for one in fitted.examples]
    assert found.evaluate(UNSEEN, LABELS).accuracy == found.score(UNSEEN, LABELS)


@pytest.mark.parametrize(
    ("images", "labels", "phrase"),
    [
        (PIXELS, LABELS[:-1], "There are 12 images and 11 labels"),
        (PIXELS, np.zeros((12, 2)), r"one label per row, got labels of shape \(12, 2\)"),
        (PIXELS[0], LABELS, r"single image \(numpy array of uint8 with shape \(32, 40, 3\)\): put"),
        (
            tensor(PIXELS)[0],
            LABELS,
            "single image .*torch tensor of uint8 with shape .*: put it in",
        ),
        (Image.fromarray(PIXELS[0]), ["red"], r"single image \(Image\): put it in a list"),
        (3, LABELS, "images is of the type int: give a list, each item a path, bytes"),
        ((pixels for pixels in PIXELS), LABELS, "labels need a sequence of images: make a list"),
        ("photos", LABELS, "a folder, a list or a data set brings its own"),
        (dataset(), LABELS, "a folder, a list or a data set brings its own"),
        ({"train": dataset()}, None, r"has the splits 'train': give one of them, as images\[split"),
        (Dataset([{"x": 1}], x=Feature()), None, "no column 'image', but 'x': name the one"),
        (PIXELS.transpose(0, 3, 1, 2), LABELS, r"'item 0000000'.*\(h, w, c\).*\(3, 32, 40\)"),
        (tensor(PIXELS).permute(0, 2, 3, 1), LABELS, r"'item 0000000'.*\(c, h, w\).*\(32, 40, 3\)"),
        (tensor(PIXELS) / 255 - 0.5, LABELS, r"'item 0000000'.*from 0 to 1, so undo.* -0\.5 to 0"),
        (PIXELS.astype(np.int64), LABELS, "'item 0000000'.*uint8 or uint16.*numpy array of int64"),
        (np.zeros((12, 512)), LABELS, r"'item 0000000'.*float64 with shape \(512,\)"),
        ([{"a": 1}] * 12, LABELS, "'item 0000000'.*a path, bytes, a Pillow image.*got dict"),
    ],
)
def test_wrong_input_is_one_sentence(images, labels, phrase):
    with one_sentence(phrase):
        make().fit(images, labels)


def test_one_wrong_image_is_listed_by_its_position():
    found = make().fit([*PIXELS[:5], "gone.png", *PIXELS[6:]], LABELS)
    assert [one.name for one in found.training.refused] == ["gone.png"]
    assert [one.label for one in found.examples] == LABELS[:5] + LABELS[6:]
    with pytest.warns(UserWarning, match=r"^Left out 1 of 3 images, such as 'item 0000001': .*int"):
        answers = found.predict([UNSEEN[0], 3, UNSEEN[2]])
    assert [one.name for one in answers] == ["item 0000000", "item 0000002"]
    with pytest.warns(UserWarning, match="^Left out 1 of 2 images") as caught:
        assert found.score([UNSEEN[0], 3], LABELS[:2]) == 1
    assert caught[0].filename == __file__


# What comes out.


def test_predict_gives_a_list_in_order(fitted):
    found = fitted.predict(UNSEEN)
    assert isinstance(found, list)
    assert [one.name for one in found] == [f"item {row:07}" for row in range(12)]
    assert fitted.predict([]) == []
    assert [one.label for one in fitted.predict_stream(UNSEEN)] == [one.label for one in found]


def test_probabilities_and_score_are_those_of_the_predictions(fitted):
    found, probabilities = fitted.predict(UNSEEN), fitted.predict_proba(UNSEEN)
    assert probabilities.shape == (12, 3)
    np.testing.assert_array_equal(probabilities, [one.distribution for one in found])
    np.testing.assert_array_equal(fitted.classes_, sorted(COLOURS))
    assert fitted.classes == fitted.classes_.tolist()
    assert fitted.predict_proba([]).shape == (0, 3)
    shifted = LABELS[2:] + LABELS[:2]
    assert fitted.score(UNSEEN, LABELS) == 1
    expected = np.mean([one.label == label for one, label in zip(found, shifted, strict=True)])
    assert fitted.score(UNSEEN, shifted) == expected < 1
    assert fitted.score(UNSEEN, ["pink"] * 12) == 0
    with one_sentence("'item 0000000' has no label to compare with"):
        fitted.score(UNSEEN)
    with one_sentence("There is no labelled image"):
        fitted.score([])


# scikit-learn's conventions.


def test_parameters_are_stored_as_given_and_can_be_set():
    encoder, method = tiny.ColourEncoder(), GPCacheClassifier(device="cpu")
    given = {
        "encoder": encoder,
        "method": method,
        "prompt": "a {}.",
        "views": 2,
        "projection": None,
        "device": "cpu",
    }
    model = ImageClassifier(**given)
    assert all(model.get_params(deep=False)[name] is value for name, value in given.items())
    assert model.get_params()["method__device"] == "cpu"
    model.set_params(views=0, prompt=None, method__dtype="float32")
    assert (model.views, model.prompt, method.dtype) == (0, None, "float32")
    with pytest.raises(ValueError, match="Invalid parameter 'colour'"):
        model.set_params(colour="red")


def test_another_encoder_is_for_the_next_fit():
    model = make().fit(PIXELS, LABELS)
    model.set_params(encoder=tiny.ColourEncoder(seed=1))
    with pytest.raises(EncoderError, match="use the encoder of the model"):
        model.predict(UNSEEN)
    assert model.fit(PIXELS, LABELS).score(UNSEEN, LABELS) > 0.5


def test_a_clone_is_not_fitted_and_shares_the_encoder(fitted):
    method = GPCacheClassifier(device="cpu")
    for model in (make(), make(method=method, views=2), fitted):
        copy = clone(model)
        assert copy.encoder is model.encoder
        assert repr(copy).endswith("not fitted)")
        assert copy.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    assert clone(make(method=method)).method is not method
    assert clone(fitted).fit(PIXELS, LABELS).score(UNSEEN, LABELS) == 1


def test_a_clone_of_a_loaded_model_uses_its_encoder(fitted, tmp_path):
    fitted.save(tmp_path / "m.gpc")
    loaded = ImageClassifier.load(tmp_path / "m.gpc", encoder=fitted.encoder_, device="cpu")
    assert clone(loaded).fit(PIXELS, LABELS).score(UNSEEN, LABELS) == 1


def test_repr_is_short(fitted):
    assert repr(make()) == "ImageClassifier(encoder='colour', method='gpcache', not fitted)"
    assert repr(fitted) == (
        "ImageClassifier(encoder='colour', method='gpcache', fitted on 12 images of 3 classes)"
    )
    alone = make(method=GPCacheClassifier(device="cpu")).fit(PIXELS[:1], ["red"])
    assert repr(alone).endswith("method='gpcache', fitted on 1 image of 1 class)")
    assert "ImageClassifier" in make()._repr_html_()


def test_a_classifier_that_is_not_fitted_says_so_as_scikit_learn_does(fitted):
    check_is_fitted(fitted)
    assert is_classifier(fitted)
    model = make()
    assert not hasattr(model, "classes_")
    for call in (check_is_fitted, lambda one: one.predict(UNSEEN), lambda one: one.classes_):
        with pytest.raises(NotFittedError):
            call(model)


def test_it_fits_into_cross_validation_and_grid_search(paths):
    images = [str(path) for path in paths]
    scores = cross_val_score(make(), images, LABELS, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert scores.mean() == 1
    search = GridSearchCV(make(), {"method": ["gpcache", "gda"]}, cv=2, error_score="raise")
    search.fit(PIXELS, LABELS)
    assert search.score(UNSEEN, LABELS) == 1
    log_loss = cross_val_score(make(), images, LABELS, cv=2, scoring="neg_log_loss")
    assert (log_loss < 0).all()


def test_the_examples_of_the_docstrings_run():
    pytest.importorskip("onnxruntime")
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
