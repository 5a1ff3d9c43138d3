"""The model card: true figures, and names that stay text in Markdown, HTML and YAML."""

from html.parser import HTMLParser

import numpy as np
import pytest
import yaml

from gpcache.model.card import model_card
from gpcache.model.evaluation import Evaluation

HOSTILE = (
    "<script>alert(1)</script>",
    "<!-- gone",
    "[click](http://example.org)",
    "![x](http://example.org/x.png)",
    "**bold** _and_ ~~struck~~ `code` ``",
    "| a | b |",
    "# heading",
    "line\nbreak\r\n# heading",
    "---\nlicense: mit",
    "&lt;b&gt; &amp;",
    "back\\slash \\",
    "..",
    "x" * 300,
    "🐈‍⬛ שלום",
)


class Words(HTMLParser):
    """The tags of a page and the text between them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def render():
    """Markdown as GitHub and the hub show it, by an independent library."""
    markdown_it = pytest.importorskip("markdown_it")
    reader = markdown_it.MarkdownIt("commonmark", {"html": True})
    return lambda text: Words(reader.enable(["table", "strikethrough"]).render(text))


def config(*names, encoder="lite", source="photos/", method="gpcache", examples=2):
    return {
        "gpcache": "1.2.3",
        "encoder": {"name": encoder, "fingerprint": "f" * 64, "dim": 16},
        "views": 0,
        "examples": [{"label": name} for name in names for _ in range(examples)],
        "training": {"source": source, "shots": 2, "seed": 7, "refused": [1, 2, 3]},
        "model": {
            "method": method,
            "classes": list(names),
            "temperature": 1.25,
            "choice": {"alpha": 2.0, "beta": 0.5, "noise": 0.1, "gain": 1.0},
        },
    }


def held_out(data="training images of photos/"):
    return Evaluation(
        data,
        "no validation set: leave-one-out",
        ["cat", "dog"],
        ["1", "2", "3", "4"],
        np.array([0, 0, 1, 1]),
        np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.1, 0.9]]),
        np.zeros(4),
        np.zeros(4, dtype=bool),
    )


def printed(name):
    """What would break the line is replaced; all else is shown as it is."""
    return name.replace("\n", "�").replace("\r", "�")


def split(card):
    """The front matter and the rest."""
    empty, front, body = card.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(front), body


def test_figures_stand_with_their_data_protocol_interval_and_count(render):
    _, body = split(model_card(config("cat", "dog"), held_out()))
    page = render(body)
    low, high = held_out().interval
    for part in (
        "training images of photos/",
        "no validation set: leave-one-out",
        "75.0%",
        f"{low:.1%} – {high:.1%}",
        "2 classes, trained on 4 images with the method gpcache",
        "2 per class drawn with seed 7; 2 to 2 per class; 3 refused",
        "cat (2), dog (2)",
        "alpha 2, beta 0.5, noise 0.1, gain 1; temperature 1.25",
    ):
        assert part in page.text
    assert page.tags.count("td") == 7


def test_without_held_out_images_no_figure_is_given(render):
    _, body = split(model_card(config("cat", examples=0), None))
    page = render(body)
    assert "Not known" in page.text
    assert "cat (0)" in page.text
    assert "%" not in page.text


def test_the_front_matter_is_what_the_hub_reads():
    front, _ = split(model_card(config("cat"), None))
    assert front["library_name"] == "gpcache"
    assert front["pipeline_tag"] == "image-classification"
    assert front["base_model"] == "lite"


@pytest.mark.parametrize("name", ["my: encoder", "null", "1.0", "- x", 'a "b" \\ c', *HOSTILE])
def test_any_name_of_an_encoder_is_text_in_yaml(name):
    front, _ = split(model_card(config("cat", encoder=name), None))
    assert front["base_model"] == printed(name)
    assert front["license"] == "unknown"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_and_does_nothing(name, render):
    plain = model_card(config("cat"), held_out("cat"))
    card = model_card(config(name, source=name, encoder=name), held_out(name))
    expected, page = render(split(plain)[1]), render(split(card)[1])
    assert page.tags == expected.tags
    shown = printed(name)
    assert f"Classes: {shown} (2)" in page.text
    assert f"Images: {shown}, 2 per class" in page.text
    assert f"Encoder: {shown}, fingerprint" in page.text


def test_text_that_is_written_backwards_by_a_control_character_is_not():
    assert "\u202e" not in model_card(config("gnp\u202eexe"), None)
