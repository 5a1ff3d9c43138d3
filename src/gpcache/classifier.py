"""ImageClassifier: images in, names out. Encoder, prompts and method behind fit and predict."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache import __version__
from gpcache.audit import Finding, audit
from gpcache.card import model_card
from gpcache.encoders import Encoder, load_encoder
from gpcache.errors import DataError, EncoderError, ImageRefusedError
from gpcache.evaluation import Evaluation
from gpcache.features.stream import Encoded, encoded
from gpcache.images.augment import Views
from gpcache.images.records import IMAGE_SUFFIXES, Record, Refused, Source
from gpcache.images.sources import from_iterable, open_source
from gpcache.images.thumbnails import thumbnail
from gpcache.methods import FeatureClassifier, State, TextPrior, find_method, restore, state_of
from gpcache.methods.cache import CacheClassifier
from gpcache.persistence import load_folder, save_folder
from gpcache.prediction import Neighbour, Prediction
from gpcache.progress import progress_bar
from gpcache.prompts import DEFAULT_TEMPLATES, Prompts, text_weights
from gpcache.splits import draw_shots

Images = str | Path | Source | Iterable[Any]

REJECT = 0.05
CHUNK = 256


@dataclass(frozen=True)
class Example:
    """A training image: its name in the source, its class, its burst, the hash of its content."""

    name: str
    label: str
    hash: str
    group: str | None = None


@dataclass
class Training:
    """Where the training images came from, how they were drawn, and what was left out."""

    source: str = ""
    shots: int | None = None
    seed: int | None = None
    refused: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


class ImageClassifier:
    """A few labelled images per class in, an answer with its doubts out.

    Parameters
    ----------
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
        self.templates = prompt
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
            self._encoder = load_encoder(self.encoder_name, device=self.device)
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
        source = _source(images)
        self.training = Training(source.name, shots, seed if shots else None)
        if shots:
            features, self.examples = self._drawn(source, shots, seed)
        else:
            features, self.examples = self._encoded(source, "fit")
        names = sorted({example.label for example in self.examples} | {*source.classes, *classes})
        if not names:
            raise DataError(f"There is no labelled image in {source.name!r}.")
        self.prompts = None
        if self.templates is not None:
            self.prompts = Prompts.from_templates(names, self.templates)
        elif not self.examples:
            raise DataError("Without a prompt, every class needs an image.")
        self._model = self._unfitted()
        self._model.fit(*self._rows(features))
        self._fingerprint = self.encoder.fingerprint
        return self

    def add(self, images: Images) -> Self:
        """Learn further images, without a refit; new classes are welcome."""
        features, examples = self._encoded(_source(images), "add")
        if not examples:
            raise DataError("There is no labelled image to add.")
        model = self._cache("add images to")
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
        if label is not None and label not in self.classes:
            raise DataError(f"The model has no class {label!r}: it has {_listed(self.classes)}.")
        rows = [
            row
            for row, example in enumerate(self.examples)
            if example.name in wanted or example.label == label
        ]
        if rows:
            model.remove(rows)
        self.examples = [one for row, one in enumerate(self.examples) if row not in set(rows)]
        if label is not None and self.prompts is not None:
            pairs = zip(self.prompts.class_names, self.prompts.sentences, strict=True)
            kept = [pair for pair in pairs if pair[0] != label]
            self._set_prompts(Prompts(*(tuple(part) for part in zip(*kept, strict=True))))
        return self

    def relabel(self, labels: Mapping[str, str]) -> Self:
        """Give training images, by name, other labels of known classes."""
        model = self._cache("relabel images of")
        number = {example.name: row for row, example in enumerate(self.examples)}
        if missing := sorted(set(labels) - set(number)):
            raise DataError(f"The model has no training image {missing[0]!r}.")
        model.relabel([number[name] for name in labels], list(labels.values()))
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
        for chunk in self._chunks(_source(images), refused, batch_size):
            yield from self._answers(chunk, reject, why)

    def evaluate(
        self, images: Images, *, reject: float = REJECT, refused: list[Refused] | None = None
    ) -> Evaluation:
        """Predictions beside the labels of labelled images that were not trained on."""
        source = _source(images)
        classes = self.classes
        number = {name: row for row, name in enumerate(classes)}
        labels, found = [], []
        with progress_bar("evaluate", total=source.total, unit="image") as bar:
            for chunk in self._chunks(source, refused, None):
                unknown = [one.record for one in chunk if one.record.label not in number]
                if unknown:
                    raise DataError(
                        f"{unknown[0].name!r} has the label {unknown[0].label!r}, which is no "
                        f"class of the model: it has {_listed(classes)}."
                    )
                labels += [number[str(one.record.label)] for one in chunk]
                found += list(self._answers(chunk, reject, 0))
                bar.update(len(chunk))
        return Evaluation(
            data=source.name,
            protocol="images that were not trained on",
            class_names=classes,
            names=[one.name for one in found],
            labels=np.array(labels, dtype=np.int64),
            probabilities=np.array([one.distribution for one in found]),
            uncertainty=np.array([one.uncertainty for one in found]),
            rejected=np.array([one.rejected for one in found], dtype=bool),
        )

    def held_out(self) -> Evaluation | None:
        """What the model says of its own training images, each held out; None where none could be.

        Images without company in their class are not counted.
        """
        model = self.model
        if not isinstance(model, CacheClassifier) or not model.loo_.counted.any():
            return None
        rows = np.flatnonzero(model.loo_.counted)
        logits = model.loo_.logits[rows] / model.temperature_
        odds = np.exp(logits - logits.max(1, keepdims=True))
        number = {name: row for row, name in enumerate(self.classes)}
        novelty = model.held_out_novelty_[rows]
        return Evaluation(
            data=f"training images of {self.training.source}",
            protocol=f"no validation set: {model.loo_.protocol}",
            class_names=self.classes,
            names=[self.examples[row].name for row in rows],
            labels=np.array([number[self.examples[row].label] for row in rows]),
            probabilities=odds / odds.sum(1, keepdims=True),
            uncertainty=novelty,
            rejected=np.zeros(len(rows), dtype=bool),
        )

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
        if example.hash in self._thumbnails:
            return self._thumbnails[example.hash]
        try:
            return thumbnail(Path(self.training.source) / example.name)
        except ImageRefusedError:
            return None

    # Files.

    def save(self, folder: str | Path, *, thumbnails: bool = False) -> None:
        """Write the model folder, in one step; `thumbnails` keeps small pictures in it."""
        state = state_of(self.model)
        if thumbnails:
            pictures = {one.hash: self.picture(row) for row, one in enumerate(self.examples)}
            self._thumbnails = {key: value for key, value in pictures.items() if value}
        config: dict[str, Any] = {
            "gpcache": __version__,
            "encoder": {
                "name": self.encoder_name,
                "fingerprint": self.encoder.fingerprint,
                "dim": self.encoder.dim,
                "logit_scale": self.encoder.logit_scale,
            },
            "prompts": None if self.prompts is None else asdict(self.prompts),
            "templates": self.templates if self.templates is None else list(_some(self.templates)),
            "views": self.views.count if self.views else 0,
            "examples": [asdict(example) for example in self.examples],
            "training": asdict(self.training),
            "model": state.settings,
        }
        card = model_card(config, self.held_out())
        kept = {
            f"thumbnail {key}": np.frombuffer(self._thumbnails[key], dtype=np.uint8)
            for key in {example.hash for example in self.examples} & set(self._thumbnails)
        }
        save_folder(folder, config, state.arrays | kept, card)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "auto",
        encoder: Encoder | None = None,
    ) -> ImageClassifier:
        """Read a model folder; `encoder` stands in for the one named there, if it is the same."""
        config, arrays = load_folder(folder)
        named = config["encoder"]
        loaded = cls(
            encoder or named["name"],
            method=config["model"]["method"],
            prompt=config["templates"],
            views=config["views"],
            device=device,
        )
        loaded.encoder_name, loaded._fingerprint = named["name"], named["fingerprint"]
        if config["prompts"] is not None:
            names, sentences = config["prompts"]["class_names"], config["prompts"]["sentences"]
            loaded.prompts = Prompts(tuple(names), tuple(map(tuple, sentences)))
        loaded.examples = [Example(**example) for example in config["examples"]]
        training = config["training"]
        training["refused"] = [Refused(**one) for one in training["refused"]]
        loaded.training = Training(**training)
        loaded._thumbnails = {
            name.removeprefix("thumbnail "): arrays.pop(name).tobytes()
            for name in [name for name in arrays if name.startswith("thumbnail ")]
        }
        loaded._model = restore(State(config["model"], arrays), device=device)
        if encoder is not None:
            _ = loaded.encoder  # refuses another one at once
        return loaded

    # Inside.

    def _unfitted(self) -> FeatureClassifier:
        prior = None if self.prompts is None else self._prior(self.prompts)
        if isinstance(self.method, FeatureClassifier):
            return self.method.set_params(text_prior=prior)  # type: ignore[no-any-return]
        method = find_method(self.method if self.examples else "zero-shot")
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
                f"To {purpose} a model, its method must keep a cache: fit it with method='gpcache'."
            )
        return self.model

    def _drawn(
        self, source: Source, shots: int, seed: int
    ) -> tuple[NDArray[np.float32], list[Example]]:
        """The features and examples of `shots` images a class; refused ones are drawn again."""
        records = {record.name: record for record in source.records}
        found: dict[str, tuple[NDArray[np.float32], Example]] = {}
        while True:
            labels = [record.label for record in records.values()]
            draw = draw_shots(labels, list(records), shots, seed)
            chosen = [list(records)[row] for row in draw.indices]
            fresh = [records[name] for name in chosen if name not in found]
            if not fresh:
                break
            part = Source(source.name, fresh, len(fresh))
            features, examples = self._encoded(part, "fit")
            found |= {one.name: (row, one) for row, one in zip(features, examples, strict=True)}
            for record in fresh:
                if record.name not in found:
                    del records[record.name]
        self.training.refused += source.refused
        self.training.notices += source.notices
        for label, count in draw.short.items():
            self.training.notices.append(f"The class {label!r} has {count} of {shots} images.")
        drawn = [found[name] for name in chosen]
        return np.stack([row for row, _ in drawn]), [example for _, example in drawn]

    def _encoded(
        self, source: Source, description: str
    ) -> tuple[NDArray[np.float32], list[Example]]:
        """The features and examples of all labelled images of a source."""
        rows: list[NDArray[np.float32]] = []
        examples: list[Example] = []
        known: dict[str, NDArray[np.float32]] = {}
        training = self.training
        stream = encoded(source, self.encoder, views=self.views)
        with closing(stream), progress_bar(description, total=source.total, unit="image") as bar:
            for found in stream:
                bar.update()
                if isinstance(found, Refused):
                    training.refused.append(found)
                    continue
                record = found.record
                if record.label is None:
                    training.refused.append(Refused(record.name, "it has no label"))
                    continue
                training.notices += [f"{record.name}: {note}" for note in found.notes]
                if found.features is not None:
                    known[found.hash] = found.features
                rows.append(known[found.hash])
                examples.append(Example(record.name, record.label, found.hash, record.group))
        training.refused += source.refused
        training.notices += source.notices
        empty = np.zeros((0, self.encoder.dim), dtype=np.float32)
        return (np.stack(rows) if rows else empty), examples

    def _chunks(
        self, source: Source, refused: list[Refused] | None, batch_size: int | None
    ) -> Iterator[list[Encoded]]:
        """Encoded images in lists that are worth a call of the model; refusals go where told."""
        stream = encoded(source, self.encoder, repeat=True, batch_size=batch_size)
        with closing(stream):
            # itertools.batched comes with Python 3.12.
            while chunk := list(itertools.islice(stream, CHUNK)):
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

    def _answers(self, chunk: list[Encoded], reject: float, why: int) -> Iterator[Prediction]:
        model = self.model
        features = np.stack([found.features for found in chunk if found.features is not None])
        probabilities = model.predict_proba(features)
        uncertainty, familiarity = self._doubts(features, probabilities)
        neighbours: list[tuple[Neighbour, ...]] = [()] * len(chunk)
        if why and isinstance(model, CacheClassifier):
            explained = model.explain(features, top=why)
            neighbours = [
                tuple(
                    Neighbour(self.examples[row].name, self.examples[row].label, float(share))
                    for row, share in zip(rows, shares, strict=True)
                )
                for rows, shares in zip(explained.shots, explained.shares, strict=True)
            ]
        for i, found in enumerate(chunk):
            yield Prediction(
                found.record.name,
                model.classes_,
                probabilities[i],
                float(uncertainty[i]),
                float(familiarity[i]),
                bool(familiarity[i] <= reject),
                neighbours[i],
            )

    def _doubts(
        self, features: NDArray[Any], probabilities: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How unlike the training images each image is, and the share of those as unlike."""
        model = self.model
        if not isinstance(model, CacheClassifier):
            return 1 - probabilities.max(1), np.full(len(features), np.nan)
        novelty = model.novelty(features)
        held_out = np.sort(model.held_out_novelty_[~np.isnan(model.held_out_novelty_)])
        if not len(held_out):
            return novelty, np.full(len(features), np.nan)
        at_least = len(held_out) - np.searchsorted(held_out, novelty, side="left")
        return novelty, (1 + at_least) / (1 + len(held_out))


def _source(images: Images) -> Source:
    """A source from whatever was given; a single file is a list of one."""
    if isinstance(images, Source):
        return images
    if isinstance(images, str | Path):
        return single_or_folder(images)
    return from_iterable(images)


def single_or_folder(path: str | Path) -> Source:
    """The images of a folder or a list; an image file is a list of one."""
    place = Path(path)
    if place.suffix.lower() in IMAGE_SUFFIXES and not place.is_dir():
        return Source(str(path), [Record(str(path), place)], 1)
    return open_source(place)


def _some(templates: str | Sequence[str]) -> Sequence[str]:
    return (templates,) if isinstance(templates, str) else templates


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
