"""The model of a workspace: it is updated with the contents, and predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.encoders.vectors import Features
from gpcache.errors import DataError, GPCacheError
from gpcache.methods import FeatureClassifier, GPCacheClassifier, TextPrior, ZeroShotClassifier
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.text_prior import joined_text, same_text
from gpcache.model.audit.fingerprints import Picture
from gpcache.model.predictions import HeldOutScores, Prediction, judged
from gpcache.web.held_out import HeldOutPhotos
from gpcache.web.stored_model import StoredModel
from gpcache.web.workspace_contents import Contents, Photo

# Up to this many photos, hyper-parameters are chosen again at every change: it takes an instant.
FEW = 64
# Beyond, they are chosen again when the number of photos has changed by this factor.
GROWN = 1.05


class Answer(NamedTuple):
    """The prediction of one photo, and the photos that explain it with their shares."""

    prediction: Prediction
    why: list[tuple[Photo, float]]


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


@dataclass(eq=False)
class Learner:
    """A fitted model, its photos in its order, and its updates.

    It equals the model that `gpcache fit` makes of the same photos. `template` is the model that
    the workspace started with, if any, which keeps its settings. `features` and `picture` find the
    features (dim,) and the small grey picture of a photo by its hash.
    """

    texts: Texts
    templates: Sequence[str] | None
    features: Callable[[str], Features]
    template: CacheClassifier | None = None
    _: KW_ONLY
    picture: Callable[[str], Picture] | None = None
    device: Any = "auto"
    stored: StoredModel | None = None  # the model of the photos
    _text: ZeroShotClassifier | None = field(default=None, init=False)  # without photos
    _held_out: HeldOutPhotos | None = field(default=None, init=False)
    _last: HeldOutPhotos | None = field(default=None, init=False)

    def blank(self) -> Learner:
        """A learner with the same settings, without a model."""
        return replace(self, stored=None)

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
        return np.stack([self.features(photo.hash) for photo in photos])

    def follow(self, contents: Contents) -> None:
        """Become the model of these contents."""
        wanted, prior, stored = contents.labelled(), self.prior(contents), self.stored
        if not wanted:
            self.stored, self._held_out = None, None
            self._text = None if prior is None else self._zero_shot(prior)
        elif stored is None:
            self.fit(contents)
        elif stored.is_of(wanted, prior):  # photos differ only in their marks
            self.stored = stored._replace(photos=wanted)
            if self._held_out is not None:
                self._held_out = replace(self._held_out, photos=wanted)
        elif len(wanted) > FEW and {one.id for one in stored.photos} & {one.id for one in wanted}:
            self._update(stored, {photo.id: photo for photo in wanted}, prior)
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
        template = self.template or GPCacheClassifier(device=self.device)
        model = clone(template).set_params(text_prior=prior)
        model.fit(self.rows(wanted), [str(photo.label) for photo in wanted])
        self.stored, self._held_out = StoredModel.of(model, wanted), None

    def prior(self, contents: Contents) -> TextPrior | None:
        """The text vectors of the classes; None without text or classes."""
        prompts = contents.prompts(self.templates)
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
            self._held_out = HeldOutPhotos.of(model, photos, self._last, self.picture)
            self._last = self._held_out
        return self._held_out

    def answer(
        self,
        features: Features,
        names: Sequence[str],
        *,
        reject: float,
        why: int = 0,
        error: float = 0.0,
    ) -> list[Answer]:
        """Answers for rows (m, dim) of these names, as `gpcache predict` gives them.

        `reject` is the share of good photos that may be rejected, `why` the number of photos that
        explain an answer, and `error` that of the plausible sets; 0 leaves them out.
        """
        model, held_out, photos = self.ready(), self.held_out(), self.photos
        known = HeldOutScores.of(model) if held_out is None else held_out.scores
        with_sets = bool(error) and held_out is not None and bool(held_out.counted.any())
        found = model.answer(
            features, top=min(why, len(photos)), error=error if with_sets else None
        )
        note = "" if found.sets is None else found.sets.note
        reasons: list[list[tuple[Photo, float]]] = [[] for _ in names]
        if found.explanation is not None:
            shots, shares = found.explanation.shots.tolist(), found.explanation.shares.tolist()
            reasons = [
                [(photos[shot], share) for shot, share in zip(*row, strict=True)]
                for row in zip(shots, shares, strict=True)
            ]
        predictions = judged(model, found, known, names, reject=reject, note=note)
        return [Answer(*pair) for pair in zip(predictions, reasons, strict=True)]

    def by_text(self, features: Features, contents: Contents) -> list[tuple[str, float]]:
        """The zero-shot probabilities of a photo (dim,) by class, the best first."""
        prior = self.prior(contents)
        if prior is None:
            raise DataError("There is no class name to compare with: add a class first.")
        model = self._zero_shot(prior)
        (probabilities,) = model.predict_proba(features[None]).tolist()
        pairs = zip(map(str, model.classes_), probabilities, strict=True)
        return sorted(pairs, key=lambda pair: -pair[1])

    def ready(self) -> FeatureClassifier:
        """The fitted model; raises an error if there is none."""
        if (model := self.model) is None:
            raise DataError("There is nothing to choose between yet: add classes or photos first.")
        return model

    # Inside.

    def _zero_shot(self, prior: TextPrior) -> ZeroShotClassifier:
        model = ZeroShotClassifier(text_prior=prior, device=self.device)
        return model.fit(prior.vectors, [str(name) for name in prior.class_names])

    def _update(
        self, stored: StoredModel, wanted: dict[str, Photo], prior: TextPrior | None
    ) -> None:
        """Remove, relabel and add the photos that differ, by exact updates."""
        model, before = stored.model, stored.model.text_prior

        def stays(photo: Photo) -> bool:
            now = wanted.get(photo.id)
            return now is not None and (prior is not None or now.label == photo.label)

        photos = [photo for photo in stored.photos if stays(photo)]
        if gone := [row for row, photo in enumerate(stored.photos) if not stays(photo)]:
            model.remove(gone, refit=False)
        fresh = None if prior is None or same_text(before, prior) else prior
        if fresh is not None:
            assert before is not None  # a model with text stays one
            # The classes of both, so that photos can be relabelled between them.
            model.set_text(joined_text(before, fresh))
        if moved := [r for r, p in enumerate(photos) if wanted[p.id].label != p.label]:
            labels = [str(wanted[photos[row].id].label) for row in moved]
            model.relabel(moved, labels, refit=False)
        known = {photo.id for photo in photos}
        if new := [photo for key, photo in wanted.items() if key not in known]:
            model.add(self.rows(new), [str(photo.label) for photo in new], refit=False)
        if fresh is not None:
            model.set_text(fresh)
        self.stored = stored._replace(photos=[wanted[photo.id] for photo in photos] + new)
        self._held_out = None
