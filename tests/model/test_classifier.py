"""ImageClassifier: folders, lists and arrays in; names, doubts and reasons out."""

import importlib.util
import itertools
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gpcache import DataError, EncoderError, GPCacheClassifier, ImageRefusedError
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.errors import ProtocolError
from gpcache.images.records import Refused
from gpcache.model.classifier import ImageClassifier
from gpcache.similarity import ProjectionFacts, SimilarityProjection
from gpcache.similarity.folder import save_projection

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (40, 60, 220)}
NUMBERS = {"alpha": 3.0, "beta": 2.5, "noise": 0.2, "gain": 0.8}


class PaintEncoder(tiny.ColourEncoder):
    """Knows what colours are called: its text is the plain colour of the word in it."""

    name = "paint"

    def _embed_texts(self, texts):
        words = [[word for word in COLOURS if word in text] for text in texts]
        if not all(words):
            return super()._embed_texts(texts)
        plain = np.array([COLOURS[found[0]] for found in words], dtype=np.uint8)
        pixels = torch.from_numpy(plain[:, None, None, :].repeat(8, 1).repeat(8, 2))
        return self._embed_images(self.preprocess.normalised(pixels))


def paint(colour, seed):
    """A patchy picture in this colour that no other seed gives."""
    generator = np.random.default_rng([*map(ord, colour), seed])
    patches = np.array(COLOURS[colour]) + generator.normal(0, 45, (6, 8, 3))
    return np.kron(patches.clip(0, 255), np.ones((6, 6, 1))).astype(np.uint8)


def shots(count=4, start=0, colours=COLOURS):
    return [(paint(c, seed), c) for c in colours for seed in range(start, start + count)]


@pytest.fixture
def encoder():
    return PaintEncoder()


@pytest.fixture
def classifier(encoder):
    """A classifier with these options, fitted on pairs if they are given."""

    def make(pairs=None, **options):
        made = ImageClassifier(encoder, device="cpu", **options)
        return made if pairs is None else made.fit(pairs)

    return make


@pytest.fixture
def fixed(classifier):
    """A classifier at given numbers in the raw space, where an update is a fit."""

    def make(pairs, **options):
        fixed = {"likelihood": "gaussian", "kernel_space": "raw", "device": "cpu"} | NUMBERS
        return classifier(pairs, method=GPCacheClassifier.from_options(**fixed), **options)

    return make


@pytest.fixture
def folder(tmp_path):
    """Three class folders of three photos, an empty one, and a file that is no image."""
    root = tmp_path / "photos"
    for pixels, colour in shots(3):
        number = len(list(root.glob(f"{colour}/*")))
        (root / colour).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / colour / f"{number}.png")
    (root / "yellow").mkdir()
    (root / "red" / "broken.jpg").write_bytes(b"no image")
    return root


def one_sentence(phrase, kind=DataError):
    return pytest.raises(kind, match=rf"^[^\n]*{phrase}[^\n]*\.$")


def logits(model, pairs):
    return model.model.logits(model.encoder_.encode_images([image for image, _ in pairs]))


def assert_same(found, expected):
    queries = shots(2, start=90)
    assert found.classes == expected.classes
    assert [one.label for one in found.examples] == [one.label for one in expected.examples]
    np.testing.assert_allclose(logits(found, queries), logits(expected, queries), atol=1e-8)


# Learning.


def test_a_folder_is_learned(folder, classifier):
    model = classifier(folder)
    assert model.classes == ["blue", "green", "red", "yellow"]
    expected = [(f"{colour}/{i}.png", colour) for colour in sorted(COLOURS) for i in range(3)]
    assert [(one.name, one.label) for one in model.examples] == expected
    assert [one.name for one in model.training.refused] == ["red/broken.jpg"]
    assert any("yellow" in notice for notice in model.training.notices)
    assert model.evaluate(shots(3, 50)).accuracy == 1


def test_a_manifest_is_learned(folder, classifier):
    rows = [f"{c}/{i}.png,{c},{c}-burst" for c in COLOURS for i in range(2)]
    rows += ["red/2.png,,", "red/gone.png,red,"]
    (folder / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    model = classifier(folder / "list.csv")
    assert model.classes == ["blue", "green", "red"]
    assert len(model.examples) == 6
    assert model.examples[0].group == "blue-burst"
    reasons = {one.name: one.reason for one in model.training.refused}
    assert reasons["red/2.png"] == "it has no label"
    assert "no such file" in reasons["red/gone.png"]
    assert model.picture(0) is not None


def test_a_draw_is_reproducible_and_names_what_was_left_out(folder, classifier):
    draws = [classifier().fit(folder, shots=2, seed=seed) for seed in (0, 0, 1)]
    names = [[one.name for one in model.examples] for model in draws]
    assert names[0] == names[1] != names[2]
    assert [one.label for one in draws[0].examples] == sorted(2 * list(COLOURS))
    assert (draws[0].training.shots, draws[0].training.seed) == (2, 0)
    more = classifier().fit([(paint("red", 9), None), *shots(2)], shots=3)
    assert len(more.examples) == 6
    assert more.training.refused == [Refused("item 0000000", "it has no label")]
    assert "The class 'red' has 2 of 3 images." in more.training.notices


def test_an_image_without_a_label_is_not_even_decoded(classifier):
    model = classifier().fit([(b"no image", None), *shots(2)])
    assert model.training.refused == [Refused("item 0000000", "it has no label")]
    assert len(model.examples) == 6


def test_a_class_without_a_photo_is_known_by_its_name(classifier):
    model = classifier().fit(shots(4, colours=["red", "green"]), classes=["blue"])
    assert model.classes == ["blue", "green", "red"]
    found = model.predict([paint("blue", seed) for seed in range(5)])
    assert [p.label for p in found] == ["blue"] * 5


def test_without_any_photo_the_text_answers(classifier, encoder, tmp_path):
    for method in ("gpcache", GPCacheClassifier()):
        model = classifier(method=method).fit([], classes=list(COLOURS))
        pictures = [image for image, _ in shots(2)]
        found = np.array([p.distribution for p in model.predict(pictures)])
        text = text_weights(encoder, Prompts.from_templates(sorted(COLOURS)))
        odds = np.exp(10.0 * encoder.encode_images(pictures) @ text.T)
        np.testing.assert_allclose(found, odds / odds.sum(1, keepdims=True), atol=1e-5)
        assert model.held_out() is None
    model.save(tmp_path / "text.gpc")
    loaded = ImageClassifier.load(tmp_path / "text.gpc", encoder=encoder, device="cpu")
    again = np.array([p.distribution for p in loaded.predict(pictures)])
    np.testing.assert_array_equal(again, found)


def test_one_photo_a_class_is_enough(classifier):
    for prompt in ("a {}.", None):
        model = classifier(shots(1), prompt=prompt)
        assert model.evaluate(shots(4, 50)).accuracy == 1
        assert model.held_out() is None
        found = model.predict([paint("red", 50)])[0]
        assert np.isnan(found.familiarity)
        assert not found.rejected


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("prompt", ["a {}.", None])
def test_one_class_is_always_right(count, prompt, classifier):
    model = classifier(shots(count, colours=["red"]), prompt=prompt)
    found = model.predict([paint("red", 50)])[0]
    assert (found.label, found.probability) == ("red", 1.0)


def test_copies_inside_a_class_count_once_and_across_classes_are_learned(classifier):
    """Held out, a copy would be answered by its other: figures would flatter the model."""
    photos = shots(3)
    # One that comes without a label first is no stumbling block.
    given = [(photos[8][0], None), *photos, photos[0], photos[4], (photos[0][0], "blue")]
    model = classifier().fit(given)
    assert len(model.examples) == 10
    (notice,) = model.training.notices
    assert notice == (
        "2 images are in their class already and count once, such as 'item 0000010', which is "
        "'item 0000001'."
    )
    once = classifier().fit([*photos, (photos[0][0], "blue")])
    assert model.held_out().accuracy == once.held_out().accuracy
    queries = [image for image, _ in shots(2, start=9)]
    answers = [[one.probability for one in m.predict(queries)] for m in (model, once)]
    np.testing.assert_array_equal(*answers)


def test_a_draw_takes_another_image_for_a_copy(classifier, tmp_path):
    for name, (image, label) in enumerate([*shots(2), *shots(1)]):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / label / f"{name}.png")
    model = classifier().fit(tmp_path, shots=2)
    assert len({(one.label, one.hash) for one in model.examples}) == 6


def test_what_is_known_is_not_added_again(fixed):
    photos = shots(2)
    model = fixed(photos)
    before = model.model.loo_.logits.copy()
    model.add(photos[:2])
    assert len(model.examples) == len(photos)
    assert model.training.notices[-1].startswith("2 images are in their class already")
    np.testing.assert_array_equal(model.model.loo_.logits, before)
    with one_sentence("it is in the model as 'item 0000000' of the class 'red'"):
        model.add([(photos[0][0], "blue")])
    model.add([(photos[0][0], "blue"), (paint("blue", 9), "blue")])
    assert len(model.examples) == len(photos) + 1
    assert model.training.refused[-1].reason.endswith("gpcache relabel changes that")


def test_a_known_folder_with_a_broken_image_is_no_mistake(classifier, tmp_path):
    for name, (image, label) in enumerate(shots(2)):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / label / f"{name}.png")
    model = classifier().fit(tmp_path)
    (tmp_path / "red" / "broken.png").write_bytes(b"no image")
    model.add(tmp_path)
    assert len(model.examples) == 6
    assert model.training.refused[-1].name == "red/broken.png"
    assert model.training.notices[-1].startswith("6 images are in their class already")


def test_relabelling_one_of_two_copies_leaves_one(fixed):
    photos = shots(3)
    model = fixed([*photos, (photos[0][0], "blue")])
    model.relabel({"item 0000009": "red"})
    assert len(model.examples) == len(model.model.fitted_.shots) == 9
    assert "which is 'item 0000000'" in model.training.notices[-1]
    assert_same(model, fixed(photos))


def test_views_change_the_keys(classifier):
    plain, seen = classifier(shots()), classifier(shots(), views=3)
    assert np.abs(logits(plain, shots(1, 50)) - logits(seen, shots(1, 50))).max() > 0.01


@pytest.mark.parametrize(
    ("call", "phrase"),
    [
        (lambda c: c().fit([]), "no labelled image"),
        (lambda c: c().fit([paint("red", 0)]), "no labelled image"),
        (lambda c: c(prompt=None).fit([], classes=["red"]), "every class needs an image: 'red'"),
        (lambda c: c(prompt=None).fit(shots(), classes=["x"]), "every class needs an image: 'x'"),
        (lambda c: c().fit(shots(), shots=0), "shots must be a whole number above zero"),
        (lambda c: c().fit("nowhere"), "no file or folder 'nowhere'"),
        (lambda c: c(method="magic").fit(shots()), "no method 'magic'"),
        (lambda c: c(prompt="no braces").fit(shots()), "template must hold {} once"),
        (lambda c: c(views=-1).fit(shots()), "a whole number above zero"),
        (lambda c: c(shots()).predict([], reject=1), "reject must be a rate"),
    ],
)
def test_bad_input_is_one_sentence(call, phrase, classifier):
    with one_sentence(phrase.replace("{", r"\{").replace("}", r"\}")):
        call(classifier)


@pytest.mark.parametrize("name", ["predict", "evaluate", "add", "held_out", "suspects", "save"])
def test_a_model_that_is_not_fitted_says_so(name, classifier):
    arguments = {"save": ["x.gpc"], "held_out": [], "suspects": []}.get(name, [shots(1)])
    with one_sentence("not fitted: call fit first"):
        list(getattr(classifier(), name)(*arguments) or ())


def test_a_fit_that_fails_leaves_no_mixture(classifier):
    model = classifier(shots())
    for call, phrase in ((model.fit, "no labelled image"), (model.predict, "not fitted")):
        with one_sentence(phrase):
            list(call([paint("red", 0)]))


# Answers.


def test_probabilities_sum_to_one_and_are_json(classifier):
    for found in classifier(shots()).predict([image for image, _ in shots(2, 50)], why=3):
        assert found.distribution.sum() == pytest.approx(1, abs=1e-12)
        assert found.top(3)[0] == (found.label, found.probability)
        answer = json.loads(json.dumps(found.as_dict(top=2), allow_nan=False))
        assert [entry["label"] for entry in answer["why"]] == [n.label for n in found.neighbours]


def test_the_reasons_are_those_of_the_method(classifier):
    model = classifier(shots())
    query = paint("green", 50)
    why = model.model.explain(model.encoder_.encode_images([query]), top=2)
    found = model.predict([query], why=2)[0].neighbours
    assert [n.name for n in found] == [model.examples[row].name for row in why.shots[0]]
    assert [n.weight for n in found] == why.shares[0].tolist()


def rank_sums(scores):
    """Of rows (n,) by each of the scores (s, n): how many are no more familiar, summed over s."""
    return sum((one[:, None] >= one).sum(1) for one in scores)


def test_familiarity_is_the_share_of_held_out_photos_that_look_no_more_familiar(classifier):
    """By variance and highest probability together, the photo ranked among the held-out ones."""
    model = classifier(shots(12))
    fitted = model.model

    def highest(logits):
        odds = np.exp(logits / fitted.temperature_)
        return odds.max(1) / odds.sum(1)

    strange = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for image in (paint("red", 99), strange):
        found = model.predict([image], reject=0.05)[0]
        logits = fitted.logits(model.encoder_.encode_images([image]))
        own = (1 - found.uncertainty, highest(logits))
        known = (1 - fitted.held_out_novelty_, highest(fitted.loo_.logits))
        sums = rank_sums([np.append(*pair) for pair in zip(known, own, strict=True)])
        share = (sums <= sums[-1]).mean()
        assert found.familiarity == pytest.approx(share, abs=1e-12)
        assert found.rejected == (share <= 0.05)
    assert found.rejected
    assert not model.predict([strange], reject=0)[0].rejected


@pytest.mark.parametrize("method", ["gda", "task-res", "tip-adapter"])
def test_without_a_variance_the_highest_probability_tells(method, classifier):
    model = classifier(shots(8), method=method)
    fitted = model.model
    pictures = [paint("red", 99), paint("blue", 98)]
    known, own = (
        torch.tensor(logits / fitted.temperature_).softmax(1).amax(1)
        for logits in (
            fitted.loo_.logits[fitted.loo_.counted],
            fitted.logits(model.encoder_.encode_images(pictures)),
        )
    )
    for found, highest in zip(model.predict(pictures), own, strict=True):
        share = (1 + int((known <= highest + 1e-12).sum())) / (1 + len(known))
        assert found.familiarity == share


@pytest.mark.parametrize(
    ("photos", "method", "held_out"), [(1, "gpcache", 0), (4, "gpcache", 12), (8, "zero-shot", 0)]
)
def test_where_nothing_can_be_refused_it_is_said_why(photos, method, held_out, classifier):
    model = classifier(shots(photos), method=method)
    found = model.predict([paint("red", 50)])[0]
    assert not found.rejected
    assert np.isnan(found.familiarity) == (held_out == 0)
    assert found.note == (
        "No image can be refused: a rate of 0.05 needs 19 or more training images that can "
        f"be held out, and there are {held_out}."
    )
    assert model.predict([paint("red", 50)], reject=0)[0].note == ""
    assert (model.predict([paint("red", 50)], reject=0.1)[0].note == "") == (held_out == 12)


def test_sets_are_those_of_the_method(classifier):
    model = classifier(shots(8))
    pictures = [image for image, _ in shots(3, start=50)]
    expected = model.model.predict_set(model.encoder_.encode_images(pictures), error=0.1)
    found = model.predict(pictures, sets=0.1, batch_size=2)
    # Where the method rules out every class, an image that is not rejected keeps its answer.
    sets = zip(found, expected.labels, strict=True)
    assert all(list(one.plausible) == (list(map(str, e)) or [one.label]) for one, e in sets)
    assert not any(one.rejected for one in found)
    assert all(one.note == "" for one in found)
    assert all(one.plausible is None for one in model.predict(pictures))
    few = classifier(shots(2)).predict(pictures, reject=0, sets=0.1)[0]
    assert set(few.plausible) == set(COLOURS)
    assert few.note.startswith("Every set contains every class: 6 labelled rows cannot rule out")
    with one_sentence("error must be a rate between 0 and 1"):
        model.predict(pictures, sets=2.0)
    with one_sentence("learns nothing from labelled rows", ProtocolError):
        classifier(shots(4), method="zero-shot").predict(pictures, sets=0.1)


def test_unknown_images_are_told_from_known_ones(classifier):
    model = classifier(shots(12))
    generator = np.random.default_rng(0)
    strange = list(generator.integers(0, 256, (6, 40, 40, 3), dtype=np.uint8))
    found = model.evaluate(shots(5, 50), unknown=strange)
    familiar = [one.familiarity for one in model.predict([image for image, _ in shots(5, 50)])]
    foreign = [one.familiarity for one in model.predict(strange)]
    wins = [(a > b) + (a == b) / 2 for a in familiar for b in foreign]
    assert found.unknown_separation.auroc == pytest.approx(np.mean(wins))
    assert found.unknown.rejected.tolist() == [p <= 0.05 for p in foreign]
    assert model.evaluate(shots(5, 50)).unknown is None


def test_an_endless_stream_is_answered_in_order_and_read_only_a_little_ahead(classifier):
    model = classifier(shots())
    colours, taken = list(COLOURS), itertools.count()

    def endless():
        for number in taken:
            yield paint(colours[number % 3], number)

    running = model.predict_stream(endless(), batch_size=4)
    found = list(itertools.islice(running, 30))
    assert [p.name for p in found] == [f"item {i:07d}" for i in range(30)]
    assert [p.label for p in found] == colours * 10
    time.sleep(0.3)  # let the reader run as far as it will
    running.close()
    assert next(taken) <= 30 + 6 * 4


def test_a_refused_image_is_a_warning_or_listed(folder, classifier):
    model = classifier(shots())
    paths = [folder / "red" / name for name in ("0.png", "broken.jpg", "1.png")]
    with pytest.warns(UserWarning, match=r"^Left out 1 of 3 images, such as '.*broken.jpg': it is"):
        found = model.predict(paths)
    assert [p.name[-5:] for p in found] == ["0.png", "1.png"]
    for call in (model.predict_proba, lambda given: list(model.predict_stream(given))):
        with one_sentence("broken.jpg was refused: it is not an image", ImageRefusedError):
            call(paths)
    refused = []
    assert [p.name[-5:] for p in model.predict(paths, refused=refused)] == ["0.png", "1.png"]
    assert [Path(one.name).name for one in refused] == ["broken.jpg"]
    assert [p.label for p in model.predict(folder / "red" / "0.png")] == ["red"]


def test_where_no_image_can_be_read_that_is_an_error(folder, classifier):
    model = classifier(shots())
    broken = folder / "red" / "broken.jpg"
    with one_sentence("broken.jpg was refused: it is not an image", ImageRefusedError):
        model.predict(broken)
    with one_sentence("none of the 2 images can be read", ImageRefusedError):
        model.predict([broken, broken])
    refused = []
    assert model.predict([broken], refused=refused) == []
    assert len(refused) == 1
    for shots_each in (None, 1):
        with one_sentence("All images of 'iterable' were refused, such as '.*broken.jpg'"):
            classifier().fit([broken], ["red"], shots=shots_each)
    with one_sentence(
        "All images of .* such as 'item 0000000': it must hold uint8 or uint16.*int64"
    ):
        classifier().fit(np.zeros((2, 40, 40, 3), dtype=np.int64), ["red", "blue"])


def test_an_evaluation_counts_what_was_answered(folder, classifier):
    model = classifier(shots())
    refused = []
    found = model.evaluate(folder, refused=refused)
    answers = model.predict(folder, refused=[])
    assert found.names == [p.name for p in answers]
    assert [found.class_names[i] for i in found.labels] == [n.split("/")[0] for n in found.names]
    np.testing.assert_array_equal(found.probabilities, [p.distribution for p in answers])
    assert (found.accuracy, len(refused)) == (1, 1)


def test_an_evaluation_of_an_unknown_label_is_one_sentence(classifier):
    phrases = {
        "pink": "has the label 'pink', which is not a class",
        None: "has no label to compare",
    }
    for label, phrase in phrases.items():
        with one_sentence(f"'item 0000000' {phrase}"):
            classifier(shots()).evaluate([(paint("red", 91), label)])


def test_held_out_figures_are_those_of_the_method(classifier):
    model = classifier([*shots(4, colours=["red", "green"]), *shots(1, colours=["blue"])])
    found = model.held_out()
    assert len(found) == 8  # the only blue photo has no company
    assert found.accuracy == model.model.loo_.accuracy
    assert found.nll == pytest.approx(model.model.loo_.nll, abs=1e-9)
    assert found.ece == pytest.approx(model.model.loo_.ece, abs=1e-9)
    assert "no validation set" in found.protocol
    assert classifier(shots(), method="zero-shot").held_out() is None


# Updates.


@pytest.mark.parametrize("prompt", ["a {}.", None])
def test_updates_are_fits(prompt, fixed):
    """Photos come, with a new class among them, change their label, and go again."""
    first = shots(4, colours=["red", "green"])
    more = shots(3, 20, colours=["blue", "red"])
    model = fixed(first, prompt=prompt).add(more)
    assert_same(model, fixed([*first, *more], prompt=prompt))
    wrong = [(image, "green" if i == 2 else label) for i, (image, label) in enumerate(first)]
    model = fixed(first, prompt=prompt).relabel({"item 0000002": "green"})
    assert_same(model, fixed(wrong, prompt=prompt))
    model = fixed([*first, *more], prompt=prompt).remove(names=["item 0000001", "item 0000009"])
    kept = [pair for i, pair in enumerate([*first, *more]) if i not in (1, 9)]
    assert_same(model, fixed(kept, prompt=prompt))
    model.remove(label="blue")
    assert_same(model, fixed([pair for pair in kept if pair[1] != "blue"], prompt=prompt))


@pytest.mark.parametrize("prompt", ["a {}.", None])
def test_the_default_method_forgets_what_was_undone(prompt, classifier):
    """Photos, a label and a class that come and go leave the model where it was."""
    queries = [image for image, _ in shots(2, start=90)]

    def said(model):
        return np.concatenate([list(one.probabilities.values()) for one in model.predict(queries)])

    model = classifier(shots(4), prompt=prompt)
    before = said(model)
    model.add([(image, "purple") for image, _ in shots(2, 40, colours=["blue"])])
    assert "purple" in model.classes
    model.remove(label="purple").relabel({"item 0000002": "green"})
    assert said(model) != pytest.approx(before, abs=1e-3)
    model.relabel({"item 0000002": "red"})
    assert said(model) == pytest.approx(before, abs=1e-6)


def test_a_class_of_text_alone_can_be_removed(classifier):
    model = classifier().fit(shots(), classes=["yellow"]).remove(label="yellow")
    assert model.classes == sorted(COLOURS)
    assert model.prompts.class_names == tuple(sorted(COLOURS))


def test_photos_of_one_name_are_relabelled_together(fixed):
    """Arrays have no names but their places, which repeat when more are added."""
    extra = (paint("red", 9), "red")
    model = fixed(shots(2)).add([extra]).relabel({"item 0000000": "blue"})
    labels = ["blue", *[label for _, label in shots(2)[1:]], "blue"]
    images = [image for image, _ in [*shots(2), extra]]
    assert_same(model, fixed(list(zip(images, labels, strict=True))))


@pytest.mark.parametrize(
    ("update", "phrase"),
    [
        (lambda m: m.add([paint("red", 9)]), "No labelled image can be added"),
        (lambda m: m.remove(names=["x.jpg"]), "no training image 'x.jpg'"),
        (lambda m: m.remove(label="pink"), "no class 'pink': it has 'blue', 'green', 'red'"),
        (lambda m: m.remove(names=[one.name for one in m.examples]), "keep at least one"),
        (lambda m: m.relabel({"x.jpg": "red"}), "no training image 'x.jpg'"),
        (lambda m: m.relabel({"item 0000000": "pink"}), "no class 'pink': it has 'blue'"),
    ],
)
def test_a_bad_update_is_one_sentence_and_changes_nothing(update, phrase, fixed):
    model = fixed(shots(2))
    with one_sentence(phrase):
        update(model)
    assert_same(model, fixed(shots(2)))


def test_zero_shot_cannot_be_updated(classifier):
    with one_sentence("must keep images: fit it with method='gpcache'"):
        classifier(shots(), method="zero-shot").add(shots(1))


# Pictures.


def test_thumbnails_travel_and_pictures_are_of_the_very_photo(
    folder, classifier, encoder, tmp_path
):
    for name in ("with", "without"):
        classifier(folder).save(tmp_path / f"{name}.gpc", thumbnails=name == "with")
    Image.fromarray(paint("red", 99)).save(folder / "blue" / "0.png")
    (folder / "blue" / "1.png").unlink()
    kept, bare = (
        ImageClassifier.load(tmp_path / f"{name}.gpc", encoder=encoder, device="cpu")
        for name in ("with", "without")
    )
    assert kept.picture(0).startswith(b"\xff\xd8")
    # Another photo stands there now, or none: no picture is better than a wrong one.
    assert bare.picture(0) is None
    assert bare.picture(1) is None
    assert bare.picture(2) == kept.picture(2)


# Projections.


@pytest.fixture
def projection(encoder):
    """A projection that was learned for the encoder."""
    generator = torch.Generator().manual_seed(0)
    weight = 0.3 * torch.randn(encoder.dim, encoder.dim, generator=generator)
    facts = ProjectionFacts("whitening", encoder.name, encoder.fingerprint, 30, 2, 0.4)
    return SimilarityProjection((weight,), facts=facts)


@pytest.mark.parametrize("method", ["gpcache", "gda"])
def test_a_projection_is_given_as_itself_or_as_its_folder(
    method, classifier, encoder, projection, tmp_path
):
    save_projection(tmp_path / "proj.gpp", projection, projection.facts)
    by_folder = classifier(shots(), method=method, projection=tmp_path / "proj.gpp")
    by_itself = classifier(shots(), method=method, projection=projection)
    assert_same(by_folder, by_itself)
    plain = classifier(shots(), method=method)
    assert np.abs(logits(by_itself, shots(2)) - logits(plain, shots(2))).max() > 0.01
    by_folder.save(tmp_path / "m.gpc")
    found = ImageClassifier.load(tmp_path / "m.gpc", encoder=encoder, device="cpu")
    assert found.model.projection.facts == projection.facts
    np.testing.assert_allclose(
        logits(found, shots(2)), logits(by_itself, shots(2)), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(  # a loaded model that is fitted anew still has it
        logits(found.fit(shots()), shots(2)), logits(by_itself, shots(2)), rtol=1e-5, atol=1e-5
    )


def test_a_projection_of_another_encoder_is_refused_before_an_image_is_read(projection):
    def unread():
        raise AssertionError("an image was read")
        yield

    other = PaintEncoder(seed=1)
    method = GPCacheClassifier.from_options(projection=projection)
    for options in ({"projection": projection}, {"method": method}):
        with one_sentence("learn one for this encoder", EncoderError):
            ImageClassifier(other, device="cpu", **options).fit(unread())


def test_a_method_of_its_own_takes_the_projection_of_the_classifier(classifier, projection):
    method = GPCacheClassifier.from_options(likelihood="gaussian", **NUMBERS, device="cpu")
    found = classifier(shots(), method=method, projection=projection)
    assert found.model.projection is projection
    with one_sentence("TaskResClassifier does not compare images with each other"):
        classifier(shots(), method="task-res", projection=projection)
    with one_sentence("ZeroShotClassifier does not compare images with each other"):
        classifier(projection=projection).fit([], classes=["red", "blue"])
