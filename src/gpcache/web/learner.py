"""The model of a workspace: it is updated with the contents, and predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.encoders.vectors import Features
from gpcache.errors import DataError, GPCacheError
from gpcache.methods import FeatureClassifier, GPCacheClassifier, TextPrior, ZeroShotClassifier
from gpcache.methods.base import RowAnswers
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.metrics import max_probability
from gpcache.model.audit.fingerprints import Picture
from gpcache.model.suggest import suggest
from gpcache.web.held_out import HeldOutPhotos
from gpcache.web.stored_model import StoredModel
from gpcache.web.workspace_contents import Contents, Photo

# Up to this many photos, hyper-parameters are chosen again at every change: it takes an instant.
FEW = 64
# Beyond, they are chosen again when the number of photos has changed by this factor.
GROWN = 1.05
# Tolerance between text vectors that were encoded in different batches.
ROUNDING = 1e-6


class Answer(NamedTuple):
    """The answer for one photo; `why` holds the photos that explain it, and their shares.

    `note` says why no label could be ruled out.
    """

    classes: list[str]
    probabilities: NDArray[np.float64]
    uncertainty: float
    familiarity: float
    plausible: list[str] | None
    why: list[tuple[Photo, float]]
    note: str
    name: str = ""


class Texts:
    """Text vectors of classes, with a cache."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._known: dict[tuple[str, ...], Features] = {}
        # Requests wait while the text encoder is loaded, and do not load another one.
        self._lock = Lock()

    def warm(self) -> None:
        """Load the text encoder before a class needs it."""
        # If it cannot be loaded, adding the first class raises the error.
        with suppress(GPCacheError), self._lock:
            if not self._known:
                self._encoder.encode_texts(["a photo"])

    def prior(self, prompts: Prompts) -> TextPrior:
        """The text vectors of the classes."""
        pairs = dict(zip(prompts.class_names, prompts.sentences, strict=True))
        fresh = {name: text for name, text in pairs.items() if text not in self._known}
        if fresh:
            with self._lock:
                vectors = text_weights(self._encoder, Prompts(tuple(fresh), tuple(fresh.values())))
            self._known |= dict(zip(fresh.values(), vectors, strict=True))
        rows = np.stack([self._known[text] for text in pairs.values()])
        return TextPrior(prompts.class_names, rows, self._encoder.logit_scale)


class Learner:
    """A fitted model, its photos in its order, and its updates.

    It equals the model that `gpcache fit` makes of the same photos. A model that the workspace
    started with keeps its settings.
    """

    def __init__(
        self,
        texts: Texts,
        templates: Sequence[str] | None,
        features: Callable[[str], Features],
        template: CacheClassifier | None = None,
        *,
        picture: Callable[[str], Picture] | None = None,
        device: Any = "auto",
    ) -> None:
        self.texts = texts
        self._picture = picture
        self._templates = templates
        self._features = features
        self._template = template or GPCacheClassifier(device=device)
        self._device = device
        self.stored: StoredModel | None = None  # the model of the photos
        self._text: ZeroShotClassifier | None = None  # of the class names, without photos
        self._held_out: HeldOutPhotos | None = None
        self._last: HeldOutPhotos | None = None

    def blank(self) -> Learner:
        """A learner with the same settings, without a model."""
        given = self.texts, self._templates, self._features, self._template
        return Learner(*given, picture=self._picture, device=self._device)

    def twin(self) -> Learner:
        """A copy of the model, to be changed separately."""
        # A shallow copy is enough: updates replace arrays, and do not change them.
        twin = copy(self)
        if self.stored is not None:
            twin.stored = self.stored._replace(model=copy(self.stored.model))
        return twin

    @property
    def photos(self) -> Sequence[Photo]:
        """The photos of the model, in its order."""
        return [] if self.stored is None else self.stored.photos

    @property
    def model(self) -> FeatureClassifier | None:
        """The model that answers; None without photos and class names."""
        return self._text if self.stored is None else self.stored.model

    def rows(self, photos: Sequence[Photo]) -> Features:
        """The features (n, dim) of photos."""
        return np.stack([self._features(photo.hash) for photo in photos])

    def follow(self, contents: Contents) -> None:
        """Become the model of these contents."""
        wanted = contents.labelled()
        prior = self.prior(contents)
        if not wanted:
            self._fit_text(prior)
        elif self._is_of(wanted, prior):
            self._mark(wanted)
        elif self._can_update(wanted):
            self._update({photo.id: photo for photo in wanted}, prior)
        else:
            self.fit(contents)

    def fit(self, contents: Contents) -> None:
        """Choose all hyper-parameters again on these contents, which hold a photo."""
        wanted, prior = contents.labelled(), self.prior(contents)
        if self.stored is not None and not self.stored.model.has_keys:
            raise DataError(
                "This model learned from more photos than it keeps, so that photos can be added "
                "here but nothing else can be changed: run gpcache fit for that."
            )
        model = clone(self._template).set_params(text_prior=prior)
        model.fit(self.rows(wanted), [str(photo.label) for photo in wanted])
        self.stored, self._held_out = StoredModel.of(model, wanted), None

    def prior(self, contents: Contents) -> TextPrior | None:
        """The text vectors of the classes; None without text or classes."""
        prompts = contents.prompts(self._templates)
        return None if prompts is None else self.texts.prior(prompts)

    @property
    def outgrown(self) -> bool:
        """Whether hyper-parameters were chosen on far fewer or more photos, or other classes."""
        stored = self.stored
        if stored is None or len(stored.photos) <= FEW or not stored.model.has_keys:
            return False
        then, now = stored.fitted_on, StoredModel.of(stored.model, stored.photos)
        grown = not then / GROWN <= now.fitted_on <= then * GROWN
        return grown or now.fitted_classes != stored.fitted_classes

    # Answers.

    def held_out(self) -> HeldOutPhotos | None:
        """Held-out predictions of the photos; None if there is no model of photos."""
        if self._held_out is None and self.stored is not None:
            model, photos = self.stored.model, self.stored.photos
            self._held_out = HeldOutPhotos.of(model, photos, self._last, self._picture)
            self._last = self._held_out
        return self._held_out

    def answer(self, features: Features, *, why: int, error: float) -> list[Answer]:
        """Answers for rows (m, dim); `error` is that of the plausible sets, 0 for no sets."""
        model, held_out, photos = self.ready(), self.held_out(), self.photos
        with_sets = bool(error) and held_out is not None and bool(held_out.counted.any())
        top = min(why, len(photos))
        found = model.answer(features, top=top, error=error if with_sets else None)
        sets, explanation = found.sets, found.explanation
        classes, familiarity = [str(name) for name in model.classes_], self.familiarity(found)
        answers = []
        for row, probabilities in enumerate(found.probabilities):
            reasons: list[tuple[Photo, float]] = []
            if explanation is not None:
                shots, shares = explanation.shots[row].tolist(), explanation.shares[row].tolist()
                reasons = [(photos[shot], p) for shot, p in zip(shots, shares, strict=True)]
            plausible = None if sets is None else [str(name) for name in sets.labels[row]]
            novelty, known = float(found.novelty[row]), float(familiarity[row])
            note = "" if sets is None else sets.note
            answers.append(Answer(classes, probabilities, novelty, known, plausible, reasons, note))
        return answers

    def familiarity(self, answers: RowAnswers) -> NDArray[np.float64]:
        """The familiarity (m,) of the rows of `answers`; NaN if nothing could be held out."""
        model, held_out = self.ready(), self.held_out()
        if held_out is None:
            return np.full(len(answers.logits), np.nan)
        highest = max_probability(answers.logits, temperature=model.temperature_)
        return held_out.scores.familiarity(answers.novelty, highest)

    def by_text(
        self, features: Features, contents: Contents
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Classes, and the zero-shot probabilities of rows (m, dim)."""
        prior = self.prior(contents)
        if prior is None:
            raise DataError("There is no class name to compare with: add a class first.")
        model = self._zero_shot(prior)
        return [str(name) for name in model.classes_], model.predict_proba(features)

    def suggest(self, pool: Features, count: int) -> list[int]:
        """Rows of the pool (m, dim) to label next, the best first."""
        count = min(count, len(pool))
        model = None if self.stored is None else self.stored.model
        rows: list[int] = suggest(pool, count, model=model).rows.tolist()
        return rows

    def ready(self) -> FeatureClassifier:
        """The fitted model; raises an error if there is none."""
        if (model := self.model) is None:
            raise DataError("There is nothing to choose between yet: add classes or photos first.")
        return model

    # Inside.

    def _zero_shot(self, prior: TextPrior) -> ZeroShotClassifier:
        model = ZeroShotClassifier(text_prior=prior, device=self._device)
        return model.fit(prior.vectors, [str(name) for name in prior.class_names])

    def _fit_text(self, prior: TextPrior | None) -> None:
        self.stored, self._held_out = None, None
        self._text = None if prior is None else self._zero_shot(prior)

    def _is_of(self, wanted: Sequence[Photo], prior: TextPrior | None) -> bool:
        """Whether the model was fitted on exactly these photos and this text."""
        return (
            self.stored is not None
            and [photo.lesson for photo in wanted] == [photo.lesson for photo in self.photos]
            and _same(self.stored.model.text_prior, prior)
        )

    def _mark(self, photos: list[Photo]) -> None:
        """Replace photos that differ only in their marks; model and figures stay."""
        assert self.stored is not None
        self.stored = self.stored._replace(photos=photos)
        if self._held_out is not None:
            self._held_out = replace(self._held_out, photos=photos)

    def _can_update(self, wanted: Sequence[Photo]) -> bool:
        staying = {photo.id for photo in self.photos} & {photo.id for photo in wanted}
        return len(wanted) > FEW and bool(staying)

    def _update(self, wanted: dict[str, Photo], prior: TextPrior | None) -> None:
        """Remove, relabel and add the photos that differ, by exact updates."""
        assert self.stored is not None
        model, photos = self.stored.model, self.stored.photos
        before = model.text_prior
        gone = [
            row
            for row, photo in enumerate(photos)
            if photo.id not in wanted or (prior is None and wanted[photo.id].label != photo.label)
        ]
        if gone:
            model.remove(gone, refit=False)
            removed = set(gone)
            photos = [p for row, p in enumerate(photos) if row not in removed]
        fresh = None if prior is None or _same(before, prior) else prior
        if fresh is not None:
            assert before is not None  # a model with text stays one
            model.set_text(_both(before, fresh))
        moved = [r for r, p in enumerate(photos) if wanted[p.id].label != p.label]
        if moved:
            labels = [str(wanted[photos[row].id].label) for row in moved]
            model.relabel(moved, labels, refit=False)
        known = {photo.id for photo in photos}
        new = [photo for key, photo in wanted.items() if key not in known]
        if new:
            model.add(self.rows(new), [str(photo.label) for photo in new], refit=False)
        if fresh is not None:
            model.set_text(fresh)
        self.stored = self.stored._replace(photos=[wanted[photo.id] for photo in photos] + new)
        self._held_out = None


def _same(one: TextPrior | None, other: TextPrior | None) -> bool:
    """Whether two texts differ by no more than rounding."""
    if one is None or other is None or set(one.class_names) != set(other.class_names):
        return one is other
    apart = one.aligned(one.classes) - other.aligned(one.classes)
    return bool(np.abs(apart).max() < ROUNDING)


def _both(one: TextPrior, other: TextPrior) -> TextPrior:
    """The classes of both, so that photos can be relabelled between them."""
    vectors = dict(zip(one.class_names, one.vectors, strict=True))
    vectors |= dict(zip(other.class_names, other.vectors, strict=True))
    return TextPrior(list(vectors), np.stack(list(vectors.values())), other.logit_scale)
