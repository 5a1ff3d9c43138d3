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
    """The answer for one photo; `why` holds row numbers and their shares.

    `note` says why no label could be ruled out.
    """

    probabilities: NDArray[np.float64]
    uncertainty: float
    familiarity: float
    plausible: list[str] | None
    why: list[tuple[int, float]]
    note: str = ""


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
        self._texts = texts
        self._picture = picture
        self._templates = templates
        self._features = features
        self._template = template or GPCacheClassifier(device=device)
        self._device = device
        self._cache: CacheClassifier | None = None  # of the photos
        self._text: ZeroShotClassifier | None = None  # of the class names, without photos
        self.photos: list[Photo] = []
        self._held_out: HeldOutPhotos | None = None
        self._last: HeldOutPhotos | None = None
        self._fitted_on = 0
        self._fitted_classes = 0

    def twin(self) -> Learner:
        """A copy of the model, to be changed separately."""
        # A shallow copy is enough: updates replace arrays, and do not change them.
        twin = copy(self)
        twin._cache = copy(self._cache)
        return twin

    @property
    def model(self) -> FeatureClassifier | None:
        """The model that answers; None without photos and class names."""
        return self._cache or self._text

    def begin(self, stored: StoredModel) -> None:
        """Continue with a fitted model."""
        self._cache, photos, self._fitted_on, self._fitted_classes = stored
        self.photos, self._held_out = list(photos), None

    def stored(self) -> StoredModel | None:
        """The model for `begin`; None if there is no photo."""
        if self._cache is None:
            return None
        return StoredModel(self._cache, self.photos, self._fitted_on, self._fitted_classes)

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
        if self._cache is not None and not self._cache.has_keys:
            raise DataError(
                "This model learned from more photos than it keeps, so that photos can be added "
                "here but nothing else can be changed: run gpcache fit for that."
            )
        model = clone(self._template).set_params(text_prior=prior)
        rows = np.stack([self._features(photo.hash) for photo in wanted])
        self._cache = model.fit(rows, [str(photo.label) for photo in wanted])
        self.photos, self._held_out, self._fitted_on = wanted, None, len(wanted)
        self._fitted_classes = _classes(wanted)

    def prior(self, contents: Contents) -> TextPrior | None:
        """The text vectors of the classes; None without text or classes."""
        prompts = contents.prompts(self._templates)
        return None if prompts is None else self._texts.prior(prompts)

    @property
    def outgrown(self) -> bool:
        """Whether hyper-parameters were chosen on far fewer or more photos, or other classes."""
        n, then = len(self.photos), self._fitted_on
        grown = not then / GROWN <= n <= then * GROWN
        keeps_all = self._cache is None or self._cache.has_keys
        return n > FEW and keeps_all and (grown or _classes(self.photos) != self._fitted_classes)

    # Answers.

    def held_out(self) -> HeldOutPhotos | None:
        """Held-out predictions of the photos; None if there is no model of photos."""
        if self._held_out is None and self._cache is not None:
            self._held_out = HeldOutPhotos.of(self._cache, self.photos, self._last, self._picture)
            self._last = self._held_out
        return self._held_out

    def answer(self, features: Features, *, why: int, error: float) -> list[Answer]:
        """Answers for rows (m, dim); `error` is that of the plausible sets, 0 for no sets."""
        model, held_out, m = self.ready(), self.held_out(), len(features)
        with_sets = bool(error) and held_out is not None and bool(held_out.counted.any())
        top = min(why, len(self.photos))
        answers = model.answer(features, top=top, error=error if with_sets else None)
        familiarity = np.full(m, np.nan)
        if held_out is not None:
            highest = max_probability(answers.logits, temperature=model.temperature_)
            familiarity = held_out.scores.familiarity(answers.novelty, highest)
        reasons: list[list[tuple[int, float]]] = [[] for _ in range(m)]
        if answers.explanation is not None:
            listed = zip(answers.explanation.shots, answers.explanation.shares, strict=True)
            reasons = [
                list(zip(rows.tolist(), parts.tolist(), strict=True)) for rows, parts in listed
            ]
        plausible: list[list[str] | None] = [None] * m
        note = ""
        if answers.sets is not None:
            plausible = [[str(name) for name in names] for names in answers.sets.labels]
            note = answers.sets.note
        parts = zip(
            answers.probabilities, answers.novelty, familiarity, plausible, reasons, strict=True
        )
        return [
            Answer(p, float(n), float(f), names, reason, note) for p, n, f, names, reason in parts
        ]

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
        rows: list[int] = suggest(pool, count, model=self._cache).rows.tolist()
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
        self._cache, self._text = None, None if prior is None else self._zero_shot(prior)
        self.photos, self._held_out, self._fitted_on = [], None, 0

    def _is_of(self, wanted: Sequence[Photo], prior: TextPrior | None) -> bool:
        """Whether the model was fitted on exactly these photos and this text."""
        return (
            self._cache is not None
            and [photo.lesson for photo in wanted] == [photo.lesson for photo in self.photos]
            and _same(self._cache.text_prior, prior)
        )

    def _mark(self, photos: list[Photo]) -> None:
        """Replace photos that differ only in their marks; model and figures stay."""
        self.photos = photos
        if self._held_out is not None:
            self._held_out = replace(self._held_out, photos=photos)

    def _can_update(self, wanted: Sequence[Photo]) -> bool:
        staying = {photo.id for photo in self.photos} & {photo.id for photo in wanted}
        return self._cache is not None and len(wanted) > FEW and bool(staying)

    def _update(self, wanted: dict[str, Photo], prior: TextPrior | None) -> None:
        """Remove, relabel and add the photos that differ, by exact updates."""
        model = self._cache
        assert model is not None
        before = model.text_prior
        gone = [
            row
            for row, photo in enumerate(self.photos)
            if photo.id not in wanted or (prior is None and wanted[photo.id].label != photo.label)
        ]
        if gone:
            model.remove(gone, refit=False)
            removed = set(gone)
            self.photos = [p for row, p in enumerate(self.photos) if row not in removed]
        fresh = None if prior is None or _same(before, prior) else prior
        if fresh is not None:
            assert before is not None  # a model with text stays one
            model.set_text(_both(before, fresh))
        moved = [r for r, p in enumerate(self.photos) if wanted[p.id].label != p.label]
        if moved:
            labels = [str(wanted[self.photos[row].id].label) for row in moved]
            model.relabel(moved, labels, refit=False)
        known = {photo.id for photo in self.photos}
        new = [photo for key, photo in wanted.items() if key not in known]
        if new:
            rows = np.stack([self._features(photo.hash) for photo in new])
            model.add(rows, [str(photo.label) for photo in new], refit=False)
        if fresh is not None:
            model.set_text(fresh)
        self.photos = [wanted[photo.id] for photo in self.photos] + new
        self._held_out = None


def _classes(photos: Sequence[Photo]) -> int:
    """The number of classes with photos, which does not depend on their names."""
    return len({photo.label for photo in photos})


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
