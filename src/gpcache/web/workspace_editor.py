"""A workspace and its model, changed together or not at all; used by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError, GPCacheError
from gpcache.images.records import Refused, plural
from gpcache.methods.registry import name_of
from gpcache.web.learner import Learner
from gpcache.web.open_workspace import OpenWorkspace
from gpcache.web.workspace_contents import Contents, Photo, UndoStep
from gpcache.web.workspace_folder import MAX_POINTS, MAX_REFUSED, MAX_STEPS, Document

# Suggestions compare all pairs: of a larger pool an even part is looked at.
MAX_COMPARED = 2_000

Edit = Callable[[Contents], Contents]


class StaleError(GPCacheError):
    """A change was decided on a state that is no longer the latest; the client gets a 409."""


class ReadPhoto(NamedTuple):
    """An uploaded photo: its name, its content's hash and its features (dim,)."""

    name: str
    hash: str
    features: NDArray[np.float32]


class Editor:
    """Every change goes through here: check, learn, write down, and only then count as done."""

    def __init__(self, opened: OpenWorkspace) -> None:
        self._opened = opened
        self.document: Document = opened.document
        self.learner = opened.learner

    # Changes. A `revision` that is not the latest is refused.

    def change(self, edit: Edit, what: str, revision: int | None) -> dict[str, Any]:
        """Edit the contents; the state afterwards."""
        self._change(edit, what, revision)
        return self.state()

    def undo(self, revision: int | None) -> dict[str, Any]:
        """Take the last change back; the state afterwards."""
        old = self.document
        self._check(revision)
        if not old.steps:
            raise DataError("There is nothing to undo.")
        contents = old.steps[-1].undone(old.contents)
        self._accept(replace(old, contents=contents, steps=old.steps[:-1]))
        return self.state()

    def add(
        self,
        good: Sequence[ReadPhoto],
        refused: Sequence[Refused],
        label: str,
        revision: int | None,
    ) -> dict[str, Any]:
        """Learn photos of a class, which may be new, and list those that were refused."""
        document = self.document
        ids = [f"p{document.next_id + place}" for place in range(len(good))]
        listed = (*document.refused, *refused)[-MAX_REFUSED:]

        def edit(contents: Contents) -> Contents:
            if label not in contents.class_names():
                contents = contents.with_class(label)
            name = contents.entry(label).name
            pairs = zip(ids, good, strict=True)
            return contents.with_photos(Photo(k, one.name, name, one.hash) for k, one in pairs)

        if good:
            what = f"adding {plural(len(good), 'photo')} to {label}"
            self._change(edit, what, revision, refused=listed, next_id=document.next_id + len(good))
        elif refused:
            self._check(revision)
            self._keep(replace(document, refused=listed))
        photos = self.document.contents.photos
        return {
            "added": [{"id": key, "name": photos[key].name} for key in ids],
            "refused": [asdict(one) for one in refused],
            "state": self.state(),
        }

    def fill_pool(self, good: Sequence[ReadPhoto]) -> int:
        """Keep photos without a label: no part of the model, so the revision stays."""
        document = self.document
        known = {photo.hash for photo in document.contents.photos.values()}
        fresh = list({one.hash: one for one in good if one.hash not in known}.values())
        first = document.next_id
        photos = [Photo(f"p{first + k}", one.name, None, one.hash) for k, one in enumerate(fresh)]
        contents = document.contents.with_photos(photos)
        self._keep(replace(document, contents=contents, next_id=first + len(fresh)))
        return len(contents.pool())

    def clear_refused(self) -> dict[str, Any]:
        """Forget the refused files; the state afterwards."""
        self._keep(replace(self.document, refused=()))
        return self.state()

    def replace_learner(self, refitted: Learner) -> None:
        """Go on with a model whose hyper-parameters were chosen again."""
        refitted.follow(self.document.contents)
        self.learner = refitted

    # Questions.

    def state(self) -> dict[str, Any]:
        """The workspace as the page shows it."""
        document = self.document
        contents, steps = document.contents, document.steps
        held_out, model = self.learner.held_out(), self.learner.model
        flags = {} if held_out is None else held_out.flags()
        photos = contents.labelled()
        counts = dict.fromkeys(contents.class_names(), 0)
        for photo in photos:
            counts[str(photo.label)] += 1
        return {
            "revision": document.revision,
            "name": document.name,
            "encoder": document.encoder,
            "method": "none" if model is None else name_of(model),
            "classes": [
                {
                    "name": entry.name,
                    "prompt": "\n".join(entry.sentences(document.templates)),
                    "count": counts[entry.name],
                }
                for entry in contents.classes
            ],
            "photos": [
                {"id": one.id, "name": one.name, "label": one.label, "flags": flags.get(one.id, [])}
                for one in photos
            ],
            "pool": len(contents.pool()),
            "refused": [asdict(one) for one in document.refused],
            "can_undo": bool(steps),
            "undo": steps[-1].what if steps else "",
            "loo": None if held_out is None else held_out.summary(),
        }

    def loo(self) -> dict[str, Any]:
        """The held-out figures, or why there are none."""
        held_out = self.learner.held_out()
        if held_out is None:
            return {"why": "There is no photo to leave out yet: add photos to two classes."}
        return held_out.report()

    def suggestions(self, count: int) -> list[dict[str, Any]]:
        """The photos of the pool to label next, each with a guess."""
        pool = self.document.contents.pool()
        if not pool:
            return []
        some = np.unique(np.linspace(0, len(pool) - 1, MAX_COMPARED).astype(int))
        pool = [pool[place] for place in some]
        rows = np.stack([self._opened.features(photo.hash) for photo in pool])
        chosen = self.learner.suggest(rows, count)
        guesses: list[tuple[str | None, float | None]] = [(None, None)] * len(chosen)
        if self.learner.model is not None:
            found = self.learner.model.predict_proba(rows[chosen])
            names = self.learner.model.classes_[found.argmax(1)]
            guesses = [(str(name), float(p)) for name, p in zip(names, found.max(1), strict=True)]
        return [
            {"id": pool[row].id, "name": pool[row].name, "guess": guess, "probability": p}
            for row, (guess, p) in zip(chosen, guesses, strict=True)
        ]

    # Inside.

    def _change(self, edit: Edit, what: str, revision: int | None, **further: Any) -> None:
        old = self.document
        self._check(revision)
        contents = edit(old.contents)
        if contents == old.contents:
            return
        steps = (*old.steps, UndoStep.between(old.contents, contents, what))[-MAX_STEPS:]
        self._accept(replace(old, contents=contents, steps=steps, **further))

    def _check(self, revision: int | None) -> None:
        if revision is not None and revision != self.document.revision:
            raise StaleError(
                f"The workspace has changed meanwhile: it is at revision "
                f"{self.document.revision}, this was decided on {revision}."
            )

    def _accept(self, document: Document) -> None:
        """Learn a changed document and write it down; what fails leaves everything as it was."""
        learner = self.learner.twin()
        learner.follow(document.contents)
        held_out = learner.held_out()
        summary = None if held_out is None else held_out.summary()
        curve = document.curve
        if summary is not None:
            point = (len(learner.photos), summary["accuracy"])
            if curve[-1:] != (point,):
                curve = (*curve, point)[-MAX_POINTS:]
        self._keep(replace(document, revision=document.revision + 1, curve=curve))
        self.learner = learner

    def _keep(self, document: Document) -> None:
        self._opened.folder.write(document)
        self.document = document
