"""Prompts and the text weights they make, with an encoder of words that is a sum of hashes."""

import hashlib
import json
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpcache.encoders.base import Encoder
from gpcache.encoders.prompts import (
    DEFAULT_TEMPLATES,
    TEMPLATES,
    Prompts,
    clean_class_name,
    text_weights,
)
from gpcache.errors import DataError
from gpcache.images import Preprocess


class WordEncoder(Encoder):
    """A text is the sum of its words' vectors; "not" turns it round. Counts what it encodes."""

    name = "words"
    dim = 16
    logit_scale = 100.0
    preprocess = Preprocess()

    def __init__(self):
        super().__init__("cpu")
        self.encoded = []

    def _embed_texts(self, texts):
        self.encoded += texts
        return torch.stack([self._vector(text) for text in texts])

    def _vector(self, text):
        words = text.split()
        sign = -1.0 if "not" in words else 1.0
        total = torch.zeros(self.dim)
        for word in (word for word in words if word != "not"):
            digest = hashlib.sha256(word.encode()).digest()[: self.dim]
            total += torch.tensor(list(digest), dtype=torch.float32) - 127.5
        return sign * total

    def _embed_images(self, batch):
        raise NotImplementedError

    def _identity(self):
        yield b"words"


@pytest.fixture
def encoder():
    return WordEncoder()


@pytest.fixture
def write(tmp_path):
    def written(content):
        file = tmp_path / "prompts.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return written


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("great_white__shark", "great white shark"),
        ("  tiger\t\n cat ", "tiger cat"),
        ("cafe\u0301", "caf\u00e9"),
        ("{0.__class__}", "{0. class }"),
        ("2012 Audi TTS Coupe", "2012 Audi TTS Coupe"),
    ],
)
def test_class_names_become_words(name, cleaned):
    assert clean_class_name(name) == cleaned


@given(st.text())
def test_cleaning_twice_changes_nothing_more(name):
    once = clean_class_name(name)
    assert clean_class_name(once) == once


@pytest.mark.parametrize("templates", [DEFAULT_TEMPLATES, *TEMPLATES.values()])
def test_the_shipped_templates_take_a_name(templates):
    prompts = Prompts.from_templates(["ash_tree"], templates)
    assert all("ash tree" in sentence and "{" not in sentence for sentence in prompts.sentences[0])
    assert len(prompts.sentences[0]) == len(templates)


def test_templates_of_the_eleven_data_sets():
    assert len(TEMPLATES) == 11
    assert len(TEMPLATES["imagenet"]) == len(set(TEMPLATES["imagenet"])) == 7
    assert TEMPLATES["food101"] == ("a photo of {}, a type of food.",)


def test_names_stay_labels_and_braces_stay_text():
    prompts = Prompts.from_templates(["a_b", "{}", "{0}"], ["see {}.", "{}!"])
    assert prompts.class_names == ("a_b", "{}", "{0}")
    assert prompts.sentences == (("see a b.", "a b!"), ("see {}.", "{}!"), ("see {0}.", "{0}!"))
    assert Prompts.from_templates(["a"], "see {}.") == Prompts.from_templates(["a"], ["see {}."])


@pytest.mark.parametrize(
    "template", ["no place", "{} and {}", "{name}", "{} of {0}", "{{}}", "{}}", "{!r}", "", 3]
)
def test_a_template_that_cannot_be_filled(template):
    with pytest.raises(DataError, match=r"must hold \{\} once.*; got ") as caught:
        Prompts.from_templates(["a"], [template])
    assert repr(template) in str(caught.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one class name"),
        ("oak", "put a single one in a list"),
        (["oak", "ash", "oak"], "'oak' is given more than once"),
        (["caf\u00e9", "cafe\u0301"], "given more than once"),
        (["oak", " _ "], "not empty, got ' _ '"),
        (["oak", 7], "must be text that is not empty, got 7"),
    ],
)
def test_class_names_that_cannot_be_used(names, message):
    with pytest.raises(DataError, match=message):
        Prompts.from_templates(names)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ((("one",),), "got 2 classes and 1 lists"),
        ((("one",), ()), "'ash' needs a list of at least one sentence"),
        ((("one",), "two"), "'ash' needs a list"),
        ((("one",), ("two", " ")), "sentence of the class 'ash' must be text .* got ' '"),
        (((None,), ("two",)), "sentence of the class 'oak' must be text .* got None"),
    ],
)
def test_sentences_that_cannot_be_used(sentences, message):
    with pytest.raises(DataError, match=message):
        Prompts(("oak", "ash"), sentences)


def test_no_templates_at_all():
    with pytest.raises(DataError, match="at least one template"):
        Prompts.from_templates(["a"], [])


def test_a_file_gives_its_classes_in_its_order(write):
    prompts = Prompts.from_file(write({"oak": ["an oak."], "ash": ["an ash.", "grey bark."]}))
    assert prompts.class_names == ("oak", "ash")
    assert prompts.sentences == (("an oak.",), ("an ash.", "grey bark."))


def test_templates_are_pooled_with_the_sentences_of_a_file(write):
    file = write({"red oak": ["tall."], "ash": ["grey.", "light."], "elm": ["not asked for."]})
    prompts = Prompts.from_file(file, ["ash", "red_oak"], ["a {}."])
    assert prompts.class_names == ("ash", "red_oak")
    assert prompts.sentences == (("a ash.", "grey.", "light."), ("a red oak.", "tall."))


def test_the_exact_name_comes_before_the_cleaned_one(write):
    file = write({"red oak": ["spaces."], "red_oak": ["underscore."]})
    assert Prompts.from_file(file, ["red_oak"]).sentences == (("underscore.",),)
    with pytest.raises(
        DataError, match="has both 'red oak' and 'red_oak' for the class 'red__oak'"
    ):
        Prompts.from_file(file, ["red__oak"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("\x80", "is not JSON|must hold"),
        ("[" * 100_000, "is not JSON"),
        (["oak"], "must hold one object"),
        ({}, "must hold one object"),
        ({"oak": "tall."}, "list of sentences for the class 'oak', got 'tall.'"),
        ({"oak": {"a": 1}}, "list of sentences for the class 'oak'"),
        ({"oak": []}, "'oak' needs a list of at least one sentence"),
        ({"oak": ["tall.", 3]}, "sentence of the class 'oak' must be text .* got 3"),
        ('{"oak": ["a."], "ash": ["b."], "oak": ["c."]}', "holds 'oak' more than once"),
        ({"ash": ["grey."]}, "lacks the class 'oak'"),
    ],
)
def test_a_file_that_cannot_be_used_gets_one_sentence(content, message, write):
    with pytest.raises(DataError, match=message) as caught:
        Prompts.from_file(write(content), ["oak"])
    assert "\n" not in str(caught.value)


def test_a_file_that_is_absent_or_too_large(tmp_path):
    with pytest.raises(DataError, match=r"none.json cannot be read: No such file"):
        Prompts.from_file(tmp_path / "none.json")
    large = tmp_path / "large.json"
    with large.open("wb") as stream:
        stream.truncate(50_000_001)
    with pytest.raises(DataError, match=r"large.json is larger than 50 MB"):
        Prompts.from_file(large)


def test_weights_are_the_mean_direction_of_the_sentences(encoder):
    prompts = Prompts(
        ("oak", "ash", "elm"),
        (("tall tree", "hard wood", "tall tree"), ("grey bark",), ("hard wood", "wet leaf")),
    )
    weights = text_weights(encoder, prompts)
    assert weights.shape == (3, 16)
    assert weights.dtype == np.float32
    for row, sentences in zip(weights, prompts.sentences, strict=True):
        units = [WordEncoder()._vector(text).double().numpy() for text in sentences]
        mean = np.mean([unit / np.linalg.norm(unit) for unit in units], axis=0)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)


def test_each_sentence_is_encoded_once(encoder):
    prompts = Prompts(("a", "b"), (("one", "two", "one"), ("two", "three")))
    text_weights(encoder, prompts)
    assert sorted(encoder.encoded) == ["one", "three", "two"]


def test_the_order_of_classes_orders_the_weights(encoder):
    names = ["oak", "ash", "elm", "fir"]
    weights = text_weights(encoder, Prompts.from_templates(names))
    turned = text_weights(encoder, Prompts.from_templates(names[::-1]))
    np.testing.assert_array_equal(weights, turned[::-1])
    assert len(np.unique(weights, axis=0)) == 4


def test_sentences_that_cancel_out(encoder):
    prompts = Prompts(("oak", "ash"), (("tall tree",), ("grey bark", "not grey bark")))
    with pytest.raises(DataError, match="class 'ash' average to zero"):
        text_weights(encoder, prompts)


def test_the_digest_tells_contents_apart(write):
    prompts = Prompts(("a", "b"), (("x", "y"), ("z",)))
    assert prompts.digest == Prompts(("a", "b"), (("x", "y"), ("z",))).digest
    others = [
        Prompts(("b", "a"), (("x", "y"), ("z",))),
        Prompts(("a", "b"), (("x",), ("y", "z"))),
        Prompts(("a", "b"), (("y", "x"), ("z",))),
        Prompts(("a", "b"), (("xy",), ("z",))),
        Prompts.from_file(write({"a": ["x", "y"], "c": ["z"]})),
    ]
    assert len({prompts.digest, *(other.digest for other in others)}) == 6
    assert Prompts.from_file(write({"a": ["x", "y"], "b": ["z"]})).digest == prompts.digest


def test_the_digest_is_the_same_everywhere():
    """It keys stored text weights: sha256 of '[["caf\\u00e9"],[["a caf\\u00e9."]]]'."""
    prompts = Prompts.from_templates([unicodedata.normalize("NFC", "cafe\u0301")], ["a {}."])
    expected = hashlib.sha256(b'[["caf\\u00e9"],[["a caf\\u00e9."]]]').hexdigest()
    assert prompts.digest == expected


def test_classes_join_and_leave():
    one, other = Prompts(("ant",), (("an ant",),)), Prompts(("bee",), (("a bee", "bees"),))
    both = one.joined(other)
    assert both == Prompts(("ant", "bee"), (("an ant",), ("a bee", "bees")))
    assert both.without("ant") == other
