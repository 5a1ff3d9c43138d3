"""The contents of a workspace as values: classes, photos, their edits, and undo steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from gpcache.encoders.prompts import DEFAULT_TEMPLATES, Prompts, filled_template
from gpcache.errors import DataError
from gpcache.images.records import plural, refuse_other_case
from gpcache.model.training_images import Example
from gpcache.support.names import class_name, printable, tidy_name

MAX_NAME = 200
MAX_PATH = 1_000
MAX_PROMPT = 2_000


@dataclass(frozen=True)
class ClassEntry:
    """A class and its sentences, one per line; None means the default prompt."""

    name: str
    prompt: str | None = None

    def sentences(self, templates: Sequence[str] | None) -> tuple[str, ...]:
        """The sentences for the text encoder; {} stands for the name of the class."""
        lines = self.prompt.splitlines() if self.prompt is not None else templates
        lines = lines or DEFAULT_TEMPLATES
        return tuple(filled_template(line.strip(), self.name) for line in lines if line.strip())


@dataclass(frozen=True)
class Proposal:
    """The label of a photo before the model proposed another, and the accuracy at that time."""

    label: str
    accuracy: float


@dataclass(frozen=True)
class Photo:
    """A photo: its name, its class (None in the pool), the hash of its content.

    `kept` says that the user has confirmed its label, even if it looks suspicious. `proposal` says
    that the model proposed the label, until the user confirms it.
    """

    id: str
    name: str
    label: str | None
    hash: str
    group: str | None = None
    kept: bool = False
    proposal: Proposal | None = None

    @property
    def number(self) -> int:
        """Its number in the order of arrival."""
        return int(self.id.removeprefix("p"))

    def renamed(self, old: str, new: str) -> Photo:
        """The photo after a class was renamed."""
        proposal = self.proposal
        if proposal is not None and proposal.label == old:
            proposal = replace(proposal, label=new)
        return replace(self, label=new if self.label == old else self.label, proposal=proposal)

    @property
    def example(self) -> Example:
        """The photo as models list it."""
        return Example(self.name, str(self.label), self.hash, self.group)

    @property
    def lesson(self) -> tuple[str | None, ...]:
        """The parts of the photo that a model learns from."""
        return self.id, self.label, self.hash, self.group


@dataclass(frozen=True)
class Contents:
    """Classes in the order of their creation, and photos by id; edits return a new value."""

    classes: tuple[ClassEntry, ...] = ()
    photos: Mapping[str, Photo] = field(default_factory=dict)

    def labelled(self) -> list[Photo]:
        """The photos that the model learns from."""
        return [photo for photo in self.photos.values() if photo.label is not None]

    def pool(self) -> list[Photo]:
        """The photos that have no label yet."""
        return [photo for photo in self.photos.values() if photo.label is None]

    def class_names(self) -> list[str]:
        return [entry.name for entry in self.classes]

    def prompts(self, templates: Sequence[str] | None) -> Prompts | None:
        """The sentences of all classes; None for a workspace that does without text."""
        if templates is None or not self.classes:
            return None
        sentences = tuple(entry.sentences(templates) for entry in self.classes)
        return Prompts(tuple(self.class_names()), sentences)

    def entry(self, name: str) -> ClassEntry:
        """The class of this name."""
        wanted = tidy_name(name)
        for entry in self.classes:
            if entry.name == wanted:
                return entry
        raise DataError(f"There is no class {name[:MAX_NAME]!r} here: add it first.")

    # Edits.

    def with_class(self, name: str, prompt: str | None = None) -> Contents:
        """One more class."""
        entry = ClassEntry(class_name(name), _checked_prompt(prompt))
        _refuse_twin(entry.name, self.class_names())
        return replace(self, classes=(*self.classes, entry))

    def with_changed_class(
        self, name: str, new_name: str | None = None, prompt: str | None = None
    ) -> Contents:
        """A class by another name, or with another prompt; an empty one is that of its name."""
        old = self.entry(name)
        fresh = old.name if new_name is None else class_name(new_name)
        _refuse_twin(fresh, [other for other in self.class_names() if other != old.name])
        entry = ClassEntry(fresh, old.prompt if prompt is None else _checked_prompt(prompt))
        classes = tuple(entry if one is old else one for one in self.classes)
        photos = {key: one.renamed(old.name, fresh) for key, one in self.photos.items()}
        return Contents(classes, photos)

    def without_class(self, name: str) -> Contents:
        """A class less, and its photos with it."""
        gone = self.entry(name)
        photos = {key: one for key, one in self.photos.items() if one.label != gone.name}
        return Contents(tuple(one for one in self.classes if one is not gone), photos)

    def with_photos(self, photos: Iterable[Photo]) -> Contents:
        """Add photos; a name that exists already gets a number, because models use names."""
        all_photos = dict(self.photos)
        taken = {photo.name for photo in all_photos.values()}
        for photo in photos:
            name = _free_name(photo.name, taken)
            taken.add(name)
            all_photos[photo.id] = replace(photo, name=name)
        return replace(self, photos=all_photos)

    def with_labels(
        self, ids: Sequence[str], label: str, proposals: Mapping[str, Proposal] | None = None
    ) -> Contents:
        """Give photos another class; their label is then not confirmed.

        `proposals` are the photos whose label the model proposed.
        """
        name = self.entry(label).name

        def moved(photo: Photo) -> Photo:
            proposal = None if proposals is None else proposals.get(photo.id)
            if proposal is not None and proposal.label == name:
                proposal = None  # back where it was
            return replace(photo, label=name, kept=False, proposal=proposal)

        return self._with_changed(ids, lambda photo: photo if photo.label == name else moved(photo))

    def with_kept(self, ids: Sequence[str], kept: bool) -> Contents:
        """Set whether the user has confirmed the labels of these photos."""
        return self._with_changed(
            ids, lambda one: replace(one, kept=kept, proposal=None if kept else one.proposal)
        )

    def without_photos(self, ids: Sequence[str]) -> Contents:
        """Remove photos."""
        self._require(ids)
        gone = set(ids)
        return replace(self, photos={k: one for k, one in self.photos.items() if k not in gone})

    def _with_changed(self, ids: Sequence[str], change: Callable[[Photo], Photo]) -> Contents:
        self._require(ids)
        changed = {key: change(self.photos[key]) for key in ids}
        return replace(self, photos={**self.photos, **changed})

    def _require(self, ids: Sequence[str]) -> None:
        for key in ids:
            if key not in self.photos:
                raise DataError(f"There is no photo {key[:MAX_NAME]!r}: it may have been removed.")


@dataclass(frozen=True)
class UndoStep:
    """An undo step: the classes and photos that were different before a change.

    `revision` is the one before it. Changes of one `drop` of files are one step.
    """

    what: str
    classes: tuple[ClassEntry, ...]
    photos: Mapping[str, Photo | None]
    revision: int = 0
    drop: str = ""

    @classmethod
    def between(
        cls, before: Contents, after: Contents, what: str, revision: int, drop: str = ""
    ) -> UndoStep:
        keys = before.photos.keys() | after.photos.keys()
        old, new = before.photos.get, after.photos.get
        photos = {k: old(k) for k in sorted(keys) if old(k) != new(k)}
        return cls(what, before.classes, photos, revision, drop)

    def joined(self, earlier: UndoStep, after: Contents) -> UndoStep:
        """One step that undoes this change, which led to `after`, and the one before it."""
        photos = {**self.photos, **earlier.photos}
        labels = {after.photos[key].label for key in photos if key in after.photos}
        classes = "1 class" if len(labels) == 1 else f"{len(labels)} classes"
        what = f"adding {plural(len(photos), 'photo')} to {classes}" if photos else self.what
        return UndoStep(what, earlier.classes, photos, earlier.revision, self.drop)

    def undone(self, contents: Contents) -> Contents:
        """The contents before the change."""
        photos = {**contents.photos, **self.photos}
        return Contents(self.classes, by_id(one for one in photos.values() if one is not None))


def by_id(photos: Iterable[Photo]) -> dict[str, Photo]:
    """Photos by id, in the order of arrival."""
    return {photo.id: photo for photo in sorted(photos, key=lambda one: one.number)}


def file_path(name: str) -> str:
    """The path of an uploaded file within its folder, as text on one line.

    It distinguishes files of equal names, and is never an absolute path or one with "..".
    """
    text = printable(name.replace("\\", "/"))
    parts = [part.strip() for part in text[-MAX_PATH:].split("/")]
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "photo"


def file_name(name: str) -> str:
    """The name of an uploaded file, without its folders."""
    return file_path(name).rpartition("/")[2][-MAX_NAME:] or "photo"


def _refuse_twin(name: str, existing: Sequence[str]) -> None:
    if name in existing:
        raise DataError(f"There is a class {name!r} already.")
    for other in existing:
        refuse_other_case(name, other)


def _checked_prompt(prompt: str | None) -> str | None:
    if prompt is None or not prompt.strip():
        return None
    if len(prompt) > MAX_PROMPT:
        raise DataError(f"A prompt may have {MAX_PROMPT} characters, this has {len(prompt)}.")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise DataError("A prompt must be valid text: it contains an unpaired surrogate.") from None
    return prompt


def _free_name(name: str, taken: set[str]) -> str:
    stem, dot, suffix = name.rpartition(".") if "." in name else (name, "", "")
    numbered = (f"{stem} ({number}){dot}{suffix}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in taken)
