"""Evaluations and reports of any size with plain or hostile names, and a strict reader of HTML."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from gpcache.model.evaluation import Evaluation
from gpcache.model.report import Case, Embedding, Evidence, Report

VOID = {"meta", "link", "img", "br"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "👩‍👩‍👧 🐈",
    "שלום עולם \u202e gnp.exe",
    "x" * 300,
    "$\\frac{1}{0}$ & 'quotes' --> ]]>",
    "line\nbreak\x00\x1b[31m",
    "\udcff not text",
)


@dataclass
class Node:
    """An element with its attributes, children and text."""

    tag: str
    attributes: dict
    children: list = field(default_factory=list)

    def find(self, tag, **wanted):
        """All elements below of this tag and these attributes, in order."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                if child.tag == tag and wanted.items() <= child.attributes.items():
                    found.append(child)
                found += child.find(tag, **wanted)
        return found

    @property
    def text(self):
        return "".join(c if isinstance(c, str) else c.text for c in self.children)


class Reader(HTMLParser):
    """Builds the tree, and fails on a tag that is closed out of order or left open."""

    def __init__(self):
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        node = Node(tag, dict(attrs))
        assert len(node.attributes) == len(attrs), f"an attribute of <{tag}> is given twice"
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


@pytest.fixture(scope="session")
def read():
    """From HTML to its tree."""

    def reading(page):
        reader = Reader()
        reader.feed(page)
        reader.close()
        assert reader.open == [reader.root]
        return reader.root

    return reading


@pytest.fixture(scope="session")
def evaluation():
    """An evaluation of n images and c classes, about three in four of them right."""

    def make(n=60, c=5, *, seed=0, names=None, right=0.75, data="photos/"):
        generator = np.random.default_rng(seed)
        labels = generator.integers(c, size=n)
        logits = generator.normal(size=(n, c))
        hit = generator.random(n) < right
        logits[np.arange(n)[hit], labels[hit]] += 6
        powers = np.exp(logits)
        return Evaluation(
            data=data,
            protocol="test photos used once",
            class_names=list(names or [f"class {i}" for i in range(c)]),
            names=[f"{i}.jpg" for i in range(n)],
            labels=labels,
            probabilities=powers / powers.sum(1, keepdims=True),
            uncertainty=generator.random(n),
            rejected=generator.random(n) < 0.1,
        )

    return make


@pytest.fixture(scope="session")
def image():
    """Bytes of a small picture."""

    def make(seed=0, form="JPEG"):
        pixels = np.random.default_rng(seed).integers(256, size=(40, 60, 3), dtype=np.uint8)
        stream = BytesIO()
        Image.fromarray(pixels).save(stream, form)
        return stream.getvalue()

    return make


@pytest.fixture(scope="session")
def full(evaluation, image):
    """A report with everything in it; the names of classes may be given."""

    def make(names=None, *, n=60, c=5, width=12):
        names = list(names or [f"class {i}" for i in range(c)])
        test = evaluation(n, len(names), names=names)
        generator = np.random.default_rng(1)
        features = generator.normal(size=(n, width)) + 3 * test.labels[:, None]
        evidence = [
            Evidence(image(2), names[0], 1.5),
            Evidence(image(3, "PNG"), names[-1], -0.5),
            Evidence(None, names[0], 0.25),
        ]
        case = Case(
            image(),
            f"{names[-1]}.jpg",
            names[0],
            names[-1],
            0.625,
            evidence,
            others=0.125,
            text=2.0,
        )
        grid = [(beta, noise) for beta in (1.0, 0.5, 2.0) for noise in (0.1, 1.0)]
        beta, noise = np.array(grid).T
        search = {
            "beta": beta,
            "noise": noise,
            "alpha": beta + 1,
            "eta": 0 * beta,
            "gain": 0 * beta + 1,
            "nll": np.linspace(0.3, 0.9, len(beta)),
            "accuracy": np.linspace(0.9, 0.8, len(beta)),
            "score": np.linspace(0.3, 0.9, len(beta)),
        }
        return Report(
            title=f"Report on {names[0]}",
            test=test,
            held_out=evaluation(40, len(names), seed=1, names=names, data="training photos"),
            cases={"Hardest test photos": [case, case], f"Suspicious {names[0]}": [case]},
            embedding=Embedding("photos/", names, test.labels, features, features[:, :7] ** 2),
            search=search,
            chosen={"beta": 1.0, "noise": 0.1, "alpha": 2.0, "own": 5.0},
            facts={"Encoder": "lite", names[0]: names[-1]},
            refused=[(f"{names[-1]}/a.jpg", "the image is truncated"), ("b.txt", names[0])],
        )

    return make


@pytest.fixture(scope="session")
def hostile(full):
    """The report whose every name is an attack or an accident."""
    return full(HOSTILE)


@pytest.fixture(scope="session")
def hostile_names():
    return HOSTILE
