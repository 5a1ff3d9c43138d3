"""Learns the content of a model from labelled images, saves it, and changes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from gpcache.cluster.fitting import rows_on_ray
from gpcache.encoders import Encoder, load_encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.errors import DataError
from gpcache.features.store import FeatureStore
from gpcache.images.augment import Views
from gpcache.images.records import Source
from gpcache.methods import FeatureClassifier, TextPrior, find_method
from gpcache.methods.cache.fitted import Fitted
from gpcache.model.audit import Finding, audit
from gpcache.model.files import Content, EncoderFacts
from gpcache.model.kept_shots import StoredShots
from gpcache.model.training_images import (
    ExampleReader,
    TrainingFacts,
    class_names,
    find_example,
    require_class,
    rows_without_copies,
    source_name,
)
from gpcache.similarity import SimilarityProjection
from gpcache.similarity.folder import open_projection
from gpcache.support.checks import one_of, shown
from gpcache.support.names import class_name

if TYPE_CHECKING:
    from gpcache.methods.cache.estimator import CacheClassifier
    from gpcache.model.classifier import ImageClassifier

Engine = Literal["local", "ray"]

logger = logging.getLogger(__name__)

# Up to this number of images every change chooses the hyper-parameters again: seconds at most.
REFIT_ALWAYS = 2_000


class NotFittedClassifierError(DataError, NotFittedError):  # type: ignore[misc]
    """The classifier has not been fitted yet."""


def load(name: str, device: str | torch.device, *, download: bool) -> Encoder:
    """Load an encoder, and log how long that took."""
    start = time.perf_counter()
    encoder = load_encoder(name, device=device, download=download)
    logger.info("loaded %r on %s in %.2f s", name, device, time.perf_counter() - start)
    return encoder


def templates_of(prompt: str | Sequence[str] | None) -> list[str] | None:
    """A prompt as a list; None without text."""
    if prompt is None:
        return None
    return [prompt] if isinstance(prompt, str) else list(prompt)


def learn(
    classifier: ImageClassifier,
    source: Source | FeatureStore,
    *,
    shots: int | None,
    seed: int,
    classes: Sequence[str],
    engine: Engine,
    keep_shots: bool = False,
) -> Content:
    """Fit the method of a classifier on the labelled images of a source or a feature store."""
    encoder, templates = classifier.encoder_, templates_of(classifier.prompt)
    projection = open_projection(classifier.projection)
    for one in (projection, getattr(classifier.method, "projection", None)):
        if isinstance(one, SimilarityProjection):
            one.require_encoder(encoder)
    one_of("engine", engine, ("local", "ray"))
    if engine == "ray" and not isinstance(source, FeatureStore):
        raise DataError("A fit on Ray takes a feature store: run gpcache extract first.")
    training = TrainingFacts(source_name(source), shots, None if shots is None else seed)
    reader = ExampleReader(encoder, _views(classifier.views), training)
    features, examples, _ = reader.read(source, shots, seed)
    labels = [example.label for example in examples]
    in_source = () if isinstance(source, FeatureStore) else source.classes
    names = class_names(examples, training, [*in_source, *map(class_name, classes)])
    prompts, prior = None, None
    if templates is not None:
        prompts = Prompts.from_templates(names, templates)
        prior = _text_prior(encoder, prompts)
    elif bare := sorted(set(names) - set(labels)):
        raise DataError(f"Without a prompt, every class needs an image: {shown(bare[0])} has none.")
    model = unfitted(classifier, projection, prior, text_alone=not examples)
    if keep_shots and not hasattr(model, "explain"):
        raise DataError(
            "This method does not explain answers by training images: leave out --keep-shots."
        )
    start = time.perf_counter()
    if not examples:
        assert prior is not None
        # Zero-shot learns nothing from rows: use its text as rows.
        model.fit(prior.vectors, names)
    elif engine == "ray":
        with rows_on_ray(features) as rows:
            model.fit(rows, labels)
        if not rows.passes:
            training.notices.append("The model was fitted on this machine: few images need no Ray.")
    else:
        model.fit(features, labels)
    logger.info("fitted %d images in %.2f s", len(examples), time.perf_counter() - start)
    fitted: Fitted | None = getattr(model, "fitted_", None)
    kept = None
    if fitted is not None and fitted.kept_rows is not None:
        kept = StoredShots.of(features, examples) if keep_shots else None
        examples = [examples[row] for row in fitted.kept_rows.tolist()]
    identity = (encoder.fingerprint, encoder.dim, encoder.logit_scale)
    facts = EncoderFacts(classifier.encoder_name, *identity)
    return Content(
        model, facts, templates, prompts, classifier.views, examples, training, shots=kept
    )


def unfitted(
    classifier: ImageClassifier,
    projection: SimilarityProjection | None,
    prior: TextPrior | None,
    *,
    text_alone: bool,
) -> FeatureClassifier:
    """The method of a classifier with its text and projection, before the fit."""
    method = classifier.method
    if isinstance(method, FeatureClassifier) and not text_alone:
        model = clone(method)  # the user's object must not change
    else:
        name = "zero-shot" if text_alone else str(method)
        model = find_method(name, on_features=True).constructor(device=classifier.device)
    return cast(FeatureClassifier, model.set_params(text_prior=prior)).with_projection(projection)


def suspects(content: Content, *, hard: bool = False) -> list[Finding]:
    """Training images whose label is almost certainly wrong, the likeliest first.

    With `hard`, the labels that are worth a look follow.
    """
    if not content.model.has_keys:
        return []
    model = cast("CacheClassifier", content.model)
    features = model.fitted_.shots.features.cpu().numpy()
    findings = audit(features, content.examples, text_prior=model.text_prior)
    return [*findings.of("leak"), *findings.of("label"), *(findings.of("look") if hard else ())]


def shots_elsewhere(
    content: Content, store: FeatureStore | str | Path, encoder: Encoder
) -> StoredShots:
    """The training images in a feature store, of a model that keeps none."""
    model = cast("CacheClassifier", content.model)
    if model.has_keys:
        raise DataError("This model keeps its training images: --why needs no feature store.")
    if not hasattr(model, "fitted_"):
        raise DataError("This method does not explain answers by training images.")
    store = store if isinstance(store, FeatureStore) else FeatureStore.open(store)
    rows, _, _ = ExampleReader(encoder, _views(content.views), TrainingFacts()).read(store)
    return StoredShots.of_store(rows, set(map(str, model.classes_)), model.fitted_.n_rows)


# Changes, in place.


def add(content: Content, source: Source | FeatureStore, encoder: Encoder) -> None:
    """Add further images; known ones are left out or refused."""
    model = _updatable(content, "add images to")
    reader = ExampleReader(encoder, _views(content.views), content.training, content.examples)
    features, examples, _ = reader.new(source)
    if not examples:
        return
    labels = [example.label for example in examples]
    fresh = sorted(set(labels) - set(map(str, model.classes_)))
    if fresh and content.prompts is not None and content.templates is not None:
        others = Prompts.from_templates(fresh, content.templates)
        _set_prompts(model, content, content.prompts.joined(others), encoder)
    model.add(features, labels, refit=_refit_option(content))
    if model.has_keys:  # else the examples are those that the fit held out
        content.examples += examples
    if content.shots is not None:
        content.shots = None
        content.training.notices.append(
            "The model no longer keeps its training images to explain answers, because images were "
            "added: fit it again with --keep-shots, or name its feature store with --why-from."
        )
    _refit_if_small(model, content)


def remove(
    content: Content, names: Iterable[str], label: str | None, encoder: Encoder | None
) -> None:
    """Remove images by name, or a class with its images; its text needs the encoder."""
    model = _updatable(content, "remove images from")
    wanted = {find_example(name, content.examples) for name in names}
    if label is not None:
        label = require_class(label, [str(name) for name in model.classes_])
    gone = [one.name in wanted or one.label == label for one in content.examples]
    if any(gone):
        model.remove(np.flatnonzero(gone), refit=_refit_option(content))
    content.examples = [one for one, out in zip(content.examples, gone, strict=True) if not out]
    if label is not None and content.prompts is not None and encoder is not None:
        _set_prompts(model, content, content.prompts.without(label), encoder)
    _refit_if_small(model, content)


def relabel(content: Content, labels: Mapping[str, str]) -> None:
    """Relabel images by name; a copy of an image that the class has already is removed."""
    model = _updatable(content, "relabel images of")
    classes = [str(name) for name in model.classes_]
    labels = {
        find_example(name, content.examples): require_class(label, classes)
        for name, label in labels.items()
    }
    rows = [row for row, example in enumerate(content.examples) if example.name in labels]
    if rows:
        names = [labels[content.examples[row].name] for row in rows]
        model.relabel(rows, names, refit=_refit_option(content))
    examples = [replace(one, label=labels.get(one.name, one.label)) for one in content.examples]
    kept = rows_without_copies(examples, content.training)
    if len(kept) < len(examples):
        copies = sorted(set(range(len(examples))) - set(kept))
        model.remove(copies, refit=_refit_option(content))
    content.examples = [examples[row] for row in kept]
    _refit_if_small(model, content)


def _refit_option(content: Content) -> bool | Literal["auto"]:
    """The option `refit` of an update: False if `_refit_if_small` follows it."""
    return False if len(content.examples) <= REFIT_ALWAYS else "auto"


def _refit_if_small(model: CacheClassifier, content: Content) -> None:
    """Choose again after a change, so that all figures equal those of a new fit."""
    if len(content.examples) <= REFIT_ALWAYS:
        model.refit()


def _updatable(content: Content, purpose: str) -> CacheClassifier:
    """The fitted method, if it can be updated."""
    if not content.model.can_update:
        raise DataError(
            f"To {purpose} a model, it must keep images: fit it with method='gpcache' and at "
            "least one image."
        )
    return cast("CacheClassifier", content.model)


def _set_prompts(
    model: CacheClassifier, content: Content, prompts: Prompts, encoder: Encoder
) -> None:
    model.set_text(_text_prior(encoder, prompts))
    content.prompts = prompts


def _text_prior(encoder: Encoder, prompts: Prompts) -> TextPrior:
    return TextPrior(prompts.class_names, text_weights(encoder, prompts), encoder.logit_scale)


def _views(count: int) -> Views | None:
    return Views(count) if count else None
