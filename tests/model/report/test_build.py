"""A report of a classifier: its figures, its hardest images, its suspects, and what spoke."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpcache import GPCacheClassifier
from gpcache.images import Preprocess
from gpcache.images.records import Refused
from gpcache.images.worker import THUMBNAIL, prepare
from gpcache.methods.cache.search import REGRESSION_NUMBERS, SOFTMAX_NUMBERS
from gpcache.model.classifier import ImageClassifier
from gpcache.model.report import render
from gpcache.model.report.build import CASES, SHARES, build_report

TINY = Path(__file__).parents[2] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


def thumbnail(path):
    return prepare(path, Preprocess(size=1), None, "", thumbnail=THUMBNAIL).thumbnail


def write(root, label, seeds, folder=None):
    """Photos of one label, which are alike, in the folder of this or another label."""
    base = np.random.default_rng(ord(label)).integers(40, 216, (8, 8, 3))
    for seed in seeds:
        noise = np.random.default_rng([ord(label), seed]).normal(0, 60, (8, 8, 3))
        pixels = np.kron((base + noise).clip(0, 255), np.ones((5, 5, 1))).astype(np.uint8)
        path = root / (folder or label) / f"{label}{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six training photos of each of three classes, one of them misplaced; five test photos."""
    root = tmp_path_factory.mktemp("reporting")
    for label in "abc":
        write(root / "train", label, range(6))
        write(root / "test", label, range(50, 55))
    write(root / "train", "a", [99], folder="b")
    return root


@pytest.fixture(scope="module")
def classifier(photos):
    return ImageClassifier(tiny.ColourEncoder(), device="cpu").fit(photos / "train")


@pytest.fixture(scope="module")
def test_set(photos, classifier):
    return classifier.evaluate(photos / "test")


@pytest.fixture(scope="module")
def report(photos, classifier, test_set):
    return build_report(classifier, test_set, photos / "test", [Refused("x.jpg", "it is empty")])


def test_the_hardest_come_first_with_their_pictures(report, photos, test_set):
    cases = report.cases["Hardest test images"]
    assert len(cases) == CASES
    at_label = test_set.probabilities[np.arange(15), test_set.labels]
    order = np.argsort(at_label, kind="stable")[:CASES]
    assert [case.caption for case in cases] == [test_set.names[row] for row in order]
    for case, row in zip(cases, order, strict=True):
        assert case.image == thumbnail(photos / "test" / case.caption)
        assert case.truth == case.caption[0]
        assert case.answer == "abc"[test_set.predicted[row]]
        assert case.probability == test_set.probabilities[row].max()


def test_the_evidence_sums_to_the_logit_of_the_answer(report, classifier, photos):
    for case in report.cases["Hardest test images"]:
        features = classifier.encoder_.encode_images([photos / "test" / case.caption])
        logits = dict(zip("abc", classifier.model.logits(features)[0], strict=True))
        assert case.logit == pytest.approx(logits[case.answer], abs=1e-6)
        assert 0 < len(case.evidence) <= SHARES
        assert all(one.image is not None for one in case.evidence)


def test_the_misplaced_photo_is_suspicious_and_what_it_says_of_itself_is_left_out(
    report, classifier, photos
):
    case = report.cases["Suspicious training images"][0]
    assert (case.caption, case.truth, case.answer) == ("b/a99.png", "b", "a")
    own = thumbnail(photos / "train" / "b" / "a99.png")
    assert case.image == own
    assert own not in [one.image for one in case.evidence]
    features = classifier.encoder_.encode_images([photos / "train" / "b" / "a99.png"])
    assert case.logit == pytest.approx(classifier.model.logits(features)[0, 0], abs=1e-6)


def test_everything_else_is_the_models(report, classifier):
    model = classifier.model
    assert report.title == "3 classes from 19 images"
    assert report.held_out.accuracy == model.loo_.accuracy
    assert report.chosen == {
        name: getattr(model, f"{name}_") for name in ("temperature", *SOFTMAX_NUMBERS)
    }
    assert len(report.chosen) == 7
    assert report.search is model.search_
    assert report.embedding.features.shape == (19, 16)
    assert [report.embedding.class_names[i] for i in report.embedding.labels] == [
        example.label for example in classifier.examples
    ]
    assert report.refused == [("x.jpg", "it is empty")]
    assert report.facts["encoder"] == "colour"


def test_a_report_of_regression_has_its_numbers(photos, test_set):
    model = GPCacheClassifier.from_options(likelihood="gaussian", device="cpu")
    classifier = ImageClassifier(tiny.ColourEncoder(), method=model, device="cpu")
    classifier.fit(photos / "train")
    found = build_report(classifier, test_set, photos / "test")
    assert set(found.chosen) == {"temperature", *REGRESSION_NUMBERS}
    assert all(case.average is None for cases in found.cases.values() for case in cases)


def test_the_page_shows_the_figures(report, test_set):
    pytest.importorskip("matplotlib", reason="needs the extra report")
    page = render(report)
    for evaluation in (test_set, report.held_out):
        assert f"{100 * evaluation.accuracy:.1f}" in page
        assert f"{evaluation.nll:.3f}" in page
    for part in ("b/a99.png", "Hardest test images", "x.jpg", "it is empty", "3 classes from 19"):
        assert part in page
    assert page.count("data:image/jpeg") >= CASES


def test_a_list_of_images_is_found_beside_its_file(photos, classifier):
    names = [f"{label}/{label}{seed}.png" for label in "abc" for seed in (50, 51)]
    rows = [f"{name},{name[0]}" for name in names]
    path = photos / "test" / "list.csv"
    path.write_text("\n".join(["path,label", *rows]))
    found = build_report(classifier, classifier.evaluate(path), path)
    assert sorted(case.caption for case in found.cases["Hardest test images"]) == names
    path.unlink()


def test_images_that_are_gone_have_no_case(classifier, test_set, tmp_path):
    report = build_report(classifier, test_set, tmp_path)
    assert "Hardest test images" not in report.cases
    assert report.test is test_set


def test_text_alone_has_a_report_too():
    model = ImageClassifier(tiny.ColourEncoder(), device="cpu").fit([], classes=["a", "b"])
    report = build_report(model, None)
    assert report.facts["method"] == "zero-shot"
    assert (report.embedding, report.search, report.held_out) == (None, None, None)
    assert report.cases == {}


def test_an_estimator_is_called_by_its_name(photos):
    model = ImageClassifier(tiny.ColourEncoder(), method=GPCacheClassifier.from_options(alpha=2.0))
    assert build_report(model.fit(photos / "train"), None).facts["method"] == "gpcache"
