"""ImageClassifier: images in, names out. Encoder, prompts and method behind fit and predict."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache import model_files
from gpcache.audit import Finding, audit
from gpcache.encoders import Encoder, load_encoder
from gpcache.errors import DataError, EncoderError, ImageRefusedError
from gpcache.evaluation import Evaluation
from gpcache.examples import (
    Example,
    Training,
    all_examples,
    class_number,
    drawn_examples,
    picture_of,
    require_class,
)
from gpcache.features.stream import Encoded, encoded
from gpcache.images.augment import Views
from gpcache.images.records import Refused, Source
from gpcache.images.sources import any_source
from gpcache.methods import FeatureClassifier, TextPrior, find_method
from gpcache.methods.cache import CacheClassifier
from gpcache.methods.registry import name_of
from gpcache.prediction import Prediction, answers, compared, held_out_evaluation
from gpcache.progress import progress_bar
from gpcache.prompts import DEFAULT_TEMPLATES, Prompts, text_weights

Images = str | Path | Source | Iterable[Any]

REJECT = 0.05

logger = logging.getLogger(__name__)


class ImageClassifier:
    """A few labelled images per class in, an answer with its doubts out.

    encoder : name for `load_encoder`, or an Encoder
    method : a name of `gpcache.methods.registry()`, or an estimator that is not fitted yet
    prompt : a template with {} for the class name, several of them, or None for images alone
    views : random views whose mean is an image's key; 0 takes the centre view
    device : "auto" or a torch device
    """

    def __init__(
        self,
        encoder: str | Encoder = "lite",
        *,
        method: str | FeatureClassifier = "gpcache",
        prompt: str | Sequence[str] | None = DEFAULT_TEMPLATES,
        views: int = 0,
        device: str | torch.device = "auto",
    ) -> None:
        self._encoder = None if isinstance(encoder, str) else encoder
        self.encoder_name = encoder if isinstance(encoder, str) else encoder.name
        self._fingerprint: str | None = None
        self.method = method
        self.templates: list[str] | None = None
        if prompt is not None:
            self.templates = [prompt] if isinstance(prompt, str) else list(prompt)
        self.views = Views(views) if views else None
        self.device = device
        self.prompts: Prompts | None = None
        self.examples: list[Example] = []
        self.training = Training()
        self._thumbnails: dict[str, bytes] = {}
        self._model: FeatureClassifier | None = None

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded when it is first needed; it must be the one of the saved model."""
        if self._encoder is None:
            start = time.perf_counter()
            self._encoder = load_encoder(self.encoder_name, device=self.device)
            seconds = time.perf_counter() - start
            logger.info("loaded %r on %s in %.2f s", self.encoder_name, self.device, seconds)
        if self._fingerprint not in (None, self._encoder.fingerprint):
            raise EncoderError(
                f"The model was fitted on the encoder {self.encoder_name!r} with the fingerprint "
                f"{str(self._fingerprint)[:12]}, this one has {self._encoder.fingerprint[:12]}: "
                "its features mean something else."
            )
        return self._encoder

    @property
    def model(self) -> FeatureClassifier:
        """The fitted method on features."""
        if self._model is None:
            raise DataError("This ImageClassifier is not fitted: call fit first.")
        return self._model

    @property
    def classes(self) -> list[str]:
        """The class names in order."""
        return [str(name) for name in self.model.classes_]

    # Learning.

    def fit(
        self,
        images: Images,
        *,
        shots: int | None = None,
        seed: int = 0,
        classes: Sequence[str] = (),
    ) -> Self:
        """Learn from a folder of class folders, a manifest, or (image, label) pairs.

        `shots` draws so many images of each class, seeded by `seed`. `classes` are further class
        names, known by their text alone; so is a class folder without an image.
        """
        source = any_source(images)
        self._model = None  # what fails below must not leave the old model to new examples
        self.training = Training(source.name, shots, None if shots is None else seed)
        if shots is None:
            features, self.examples = self._learnable(source)
        else:
            features, self.examples = drawn_examples(
                source, self.encoder, self.views, self.training, shots=shots, seed=seed
            )
        names = sorted({example.label for example in self.examples} | {*source.classes, *classes})
        if not names:
            raise DataError(
                f"There is no labelled image in {source.name!r}: give a folder for each class, or "
                "a list with the column label."
            )
        self.prompts = None
        if self.templates is not None:
            self.prompts = Prompts.from_templates(names, self.templates)
        elif bare := sorted(set(names) - {example.label for example in self.examples}):
            raise DataError(f"Without a prompt, every class needs an image: {bare[0]!r} has none.")
        self._model = self._unfitted()
        start = time.perf_counter()
        self._model.fit(*self._rows(features))
        logger.info("fitted %d images in %.2f s", len(self.examples), time.perf_counter() - start)
        self._fingerprint = self.encoder.fingerprint
        return self

    def add(self, images: Images) -> Self:
        """Learn further images, without a refit; new classes are welcome."""
        model = self._cache("add images to")
        features, examples = self._learnable(any_source(images))
        if not examples:
            raise DataError("There is no labelled image to add.")
        fresh = sorted({example.label for example in examples} - set(self.classes))
        if fresh and self.prompts is not None and self.templates is not None:
            known, others = self.prompts, Prompts.from_templates(fresh, self.templates)
            self._set_prompts(
                Prompts(known.class_names + others.class_names, known.sentences + others.sentences)
            )
        model.add(features, [example.label for example in examples])
        self.examples += examples
        return self

    def remove(self, *, names: Iterable[str] = (), label: str | None = None) -> Self:
        """Forget images by name, or a whole class, as if they had never been seen."""
        model = self._cache("remove images from")
        wanted = set(names)
        known = {example.name for example in self.examples}
        if missing := sorted(wanted - known):
            raise DataError(f"The model has no training image {missing[0]!r}.")
        if label is not None:
            require_class(label, self.classes)
        gone = [example.name in wanted or example.label == label for example in self.examples]
        if any(gone):
            model.remove(np.flatnonzero(gone))
        self.examples = [one for one, out in zip(self.examples, gone, strict=True) if not out]
        if label is not None and self.prompts is not None:
            pairs = zip(self.prompts.class_names, self.prompts.sentences, strict=True)
            kept = [pair for pair in pairs if pair[0] != label]
            self._set_prompts(Prompts(*(tuple(part) for part in zip(*kept, strict=True))))
        return self

    def relabel(self, labels: Mapping[str, str]) -> Self:
        """Give training images, by name, other labels of known classes."""
        model = self._cache("relabel images of")
        rows = [row for row, example in enumerate(self.examples) if example.name in labels]
        if missing := sorted(set(labels) - {self.examples[row].name for row in rows}):
            raise DataError(f"The model has no training image {missing[0]!r}.")
        for label in labels.values():
            require_class(label, self.classes)
        if rows:
            model.relabel(rows, [labels[self.examples[row].name] for row in rows])
        self.examples = [
            replace(one, label=labels.get(one.name, one.label)) for one in self.examples
        ]
        return self

    # Answers.

    def predict(
        self,
        images: Images,
        *,
        reject: float = REJECT,
        why: int = 0,
        refused: list[Refused] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Prediction]:
        """One prediction for each image, in order, in bounded memory however many there are.

        `reject` is the share of good images that may be answered by "I don't know"; `why` asks for
        so many of the training images that drove each answer. An image that cannot be decoded is
        an error, or, with a list given as `refused`, noted there and passed over.
        """
        if not 0 <= reject < 1:
            raise DataError(f"reject must be a rate from 0 to below 1, got {reject!r}.")
        for chunk in self._chunks(any_source(images), refused, batch_size):
            yield from answers(self.model, self.examples, chunk, reject=reject, why=why)

    def evaluate(
        self, images: Images, *, reject: float = REJECT, refused: list[Refused] | None = None
    ) -> Evaluation:
        """Predictions beside the labels of labelled images that were not trained on."""
        source = any_source(images)
        number = {name: row for row, name in enumerate(self.classes)}
        trained = {example.hash for example in self.examples}
        labels: list[int] = []
        found: list[Prediction] = []
        left_out = 0
        with progress_bar("evaluate", total=source.total, unit="image") as bar:
            for chunk in self._chunks(source, refused, None):
                bar.update(len(chunk))
                fresh = [one for one in chunk if one.hash not in trained]
                left_out += len(chunk) - len(fresh)
                if fresh:
                    labels += [class_number(one.record, number) for one in fresh]
                    found += answers(self.model, self.examples, fresh, reject=reject)
        if left_out and not found:
            raise DataError(
                f"All images in {source.name!r} were trained on: evaluate on others, or see the "
                "held-out figures that fit gives."
            )
        also = f" ({left_out} others were, and are left out)" if left_out else ""
        protocol = f"images that were not trained on{also}"
        return compared(found, labels, self.classes, data=source.name, protocol=protocol)

    def held_out(self) -> Evaluation | None:
        """What the model says of its own training images, each held out; None where none could be.

        Images without company in their class are not counted.
        """
        if len(self.classes) < 2:
            return None
        data = f"training images of {self.training.source}"
        return held_out_evaluation(self.model, self.examples, data=data)

    def suspects(self) -> list[Finding]:
        """Training images whose label is probably wrong, the likeliest first."""
        model = self.model
        if not isinstance(model, CacheClassifier):
            return []
        found = audit(
            model._shots.features.cpu().numpy(),
            [example.label for example in self.examples],
            hashes=[example.hash for example in self.examples],
            groups=[example.group for example in self.examples],
            text_prior=model.text_prior,
            names=[example.name for example in self.examples],
        )
        return list(found.of("leak") + found.of("label"))

    def picture(self, row: int) -> bytes | None:
        """A small picture of a training image: from the model, or from where it was; else None."""
        example = self.examples[row]
        kept = self._thumbnails.get(example.hash)
        return kept or picture_of(example, self.training.source)

    # Files.

    def save(self, folder: str | Path, *, thumbnails: bool = False) -> None:
        """Write the model folder, in one step; `thumbnails` keeps small pictures in it."""
        if thumbnails:
            pictures = {one.hash: self.picture(row) for row, one in enumerate(self.examples)}
            self._thumbnails = {key: value for key, value in pictures.items() if value}
        model_files.write(self._content(), folder, self.held_out())

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "auto",
        encoder: Encoder | None = None,
    ) -> Self:
        """Read a model folder; `encoder` stands in for the one named there, if it is the same."""
        content = model_files.read(folder, device=device)
        loaded = cls(
            encoder or content.encoder.name,
            method=name_of(content.model),
            prompt=content.templates,
            views=content.views,
            device=device,
        )
        loaded.encoder_name = content.encoder.name
        loaded._fingerprint = content.encoder.fingerprint
        loaded.prompts, loaded.training = content.prompts, content.training
        loaded.examples, loaded._thumbnails = content.examples, content.thumbnails
        loaded._model = content.model
        if encoder is not None:
            _ = loaded.encoder  # refuses another one at once
        return loaded

    def push_to_hub(self, repository: str, *, private: bool = True) -> str:
        """Upload the model to the Hugging Face hub as "owner/name"; returns its address."""
        return model_files.push(self._content(), repository, self.held_out(), private=private)

    @classmethod
    def from_hub(cls, repository: str, *, device: str | torch.device = "auto") -> Self:
        """Read a model from the Hugging Face hub; nothing is downloaded twice."""
        return cls.load(model_files.pull(repository), device=device)

    def _content(self) -> model_files.Content:
        encoder = self.encoder
        return model_files.Content(
            self.model,
            model_files.EncoderFacts(
                self.encoder_name, encoder.fingerprint, encoder.dim, encoder.logit_scale
            ),
            self.templates,
            self.prompts,
            self.views.count if self.views else 0,
            self.examples,
            self.training,
            self._thumbnails,
        )

    # Inside.

    def _learnable(self, source: Source) -> tuple[NDArray[np.float32], list[Example]]:
        return all_examples(source, self.encoder, self.views, self.training)

    def _unfitted(self) -> FeatureClassifier:
        prior = None if self.prompts is None else self._prior(self.prompts)
        if isinstance(self.method, FeatureClassifier) and self.examples:
            return self.method.set_params(text_prior=prior)  # type: ignore[no-any-return]
        name = str(self.method) if self.examples else "zero-shot"
        method = find_method(name, on_features=True)
        return method.constructor(text_prior=prior, device=self.device)

    def _rows(self, features: NDArray[np.float32]) -> tuple[NDArray[Any], list[str]]:
        """What to fit on; without a single image, the text itself, which only zero-shot takes."""
        if self.examples:
            return features, [example.label for example in self.examples]
        assert self.prompts is not None
        return text_weights(self.encoder, self.prompts), list(self.prompts.class_names)

    def _prior(self, prompts: Prompts) -> TextPrior:
        vectors = text_weights(self.encoder, prompts)
        return TextPrior(prompts.class_names, vectors, self.encoder.logit_scale)

    def _set_prompts(self, prompts: Prompts) -> None:
        self._cache("change the classes of").set_text(self._prior(prompts))
        self.prompts = prompts

    def _cache(self, purpose: str) -> CacheClassifier:
        """The fitted method, if it can be updated."""
        if not isinstance(self.model, CacheClassifier):
            raise DataError(
                f"To {purpose} a model, it must keep images: fit it with method='gpcache' and at "
                "least one image."
            )
        return self.model

    def _chunks(
        self, source: Source, refused: list[Refused] | None, batch_size: int | None
    ) -> Iterator[list[Encoded]]:
        """Encoded images in batches, which hold no more than is needed; refusals go where told."""
        size = batch_size or self.encoder.batch_size
        stream = encoded(source, self.encoder, repeat=True, batch_size=size)
        with closing(stream):
            # itertools.batched comes with Python 3.12.
            while chunk := list(itertools.islice(stream, size)):
                good = []
                for found in chunk:
                    if isinstance(found, Encoded):
                        good.append(found)
                    elif refused is None:
                        raise ImageRefusedError(found.reason, name=found.name)
                    else:
                        refused.append(found)
                if good:
                    yield good
        if refused is not None:
            refused += source.refused
