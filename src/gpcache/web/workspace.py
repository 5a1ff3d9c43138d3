"""An open workspace: its contents and its model, which always change together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpcache.encoders import Encoder
from gpcache.errors import DataError, GPCacheError
from gpcache.images.records import Refused, plural
from gpcache.methods.cache.fitted import Fitted
from gpcache.methods.registry import name_of
from gpcache.model.suggest import suggest
from gpcache.support.names import tidy_name
from gpcache.web.curve import continued, undone
from gpcache.web.learner import Learner
from gpcache.web.stored_model import write_model
from gpcache.web.workspace_contents import Contents, Photo, Proposal, UndoStep
from gpcache.web.workspace_folder import Document, EncodedPhoto, WorkspaceFolder

# Suggestions compare all pairs: of a larger pool an even part is used.
MAX_COMPARED = 2_000
MAX_STEPS = 50
MAX_REFUSED = 100

logger = logging.getLogger(__name__)

Edit = Callable[[Contents], Contents]


class StaleError(GPCacheError):
    """A change is based on a state that is no longer the latest."""

    status = 409


@dataclass
class Workspace:
    """A workspace that this process holds; used by one thread at a time.

    A change is checked, learned and written to the folder before it counts as done. `notices` say
    what was damaged when it was opened. `kept` is the model on disk.
    """

    folder: WorkspaceFolder
    document: Document
    encoder: Encoder
    learner: Learner
    notices: Sequence[str] = ()
    kept: Fitted | None = None

    # Changes. A `revision` that is not the latest is refused.

    def change(self, edit: Edit, what: str, revision: int | None, drop: str = "") -> dict[str, Any]:
        """Edit the contents; returns the new state. Changes of one `drop` are undone together."""
        self._change(edit, what, revision, drop)
        return self.state()

    def undo(self, revision: int | None) -> dict[str, Any]:
        """Take the last change back; returns the new state."""
        old = self.document
        self._check(revision)
        if not old.steps:
            raise DataError("There is nothing to undo.")
        step = old.steps[-1]
        contents, curve = step.undone(old.contents), undone(old.curve, step.revision)
        self._accept(replace(old, contents=contents, steps=old.steps[:-1], curve=curve))
        return self.state()

    def add(
        self,
        read: Sequence[EncodedPhoto | Refused],
        label: str,
        revision: int | None,
        drop: str = "",
    ) -> dict[str, Any]:
        """Add photos to a class, which may be new, and list the refused ones."""
        label = tidy_name(label)
        document, good, refused = self.document, *split_refused(read)
        ids = [f"p{document.next_id + place}" for place in range(len(good))]
        listed = (*document.refused, *refused)[-MAX_REFUSED:]

        def edit(contents: Contents) -> Contents:
            if label not in contents.class_names():
                contents = contents.with_class(label)
            pairs = zip(ids, good, strict=True)
            return contents.with_photos(Photo(k, one.name, label, one.hash) for k, one in pairs)

        if good:
            what = f"adding {plural(len(good), 'photo')} to {label}"
            next_id = document.next_id + len(good)
            self._change(edit, what, revision, drop, refused=listed, next_id=next_id)
        elif refused:
            self._check(revision)
            self._keep(replace(document, refused=listed))
        photos = self.document.contents.photos
        return {
            "added": [{"id": key, "name": photos[key].name} for key in ids],
            "refused": refused,
            "state": self.state(),
        }

    def fill_pool(self, read: Sequence[EncodedPhoto | Refused]) -> dict[str, Any]:
        """Add photos without a label; they do not change the model, so the revision stays."""
        document, good, refused = self.document, *split_refused(read)
        known = {photo.hash for photo in document.contents.photos.values()}
        fresh = list({one.hash: one for one in good if one.hash not in known}.values())
        first = document.next_id
        photos = [Photo(f"p{first + k}", one.name, None, one.hash) for k, one in enumerate(fresh)]
        contents = document.contents.with_photos(photos)
        self._keep(replace(document, contents=contents, next_id=first + len(fresh)))
        return {"pool": len(contents.pool()), "refused": refused}

    def clear_refused(self) -> dict[str, Any]:
        """Forget the refused files; returns the new state."""
        self._keep(replace(self.document, refused=()))
        return self.state()

    def replace_learner(self, refitted: Learner) -> None:
        """Continue with a model whose hyper-parameters were chosen again."""
        refitted.follow(self.document.contents)
        self.learner = refitted
        self.keep_model()

    def keep_model(self) -> None:
        """Save the model, so that answers do not change after a restart.

        If this fails, the last one stays, and a restart updates it.
        """
        stored = self.learner.stored
        if stored is None or stored.model.fitted_ is self.kept:
            return
        try:
            write_model(self.folder.model, stored)
            self.kept = stored.model.fitted_
        except GPCacheError as error:
            logger.warning("The model was not written: %s", error)

    # Questions.

    def state(self) -> dict[str, Any]:
        """The workspace as the page shows it."""
        document, contents, steps = self.document, self.document.contents, self.document.steps
        held_out, model = self.learner.held_out(), self.learner.model
        flags = {} if held_out is None else held_out.flags()
        photos = contents.labelled()
        counts = Counter(photo.label for photo in photos)
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
                {
                    "id": one.id,
                    "name": one.name,
                    "label": one.label,
                    "flags": flags.get(one.id, []),
                    "given": one.label if one.proposal is None else one.proposal.label,
                }
                for one in photos
            ],
            "pool": len(contents.pool()),
            "refused": document.refused,
            "can_undo": bool(steps),
            "undo": steps[-1].what if steps else "",
            "notices": list(self.notices),
            "loo": None if held_out is None else held_out.figures(),
        }

    def loo(self) -> dict[str, Any]:
        """The held-out figures, or why there are none."""
        held_out = self.learner.held_out()
        if held_out is None:
            return {"why": "There is no photo to leave out yet: add photos to two classes."}
        return held_out.report()

    def proposals(self, ids: Sequence[str], label: str) -> dict[str, Proposal]:
        """The photos that would get a label that the model itself proposes."""
        held_out = self.learner.held_out()
        return {} if held_out is None else held_out.proposals(ids, tidy_name(label))

    def suggestions(self, count: int) -> list[dict[str, Any]]:
        """The photos of the pool to label next, each with a guess."""
        pool = self.document.contents.pool()
        if not pool:
            return []
        sampled = np.unique(np.linspace(0, len(pool) - 1, MAX_COMPARED).astype(int))
        pool = [pool[place] for place in sampled]
        rows = self.learner.rows(pool)
        model, stored = self.learner.model, self.learner.stored
        fitted = None if stored is None else stored.model
        chosen = suggest(rows, min(count, len(rows)), model=fitted).rows.tolist()
        guesses: list[tuple[str | None, float | None]] = [(None, None)] * len(chosen)
        if model is not None:
            probabilities = model.predict_proba(rows[chosen])
            names, best = model.classes_[probabilities.argmax(1)], probabilities.max(1)
            guesses = [(str(name), float(p)) for name, p in zip(names, best, strict=True)]
        return [
            {"id": pool[row].id, "name": pool[row].name, "guess": guess, "probability": p}
            for row, (guess, p) in zip(chosen, guesses, strict=True)
        ]

    # Inside.

    def _change(
        self, edit: Edit, what: str, revision: int | None, drop: str, **further: Any
    ) -> None:
        old = self.document
        self._check(revision)
        contents = edit(old.contents)
        if contents == old.contents:
            return
        step, steps = UndoStep.between(old.contents, contents, what, old.revision, drop), old.steps
        if drop and steps and steps[-1].drop == drop:
            step, steps = step.joined(steps[-1], contents), steps[:-1]
        steps = (*steps, step)[-MAX_STEPS:]
        self._accept(replace(old, contents=contents, steps=steps, **further))

    def _check(self, revision: int | None) -> None:
        latest = self.document.revision
        if revision not in (None, latest):
            raise StaleError(
                f"The workspace has changed meanwhile: it is at revision {latest}, this change was "
                f"based on {revision}."
            )

    def _accept(self, document: Document) -> None:
        """Learn a changed document and save it; an error leaves everything as it was."""
        learner = self.learner.twin()
        learner.follow(document.contents)
        revision, before, after = document.revision + 1, self.document.contents, document.contents
        curve = continued(document.curve, revision, before, after, learner.held_out())
        self._keep(replace(document, revision=revision, curve=curve))
        self.learner = learner
        self.keep_model()

    def _keep(self, document: Document) -> None:
        self.folder.write(document)
        self.document = document


def split_refused(
    read: Sequence[EncodedPhoto | Refused],
) -> tuple[list[EncodedPhoto], list[Refused]]:
    """The photos that could be read, and the others."""
    good = [one for one in read if not isinstance(one, Refused)]
    return good, [one for one in read if isinstance(one, Refused)]
