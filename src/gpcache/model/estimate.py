"""What a fit will take: time, memory and disk, from short measurements on this machine."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.errors import DataError
from gpcache.features.shot_index import index_bytes
from gpcache.features.store import FeatureStore
from gpcache.features.stream import encoded
from gpcache.gp.explicit import Batch, loss_of
from gpcache.gp.kernels import unit_rows
from gpcache.images.augment import Views
from gpcache.images.records import Record, Source
from gpcache.images.workers import small_picture
from gpcache.methods import Explicit, FeatureClassifier, TextPrior, state_of
from gpcache.methods.cache import explicit, explicit_choice, setup
from gpcache.methods.cache.fitted import Fitted
from gpcache.methods.cache.memory import fit_bytes
from gpcache.model.audit import audit
from gpcache.model.learning import templates_of, unfitted
from gpcache.model.training_images import Example, source_name
from gpcache.similarity.folder import open_projection
from gpcache.support.devices import peak_memory
from gpcache.support.saved_arrays import DIMENSIONS

if TYPE_CHECKING:
    from gpcache.model.classifier import ImageClassifier

# Images that are encoded, texts that are read, and drawn rows that are fitted to measure a rate.
IMAGES, TEXTS, ROWS = 24, 8, 400
FIRST = 8  # the images before the clock starts: decoding processes are starting
# From how many rows on the time of a fit grows with their square rather than their number.
SQUARE = 3000
# Passes over all rows of a fit in explicit features, and rows of the batch that measures one.
PASSES, PASS_ROWS = 24, 1024
# What an image takes in config.json beside its name and label: its hash, and the form.
ENTRY = 150


class FitEstimate(NamedTuple):
    """The expected cost of a fit: seconds by step, and bytes of memory and disk."""

    images: int
    classes: int
    seconds: dict[str, float]
    memory: int
    disk: int
    protocol: str


def estimate_fit(
    classifier: ImageClassifier,
    source: Source | FeatureStore,
    *,
    shots: int | None = None,
    classes: Sequence[str] = (),
    thumbnails: bool = False,
    keep_shots: bool = False,
) -> FitEstimate:
    """Measure the steps of a fit on a few images and rows, and write nothing.

    Parameters
    ----------
    classifier : ImageClassifier
        The classifier; its encoder is loaded.
    source : Source or FeatureStore
        The images, or the store of their vectors.
    shots, classes
        As in `ImageClassifier.fit`.
    thumbnails : bool, default=False
        Whether small pictures are kept in the model.
    keep_shots : bool, default=False
        As in `ImageClassifier.fit`.

    Returns
    -------
    FitEstimate
        Seconds, memory and disk.

    Raises
    ------
    DataError
        If there is no labelled image.

    Examples
    --------
    >>> from gpcache.model.estimate import FitEstimate
    >>> FitEstimate(100, 20, {"images": 2.0, "fit": 0.5}, 600_000_000, 25_000_000, "").classes
    20
    """
    records, sample, known = _labelled(source)
    counts = Counter(label for _, label in records)
    n = sum(min(count, shots or count) for count in counts.values())
    names = sorted({*counts, *known, *classes})
    start = time.perf_counter()
    encoder, templates = classifier.encoder_, templates_of(classifier.prompt)
    seconds, measured = {"encoder": time.perf_counter() - start}, "a fit"
    if sample:
        seconds["images"] = n * _image_seconds(sample, encoder, classifier.views)
        measured = f"{len(sample)} of the images and a fit"
    if templates is not None:
        seconds["texts"] = _text_seconds(names, templates, encoder)
    rows = min(n, ROWS)
    n_classes = max(min(2, len(names)), round(len(names) * rows / n))
    model, spent = _measured_fit(classifier, rows, names[:n_classes], n)
    pace = spent / _work(rows, n_classes, encoder.dim)
    in_features = hasattr(model, "fitted_") and not model.has_keys
    cost = (_explicit_cost if in_features else _exact_cost)(model, pace, n, len(names))
    text = sum(len(name) + len(label) + ENTRY for name, label in records)
    pictures = _thumbnail_bytes(sample[0]) if thumbnails and sample else 0
    if keep_shots and in_features:
        name_bytes = n * sum(len(name) for name, _ in records) // len(records)
        cost = cost.with_shots(index_bytes(n, encoder.dim, name_bytes))
    return FitEstimate(
        images=n,
        classes=len(names),
        seconds=seconds | cost.seconds,
        memory=peak_memory() + cost.memory,
        disk=cost.disk + cost.listed * (text // len(records) + pictures),
        protocol=f"measured here on {measured} of {rows} drawn rows",
    )


class _Cost(NamedTuple):
    """Seconds by step, bytes of memory, bytes of arrays, and the images that a model lists."""

    seconds: dict[str, float]
    memory: int
    disk: int
    listed: int

    def with_shots(self, n_bytes: int) -> _Cost:
        """With an index of the shots of this size, which takes one more pass."""
        seconds = self.seconds | {"shots": self.seconds["passes"] / PASSES}
        return self._replace(seconds=seconds, disk=self.disk + n_bytes)


def _exact_cost(model: FeatureClassifier, pace: float, n: int, classes: int) -> _Cost:
    """The cost of a fit that keeps all n shots; `pace` is seconds by `_work`."""
    width = int(model.n_features_in_)
    memory = 12 * n * width + _fit_memory(model, n, classes)
    seconds = {"fit": pace * _work(n, classes, width)}
    return _Cost(seconds, memory, _array_bytes(model, classes, n=n), n)


def _explicit_cost(model: FeatureClassifier, pace: float, n: int, classes: int) -> _Cost:
    """The cost of a fit in explicit features: a search on a part, and passes over all rows."""
    width, features = int(model.n_features_in_), Explicit().n_features
    device = cast(Fitted, model.fitted_).shots.labels.device
    part = min(explicit_choice.PART_ROWS, n)
    some = max(2, min(classes, part // explicit_choice.PART_PER_CLASS))
    seconds = {
        "search": pace * _work(part, some, width),
        "passes": PASSES * n * _pass_seconds(classes, width, features),
    }
    memory = explicit.needed_bytes(classes, width, features, part, device)
    listed = n if n == part else explicit_choice.most_held(n, classes)
    disk = _array_bytes(model, classes, n=listed, l=min(features, n) + width)
    return _Cost(seconds, memory, disk, listed)


def _labelled(
    source: Source | FeatureStore,
) -> tuple[list[tuple[str, str]], list[Record], list[str]]:
    """Names and labels of the labelled images, a sample that is to be encoded, further classes."""
    sample: list[Record] = []
    known: list[str] = []
    if isinstance(source, FeatureStore):
        pairs = [(one.path, str(one.label)) for one in source.items() if one.label is not None]
    else:
        records = [record for record in source.records if record.label is not None]
        pairs = [(record.name, str(record.label)) for record in records]
        sample, known = records[:: math.ceil(len(records) / IMAGES) or 1], source.classes
    if not pairs:
        raise DataError(f"There is no labelled image in {source_name(source)!r}.")
    return pairs, sample, known


def _image_seconds(sample: list[Record], encoder: Encoder, views: int) -> float:
    """Seconds an image: read, decoded and encoded."""
    source = Source("sample", sample, len(sample))
    crops = Views(views) if views else None
    start, first, before = time.perf_counter(), 0.0, 0
    with closing(encoded(source, encoder, views=crops, repeat=True, batch_size=FIRST)) as stream:
        for count, _ in enumerate(stream, 1):
            if count == FIRST < len(sample):
                first, before = time.perf_counter() - start, FIRST
    return (time.perf_counter() - start - first) / (len(sample) - before)


def _text_seconds(names: list[str], templates: list[str], encoder: Encoder) -> float:
    """Seconds that reading all class names takes."""
    start = time.perf_counter()
    text_weights(encoder, Prompts.from_templates(names[:TEXTS], templates))
    return (time.perf_counter() - start) * len(names) / min(len(names), TEXTS)


def _measured_fit(
    classifier: ImageClassifier, n: int, names: list[str], n_all: int
) -> tuple[FeatureClassifier, float]:
    """A model of n drawn rows of these classes, and the seconds of its fit and its check.

    It is one in explicit features if a model of `n_all` rows will be.
    """
    encoder, random = classifier.encoder_, np.random.default_rng(0)
    labels, centres = np.arange(n) % len(names), random.normal(size=(len(names), encoder.dim))
    rows = centres[labels] + 1.5 * random.normal(size=(n, encoder.dim))
    prior = None
    if classifier.prompt is not None:
        prior = TextPrior(names, centres, encoder.logit_scale)
    projection = open_projection(classifier.projection)
    model = unfitted(classifier, projection, prior, text_alone=False)
    if getattr(model, "approximation", None) == "auto" and n_all > setup.EXACT_ROWS:
        model.set_params(approximation=Explicit())
    examples = [Example(str(row), names[label], str(row)) for row, label in enumerate(labels)]
    start = time.perf_counter()
    model.fit(rows, np.array(names)[labels])
    if model.has_keys:
        audit(rows, examples, text_prior=prior)
    return model, time.perf_counter() - start


def _work(n: int, classes: int, width: int) -> float:
    """How the time of a fit grows, up to a factor."""
    return n * (1 + n / SQUARE) * (width + 4 * classes)


def _fit_memory(model: FeatureClassifier, n: int, classes: int) -> int:
    """Bytes at the peak of a fit of n rows, from the model of a few."""
    fitted = cast("Fitted | None", getattr(model, "fitted_", None))
    if fitted is None:
        return 4 * 8 * n * (int(model.n_features_in_) + classes)
    few = fitted.shots
    labels = torch.arange(n, device=few.labels.device) % classes
    rows = few.features[:1].expand(n, -1)  # takes no memory
    all_of_them = replace(few, features=rows, labels=labels, n_classes=classes, label_weights=None)
    return fit_bytes(fitted.recipe, all_of_them, trained=fitted.training is not None)


def _pass_seconds(classes: int, width: int, features: int) -> float:
    """Seconds a row of a pass over all rows, in explicit features."""
    generator = torch.Generator().manual_seed(0)
    landmarks, rows, mapping = (
        unit_rows(torch.randn(count, width, generator=generator))
        for count in (features + width, PASS_ROWS, width)
    )
    labels, values = torch.arange(PASS_ROWS) % classes, torch.zeros(len(landmarks), classes)
    for _ in range(2):  # the first one is slower
        start = time.perf_counter()
        batch = Batch(unit_rows(rows @ mapping), values[:1], labels)
        loss_of([batch], landmarks, 1.0, values)
    return (time.perf_counter() - start) / PASS_ROWS


def _array_bytes(model: FeatureClassifier, classes: int, **lengths_of: int) -> int:
    """Bytes of model.safetensors, from the arrays of a model of few rows."""
    sizes = {"c": classes, "t": classes, **lengths_of}
    total = 0
    for name, array in state_of(model).arrays.items():
        dimensions = DIMENSIONS.get(name, "*" * array.ndim)
        lengths = zip(dimensions, array.shape, strict=True)
        total += array.itemsize * math.prod(sizes.get(one, length) for one, length in lengths)
    return total


def _thumbnail_bytes(record: Record) -> int:
    content = record.content
    return len(small_picture(content.read_bytes())) if isinstance(content, Path) else 4000
