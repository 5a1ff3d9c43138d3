"""The model that follows a workspace: exact beyond a few photos, and honest about itself."""

import copy
import shutil
import time

import numpy as np
import pytest

from gpcache import GPCacheClassifier
from gpcache.web.learner import FEW, Learner, Texts
from gpcache.web.workspace_contents import Contents, Photo

CLASSES = ("ant", "bee", "cow")


@pytest.fixture(scope="module")
def world(encoder):
    """Contents beyond the few, features by hash, and queries."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, encoder.dim))
    rows, contents = {}, Contents()
    for name in CLASSES:
        contents = contents.with_class(name)
    photos = []
    for number in range(FEW + 20):
        row = centres[number % 3] + 0.7 * random.normal(size=encoder.dim)
        rows[f"h{number}"] = (row / np.linalg.norm(row)).astype(np.float32)
        photos.append(Photo(f"p{number + 1}", f"{number}.jpg", CLASSES[number % 3], f"h{number}"))
    queries = centres[[0, 1, 2, 0]] + 0.9 * random.normal(size=(4, encoder.dim))
    return contents.with_photos(photos), rows, queries.astype(np.float32)


REGRESSION = GPCacheClassifier.from_options(
    likelihood="gaussian", kernel_space="centred", device="cpu"
)
# The default is solved by iteration, regression in closed form.
ROUNDING = {"default": 1e-6, "regression": 1e-8}


@pytest.fixture
def begin(world, encoder):
    """A learner that has seen the contents; it makes models as the template says."""

    def begin(template=None):
        contents, rows, _ = world
        texts = Texts(encoder)
        templates = ("a photo of a {}.",)
        learner = Learner(texts, templates, rows.__getitem__, template, device="cpu")
        learner.follow(contents)
        return learner

    return begin


@pytest.fixture
def learner(begin):
    return begin()


@pytest.fixture(params=list(ROUNDING))
def either(request, begin):
    """A learner of the default, or of regression, and what its answers may differ by."""
    template = REGRESSION if request.param == "regression" else None
    return begin(template), ROUNDING[request.param]


def said(learner, queries):
    """Probabilities by class name."""
    order = np.argsort([str(name) for name in learner.model.classes_])
    return learner.model.predict_proba(queries)[:, order]


def test_changes_and_their_undoing_are_exact(either, world):
    learner, rounding = either
    contents, _, queries = world
    before = said(learner, queries)
    edits = [
        contents.with_labels(["p1", "p5"], "cow"),
        contents.without_photos(["p2", "p30"]),
        contents.with_class("dog"),
        contents.with_changed_class("ant", prompt="an insect"),
    ]
    for edited in edits:
        learner.follow(edited)
        assert np.abs(said(learner, queries)[:, :3] - before).max() > 1e-6
        learner.follow(contents)
        np.testing.assert_allclose(said(learner, queries), before, atol=rounding)


def test_a_renamed_class_answers_as_before(either, world):
    learner, rounding = either
    contents, _, queries = world
    before = said(learner, queries)
    # The same text under a name that sorts alike.
    told = contents.with_changed_class("bee", "bumblebee", "a photo of a bee.")
    learner.follow(told)
    np.testing.assert_allclose(said(learner, queries), before, atol=rounding)
    assert {photo.label for photo in learner.photos} == {"ant", "bumblebee", "cow"}


def test_leaving_out_is_what_removing_does(begin):
    """The closed form against a model that really has not got the photo."""
    learner = begin(REGRESSION)
    found = learner.held_out()
    assert found.protocol.startswith("leave-one-out in closed form")
    assert found.counted.all()
    for row in (0, 17, 50):
        model = copy.deepcopy(learner.model)
        model.remove([row], refit=False)
        key = learner.rows([learner.photos[row]])
        np.testing.assert_allclose(model.predict_proba(key)[0], found.probabilities[row], atol=1e-8)
        np.testing.assert_allclose(model.novelty(key)[0], found.novelty[row], atol=1e-8)


def test_the_default_holds_photos_out_in_folds(learner):
    """Each fold learns the whitening anew, at the hyper-parameters in use."""
    found, report = learner.held_out(), learner.model.loo_
    assert found.counted.all()
    assert found.protocol == "4-fold cross-validation; everything is refitted in each fold"
    np.testing.assert_array_equal(found.probabilities, report.probabilities)
    np.testing.assert_array_equal(found.novelty, learner.model.held_out_novelty_)


def test_copies_do_not_vouch_for_each_other(either, world):
    """A wrong label that stands there twice is held out twice."""
    learner, _ = either
    contents, rows, _ = world
    rows["twin"] = rows["h0"]
    twin = Photo("p900", "twin.jpg", "cow", "h0")
    wrong = contents.with_labels(["p1"], "cow").with_photos([twin])
    learner.follow(wrong)
    found = learner.held_out()
    places = [row for row, photo in enumerate(found.photos) if photo.hash == "h0"]
    assert len(places) == 2
    for row in places:
        assert found.classes[found.probabilities[row].argmax()] == "ant"
    assert {"p1", "p900"} <= {key for key, kinds in found.flags().items() if "duplicate" in kinds}


@pytest.mark.parametrize("has_pictures", [True, False])
def test_pictures_show_copies_that_features_miss(encoder, has_pictures):
    """A mirrored photo has other features, but the same picture from left to right."""
    random = np.random.default_rng(0)
    width = 8 * encoder.dim
    rows = {f"h{n}": random.normal(size=width).astype(np.float32) for n in range(20)}
    pictures = {f"h{n}": random.integers(0, 256, (32, 32), dtype=np.uint8) for n in range(20)}
    rows["copy"] = rows["h3"] + 0.6 * random.normal(size=width).astype(np.float32)
    pictures["copy"] = np.ascontiguousarray(pictures["h3"][:, ::-1])
    photos = [Photo(f"p{n}", f"{key}.jpg", CLASSES[n % 2], key) for n, key in enumerate(rows)]
    contents = Contents().with_class("ant").with_class("bee").with_photos(photos)
    picture = pictures.__getitem__ if has_pictures else None
    learner = Learner(Texts(encoder), None, rows.__getitem__, picture=picture, device="cpu")
    learner.follow(contents)
    marked = {key for key, kinds in learner.held_out().flags().items() if "burst" in kinds}
    assert marked == ({"p3", "p20"} if has_pictures else set())


def test_numbers_are_chosen_anew_when_outgrown(learner, world):
    contents, _, _ = world
    assert not learner.outgrown
    some = contents.without_photos([f"p{number}" for number in range(1, 4)])
    learner.follow(some)
    assert not learner.outgrown
    learner.stored = learner.stored._replace(fitted_on=40)
    assert learner.outgrown


def test_numbers_are_chosen_anew_when_a_class_gets_its_first_photo(learner, world):
    """Without it the choice knew nothing of that class."""
    contents, _, _ = world
    learner.follow(contents.with_class("dog"))
    assert not learner.outgrown
    learner.follow(contents.with_class("dog").with_labels(["p1", "p2"], "dog"))
    assert learner.outgrown
    learner.fit(contents.with_class("dog").with_labels(["p1", "p2"], "dog"))
    assert not learner.outgrown


def test_an_outgrown_model_is_fitted_again_on_all_photos(start, photo, tmp_path):
    """Twice the photos that the numbers were chosen on; another server has the photos alone."""
    growing = start()
    for label in ("red", "blue"):
        files = [("files", (f"{label}{k}.jpg", photo(label, k))) for k in range(36)]
        growing.client.post("/v1/examples", data={"label": label}, files=files)
    shutil.copytree(tmp_path / "workspace", tmp_path / "copy", ignore=lambda *_: [".lock"])
    shutil.rmtree(tmp_path / "copy" / "model.gpc")
    fresh = start(tmp_path / "copy")

    def asked(server):
        files = [("files", (f"{k}.jpg", photo((110, 90, 110), k))) for k in range(3)]
        found = server.client.post("/v1/predict", files=files).json()["predictions"]
        return [one[figure] for one in found for figure in ("probability", "uncertainty")]

    wanted, end = pytest.approx(asked(fresh), abs=1e-6), time.monotonic() + 300
    while (told := asked(growing)) != wanted and time.monotonic() < end:
        time.sleep(0.1)
    assert told == wanted
