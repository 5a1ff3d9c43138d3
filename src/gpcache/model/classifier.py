"""ImageClassifier: images in, names out. Encoder, prompts and method behind fit and predict."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from gpcache.encoders import Encoder, load_encoder
from gpcache.encoders.prompts import DEFAULT_TEMPLATES, Prompts, text_weights
from gpcache.errors import DataError
from gpcache.images.augment import Views
from gpcache.images.records import Refused, Source
from gpcache.images.sources import any_source
from gpcache.methods import FeatureClassifier, TextPrior, find_method
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.registry import name_of
from gpcache.model import files as model_files
from gpcache.model.answers import (
    Answering,
    Prediction,
    compared,
    encoded_batches,
    held_out_evaluation,
)
from gpcache.model.audit import Finding, audit
from gpcache.model.evaluation import Evaluation
from gpcache.model.training_images import (
    Example,
    TrainingFacts,
    all_examples,
    class_number,
    drawn_examples,
    find_duplicates,
    picture_of,
    require_class,
    said_of_copies,
    without_contradictions,
)
from gpcache.similarity import SimilarityProjection
from gpcache.similarity.folder import open_projection
from gpcache.support.progress import progress_bar

Images = str | Path | Source | Iterable[Any]

REJECT = 0.05

logger = logging.getLogger(__name__)


class ImageClassifier:
    """A few labelled images per class in, an answer with its doubts out.

    encoder : name for `load_encoder`, or an Encoder
    method : a name of `gpcache.methods.registry()`, or an estimator that is not fitted yet
    prompt : a template with {} for the class name, several of them, or None for images alone
    views : random views whose mean is an image's key; 0 takes the centre view
    projection : a similarity projection of this encoder, or the folder that holds it
    device : "auto" or a torch device
    """

    def __init__(
        self,
        encoder: str | Encoder = "lite",
        *,
        method: str | FeatureClassifier = "gpcache",
        prompt: str | Sequence[str] | None = DEFAULT_TEMPLATES,
        views: int = 0,
        projection: str | Path | SimilarityProjection | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        self._encoder = None if isinstance(encoder, str) else encoder
        self.encoder_name = encoder if isinstance(encoder, str) else encoder.name
        self._fingerprint: str | None = None
        self._loaded = False
        self.method = method
        self.templates: list[str] | None = None
        if prompt is not None:
            self.templates = [prompt] if isinstance(prompt, str) else list(prompt)
        self.views = Views(views) if views else None
        self.projection = open_projection(projection)
        self.device = device
        self.prompts: Prompts | None = None
        self.examples: list[Example] = []
        self.training = TrainingFacts()
        self._thumbnails: dict[str, bytes] = {}
        self._model: FeatureClassifier | None = None
        self._revision: model_files.Revision | None = None

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded when it is first needed: that of the saved model and projection."""
        if self._encoder is None:
            start = time.perf_counter()
            # The name in a model folder was chosen by whoever made it, not by this user.
            self._encoder = load_encoder(
                self.encoder_name, device=self.device, download=not self._loaded
            )
            seconds = time.perf_counter() - start
            logger.info("loaded %r on %s in %.2f s", self.encoder_name, self.device, seconds)
        given = (self.projection, getattr(self.method, "projection", None))
        model_files.require_encoder(self._encoder, self.encoder_name, self._fingerprint, given)
        return self._encoder

    @property
    def model(self) -> FeatureClassifier:
        """The fitted method on features."""
        if self._model is None:
            raise DataError("This ImageClassifier is not fitted: call fit first.")
        return self._model

    @property
    def method_name(self) -> str:
        """The name under which the method is registered."""
        method = self.method if self._model is None else self._model
        return method if isinstance(method, str) else name_of(method)

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
        self.training = TrainingFacts(source.name, shots, None if shots is None else seed)
        if shots is None:
            features, self.examples, _ = all_examples(
                source, self.encoder, self.views, self.training
            )
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
        if not self.examples and (refused := self.training.refused):
            first = f"{refused[0].name!r}: {refused[0].reason}"
            raise DataError(f"All images of {source.name!r} were refused, such as {first}.")
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
        """Learn further images, without a refit; new classes are welcome.

        What the class has already is left out, with a notice; what another class has is refused.
        """
        model = self._cache("add images to")
        refused = len(self.training.refused)
        learned = all_examples(
            any_source(images), self.encoder, self.views, self.training, self.examples
        )
        features, examples, copies = without_contradictions(learned, self.examples, self.training)
        if not examples and copies:
            return self
        if not examples:
            first = self.training.refused[refused:]
            why = f" {first[0].name!r}: {first[0].reason}." if first else " There is none."
            raise DataError(f"No labelled image can be added:{why}")
        fresh = sorted({example.label for example in examples} - set(self.classes))
        if fresh and self.prompts is not None and self.templates is not None:
            others = Prompts.from_templates(fresh, self.templates)
            self._set_prompts(self.prompts.joined(others))
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
            self._set_prompts(self.prompts.without(label))
        return self

    def relabel(self, labels: Mapping[str, str]) -> Self:
        """Give training images, by name, other labels of known classes.

        One that the class has already is forgotten instead, with a notice.
        """
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
        if copies := find_duplicates(self.examples):
            self.training.notices.append(said_of_copies(self.examples, copies))
            model.remove(list(copies))
            self.examples = [one for row, one in enumerate(self.examples) if row not in copies]
        return self

    # Answers.

    def predict(
        self,
        images: Images,
        *,
        reject: float = REJECT,
        sets: float | None = None,
        why: int = 0,
        refused: list[Refused] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Prediction]:
        """One prediction for each image, in order, in bounded memory however many there are.

        `reject` is the share of good images that may be answered by "I don't know"; `sets` asks for
        the plausible labels, which miss the true one at this rate; `why` for so many of the
        training images that drove each answer. An image that cannot be decoded is an error, or,
        with a list given as `refused`, noted there and passed over.
        """
        answers = Answering(self.model, self.examples, reject=reject, sets=sets, why=why)
        for batch in encoded_batches(any_source(images), self.encoder, refused, batch_size):
            yield from answers(batch)

    def evaluate(
        self,
        images: Images,
        *,
        reject: float = REJECT,
        unknown: Images | None = None,
        refused: list[Refused] | None = None,
    ) -> Evaluation:
        """Predictions beside the labels of labelled images that were not trained on.

        `unknown` are images of none of the classes, to see how many of them are refused.
        """
        source = any_source(images)
        number = {name: row for row, name in enumerate(self.classes)}
        trained = {example.hash for example in self.examples}
        answers, others = Answering(self.model, self.examples, reject=reject), None
        labels: list[int] = []
        found: list[Prediction] = []
        left_out = 0
        with progress_bar("evaluate", total=source.total, unit="image") as bar:
            for batch in encoded_batches(source, self.encoder, refused):
                bar.update(len(batch))
                fresh = [one for one in batch if one.hash not in trained]
                left_out += len(batch) - len(fresh)
                if fresh:
                    labels += [class_number(one.record, number) for one in fresh]
                    found += answers(fresh)
        if left_out and not found:
            raise DataError(
                f"All images in {source.name!r} were trained on: evaluate on others, or see the "
                "held-out figures that fit gives."
            )
        also = f" ({left_out} others were, and are left out)" if left_out else ""
        protocol = f"images that were not trained on{also}"
        if unknown is not None:
            others = list(self.predict(unknown, reject=reject, refused=refused))
        return compared(
            found, labels, self.classes, data=source.name, protocol=protocol, unknown=others
        )

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
            model.fitted_.shots.features.cpu().numpy(),
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
        return self._thumbnails.get(example.hash) or picture_of(example, self.training.source)

    # Files.

    def save(self, folder: str | Path, *, thumbnails: bool = False) -> None:
        """Write the model folder, in one step; `thumbnails` keeps small pictures in it."""
        if thumbnails:
            pictures = {one.hash: self.picture(row) for row, one in enumerate(self.examples)}
            self._thumbnails = {key: value for key, value in pictures.items() if value}
        self._revision = model_files.write(self._content(), folder, self.held_out())

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "auto",
        encoder: Encoder | None = None,
    ) -> Self:
        """Read a model folder; `encoder` stands in for the one named there, if it is the same.

        Nothing is downloaded: the model's encoder must be on this machine when it is needed.
        """
        content = model_files.read(folder, device=device)
        loaded = cls(
            encoder or content.encoder.name,
            method=clone(content.model),
            prompt=content.templates,
            views=content.views,
            projection=getattr(content.model, "projection", None),
            device=device,
        )
        loaded.encoder_name, loaded._loaded = content.encoder.name, True
        loaded._fingerprint = content.encoder.fingerprint
        loaded.prompts, loaded.training = content.prompts, content.training
        loaded.examples, loaded._thumbnails = content.examples, content.thumbnails
        loaded._model, loaded._revision = content.model, content.revision
        if encoder is not None:
            _ = loaded.encoder  # refuses another one at once
        return loaded

    def push_to_hub(self, repository: str, *, private: bool = True) -> str:
        """Upload the model to the Hugging Face hub as "owner/name"; returns its address."""
        return model_files.push(self._content(), repository, self.held_out(), private=private)

    @classmethod
    def from_hub(cls, repository: str, *, device: str | torch.device = "auto") -> Self:
        """Read a model from the Hugging Face hub; nothing is downloaded twice.

        The model alone is downloaded: its encoder must be on this machine when it is needed.
        """
        return cls.load(model_files.pull(repository), device=device)

    def _content(self) -> model_files.Content:
        return model_files.Content(
            self.model,
            model_files.EncoderFacts.of(self.encoder, self.encoder_name),
            self.templates,
            self.prompts,
            self.views.count if self.views else 0,
            self.examples,
            self.training,
            self._thumbnails,
            self._revision,
        )

    # Inside.

    def _unfitted(self) -> FeatureClassifier:
        prior = None if self.prompts is None else self._prior(self.prompts)
        if isinstance(self.method, FeatureClassifier) and self.examples:
            model = clone(self.method)  # the user's own object stays as it is
        else:
            name = str(self.method) if self.examples else "zero-shot"
            model = find_method(name, on_features=True).constructor(device=self.device)
        prepared: FeatureClassifier = model.set_params(text_prior=prior)
        return prepared.with_projection(self.projection)

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
