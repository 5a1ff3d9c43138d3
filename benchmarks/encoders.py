"""`lite` and `lite0`: how accurate they are, and how the settings of `lite` were chosen.

python benchmarks/encoders.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from development_data import folder
from numpy.typing import NDArray
from pages import table, write_page
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from gpcache import GPCacheClassifier, Prompts, TextPrior, load_encoder, text_weights
from gpcache.encoders.lite import LiteEncoder
from gpcache.encoders.lite_recipes import LiteRecipe
from gpcache.features.splits import draw_shots
from gpcache.images import decode

DATA = ("caltech20", "trash6")
CHOICE_SHOTS, CHOICE_DRAWS = (1, 2, 4, 8), 20
TEST_SHOTS, TEST_DRAWS = (1, 4, 16), 5
MIXINGS = (0.0, 0.05, 0.1, 0.2, 0.4)
CANDIDATES = (10, 20, 50, 100)
SCALES = (10.0, 15.0, 20.0, 25.0)
BATCH = 32

Rows = NDArray[np.float32]
Labels = NDArray[np.str_]
Rule = Callable[[Rows, Labels, Rows], Labels]


class Photos(NamedTuple):
    """Pooled features (n, 1280) of photos before they are joined; class names; file names."""

    pooled: torch.Tensor
    labels: Labels
    paths: list[str]


class Network:
    """An encoder and the pooled features of all photos; vectors follow under any recipe."""

    def __init__(self, encoder: LiteEncoder) -> None:
        self.encoder, self.recipe = encoder, encoder.recipe
        self.photos = {key: self._photos(*key) for key in product(DATA, ("train", "test"))}
        self.text = {data: self._text(data) for data in DATA}

    def _photos(self, data: str, part: str) -> Photos:
        files = sorted((folder("images") / data / part).glob("*/*"))
        pooled = [self._pooled(files[row : row + BATCH]) for row in range(0, len(files), BATCH)]
        names = [f"{file.parent.name}/{file.name}" for file in files]
        return Photos(torch.cat(pooled), np.array([file.parent.name for file in files]), names)

    def _pooled(self, files: list[Path]) -> torch.Tensor:
        preprocess = self.encoder.preprocess
        pixels = np.stack([preprocess.pixels(decode(file).image) for file in files])
        with torch.inference_mode():
            images = preprocess.normalised(torch.from_numpy(pixels))
            return self.encoder._maps(images).mean((2, 3))

    def _text(self, data: str) -> Rows:
        names = sorted(set(self.photos[data, "train"].labels))
        return text_weights(self.encoder, Prompts.from_templates(names))

    def vectors(self, data: str, part: str, recipe: LiteRecipe | None = None) -> Rows:
        """What the encoder gives, under its own recipe or another one."""
        self.encoder.recipe = recipe or self.recipe
        with torch.inference_mode():
            vectors: Rows = self.encoder._joined(self.photos[data, part].pooled).numpy()
        self.encoder.recipe = self.recipe
        return vectors

    def prior(self, data: str) -> TextPrior:
        """The class names' text vectors and the scale of the encoder."""
        names = sorted(set(self.photos[data, "train"].labels))
        return TextPrior(names, self.text[data], self.encoder.logit_scale)


# Rules that classify rows by labelled rows.


def nearest(X: Rows, y: Labels, queries: Rows) -> Labels:
    """The label of the nearest row."""
    return y[(queries @ X.T).argmax(1)]


def class_mean(X: Rows, y: Labels, queries: Rows) -> Labels:
    """The class whose mean has the highest cosine."""
    names = np.unique(y)
    means = np.stack([X[y == name].mean(0) for name in names])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return names[(queries @ means.T).argmax(1)]


def logistic(X: Rows, y: Labels, queries: Rows) -> Labels:
    """LogisticRegression(C=10), in the span of the shots, where its solution lies."""
    basis = np.linalg.qr(X.T)[0]
    fitted = LogisticRegression(C=10, max_iter=500).fit(X @ basis, y)
    predicted: Labels = fitted.predict(queries @ basis)
    return predicted


RULES: dict[str, Rule] = {"1-NN": nearest, "class mean": class_mean, "logistic": logistic}


# Choosing, on the training photos alone.


def choice_accuracy(network: Network, data: str, recipe: LiteRecipe, rule: Rule) -> float:
    """Mean accuracy in percent over shots and draws; queries are the photos not drawn."""
    photos, rows = network.photos[data, "train"], network.vectors(data, "train", recipe)
    found = []
    for shots, draw in product(CHOICE_SHOTS, range(CHOICE_DRAWS)):
        drawn = draw_shots(photos.labels, photos.paths, shots, draw)
        answers = rule(rows[drawn.indices], photos.labels[drawn.indices], rows[drawn.rest])
        found.append(np.mean(answers == photos.labels[drawn.rest]))
    return 100 * float(np.mean(found))


def choosing_table(network: Network) -> str:
    """Accuracy by mixing weight, with and without the square root of the features."""
    head = ["feature", "w", *(f"{data}, {rule}" for data in DATA for rule in RULES)]
    rows: list[list[object]] = [head]
    for square_root, mixing in product((False, True), MIXINGS):
        recipe = replace(network.recipe, mixing=mixing, square_root=square_root)
        found = [
            choice_accuracy(network, data, recipe, rule) for data in DATA for rule in RULES.values()
        ]
        kind = "square root" if square_root else "as it is"
        rows.append([kind, mixing, *(f"{value:.1f}" for value in found)])
    return table(rows)


def zero_shot(network: Network, data: str, part: str, recipe: LiteRecipe) -> tuple[float, float]:
    """Accuracy in percent and NLL of the class names alone."""
    photos, names = network.photos[data, part], sorted(set(network.photos[data, part].labels))
    scale = recipe.cosine_scale / np.sqrt(recipe.mixing)
    logits = scale * network.vectors(data, part, recipe) @ network.text[data].T
    truth = np.searchsorted(names, photos.labels)
    right = 100 * float(np.mean(logits.argmax(1) == truth))
    return right, -float(log_softmax(logits, axis=1)[np.arange(len(truth)), truth].mean())


def zero_shot_table(network: Network) -> str:
    """Accuracy by number of classes in the ConSE point, and NLL by scale, as means of both sets."""
    head = ["ImageNet classes", *(f"accuracy, {data}" for data in DATA)]
    rows: list[list[object]] = [[*head, *(f"mean NLL at scale {scale:g}" for scale in SCALES)]]
    for candidates in CANDIDATES:
        tried = [replace(network.recipe, candidates=candidates, cosine_scale=s) for s in SCALES]
        found = [[zero_shot(network, data, "train", recipe) for data in DATA] for recipe in tried]
        losses = [np.mean([loss for _, loss in both]) for both in found]
        right = [f"{value:.1f}" for value, _ in found[0]]
        rows.append([candidates, *right, *(f"{loss:.3f}" for loss in losses)])
    return table(rows)


# Reporting, on the test photos.


class Contender(NamedTuple):
    """Vectors by data and part, and the text that goes with them."""

    vectors: dict[tuple[str, str], Rows]
    priors: dict[str, TextPrior]


def contenders(lite: Network, lite0: Network) -> dict[str, Contender]:
    """Each encoder, and both vectors joined; class names are compared with that of `lite`."""
    found = {
        name: Contender(
            {key: network.vectors(*key) for key in network.photos},
            {data: network.prior(data) for data in DATA},
        )
        for name, network in (("lite0", lite0), ("lite", lite))
    }
    one, other = found["lite"], found["lite0"]
    vectors = {
        key: np.hstack([rows, other.vectors[key]]) / np.float32(np.sqrt(2))
        for key, rows in one.vectors.items()
    }
    priors = {
        data: TextPrior(
            prior.class_names,
            np.pad(lite.text[data], ((0, 0), (0, other.vectors[data, "train"].shape[1]))),
            prior.logit_scale * float(np.sqrt(2)),
        )
        for data, prior in one.priors.items()
    }
    return found | {"both": Contender(vectors, priors)}


def gpcache(X: Rows, y: Labels, queries: Rows, prior: TextPrior) -> Labels:
    """The default of gpcache, with the class names."""
    fitted = GPCacheClassifier.from_options(text_prior=prior, device="cpu").fit(X, y)
    predicted: Labels = fitted.predict(queries)
    return predicted


def test_accuracies(
    one: Contender, data: str, photos: dict[tuple[str, str], Photos]
) -> Iterator[tuple[int, float, float]]:
    """Shots, and the accuracy in percent of logistic regression and of gpcache, by draw."""
    train, truth = photos[data, "train"], photos[data, "test"].labels
    rows, queries = one.vectors[data, "train"], one.vectors[data, "test"]
    for shots, draw in product(TEST_SHOTS, range(TEST_DRAWS)):
        drawn = draw_shots(train.labels, train.paths, shots, draw).indices
        X, y = rows[drawn], train.labels[drawn]
        answers = logistic(X, y, queries), gpcache(X, y, queries, one.priors[data])
        first, second = (100 * float(np.mean(answer == truth)) for answer in answers)
        yield shots, first, second


def test_table(lite: Network, lite0: Network) -> str:
    """Accuracy on the test photos: class names alone, then with shots."""
    kinds = [f"{k} {'shot' if k == 1 else 'shots'}" for k in TEST_SHOTS]
    head = ["data", "encoder", "names only", *(f"logistic, {kind}" for kind in kinds)]
    rows: list[list[object]] = [[*head, *(f"gpcache, {kind}" for kind in kinds)]]
    for data, (name, one) in product(DATA, contenders(lite, lite0).items()):
        network = lite0 if name == "lite0" else lite
        right, _ = zero_shot(network, data, "test", network.recipe)
        found = np.array(list(test_accuracies(one, data, network.photos)))
        means = [
            found[found[:, 0] == shots, column].mean() for column in (1, 2) for shots in TEST_SHOTS
        ]
        rows.append([data, _shown(name), *(f"{value:.1f}" for value in (right, *means))])
    return table(rows)


def _lite(name: str) -> LiteEncoder:
    encoder = load_encoder(name, device="cpu")
    assert isinstance(encoder, LiteEncoder)
    return encoder


def _shown(name: str) -> str:
    return {"lite0": "`lite0` (Lite0, 224 px)", "lite": "`lite` (Lite2, 260 px)"}.get(
        name, "both side by side"
    )


def main() -> None:
    """Measure and write the page."""
    lite, lite0 = Network(_lite("lite")), Network(_lite("lite0"))
    # Many small fits: threads would only wait for each other.
    torch.set_num_threads(1)
    with threadpool_limits(1):
        tested = test_table(lite, lite0)
        chosen, named = choosing_table(lite), zero_shot_table(lite)
    write_page(
        "encoders",
        "The encoder `lite`: which network, which weights",
        "Photos: caltech20 (20 classes, 400 training and 378 test photos) and trash6 (6 classes, "
        "120 and 480). Settings were chosen only on the training photos. The image network has "
        "seen ImageNet, and many classes of caltech20 are ImageNet classes.",
        "## Accuracy on the test photos",
        f"Percent. Shots are drawn from the training photos, {TEST_DRAWS} draws, and tested on all "
        "test photos. *logistic* is scikit-learn's `LogisticRegression(C=10)` without class names, "
        "*gpcache* the default of gpcache with them. *both side by side* joins the two vectors; "
        "class names are compared with the vector of `lite`.",
        tested,
        "Images a second and megabytes come from `python benchmarks/encoder_speed.py`.",
        "## How images are compared: the weight of the ConSE part",
        f"Accuracy in percent of `lite` on training photos that were not drawn, mean of "
        f"{', '.join(map(str, CHOICE_SHOTS))} shots, {CHOICE_DRAWS} draws each. Class names are "
        "not used. "
        f"Chosen: w = {lite.recipe.mixing}, with the square root.",
        chosen,
        "## How class names are read: the ConSE point and its scale",
        "Class names without photos, on the training photos. "
        f"Chosen: {lite.recipe.candidates} classes and a scale of {lite.recipe.cosine_scale:g}. "
        "The scale of the logits is divided by √w, so that w does not change these answers.",
        named,
    )


if __name__ == "__main__":
    main()
