"""Training images: from a source to features with labels, of all images or of a few per class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpcache.encoders import Encoder
from gpcache.encoders.vectors import Features
from gpcache.errors import DataError, ImageRefusedError
from gpcache.features.extract import gather
from gpcache.features.splits import draw_shots
from gpcache.features.store import FeatureStore
from gpcache.features.stored_rows import StoredRows
from gpcache.images.augment import Views
from gpcache.images.decode import read_file
from gpcache.images.records import Record, Refused, Source
from gpcache.images.workers import small_picture
from gpcache.support.files import sha256
from gpcache.support.names import tidy_name

if TYPE_CHECKING:
    from gpcache.methods import Explanation
    from gpcache.methods.cache.estimator import CacheClassifier

UNLABELLED = "it has no label"


@dataclass(frozen=True)
class Example:
    """A training image: its name in the source, its class, its burst, the hash of its content."""

    name: str
    label: str
    hash: str
    group: str | None = None


@dataclass
class TrainingFacts:
    """Where the training images came from, how they were drawn, and what was left out."""

    source: str = ""
    shots: int | None = None
    seed: int | None = None
    refused: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


class Learnable(NamedTuple):
    """Features (n, dim) and examples, and how many images were copies of others."""

    features: Features
    examples: list[Example]
    copies: int


def all_examples(
    source: Source,
    encoder: Encoder,
    views: Views | None,
    training: TrainingFacts,
    known: Iterable[Example] = (),
) -> Learnable:
    """Every labelled image; `training` notes the others.

    An image whose class has the same one already, here or among the `known`, is left out: its copy
    would answer for it when it is held out, and held-out figures would be too good.
    """
    gathered = gather(source, encoder, views=views, description="learn")
    training.refused += gathered.refused
    training.notices += gathered.notices
    rows, examples = [], []
    for row, (record, image_hash) in enumerate(zip(gathered.records, gathered.hashes, strict=True)):
        if record.label is None:
            training.refused.append(Refused(record.name, UNLABELLED))
        else:
            rows.append(row)
            examples.append(Example(record.name, record.label, image_hash, record.group))
    copies = find_duplicates(examples, known)
    if copies:
        training.notices.append(copies_notice(examples, copies))
    kept = [place for place in range(len(examples)) if place not in copies]
    chosen = [rows[place] for place in kept]
    return Learnable(gathered.features[chosen], [examples[place] for place in kept], len(copies))


def stored_examples(
    store: FeatureStore,
    training: TrainingFacts,
    *,
    shots: int | None,
    seed: int,
    known: Iterable[Example] = (),
) -> tuple[StoredRows, list[Example]]:
    """The same of a feature store, whose vectors are not read yet."""
    items = store.items()
    training.refused += [Refused(one.path, UNLABELLED) for one in items if one.label is None]
    labelled = [one for one in items if one.label is not None]
    if shots is not None:
        labels, names = [one.label for one in labelled], [one.path for one in labelled]
        draw = draw_shots(labels, names, shots, seed)
        labelled = [labelled[row] for row in draw.indices]
        for label, count in draw.short.items():
            training.notices.append(f"The class {label!r} has {count} of {shots} images.")
    examples = [Example(one.path, str(one.label), one.hash, one.group) for one in labelled]
    copies = find_duplicates(examples, known)
    if copies:
        training.notices.append(copies_notice(examples, copies))
    rows = StoredRows(store, [one for row, one in enumerate(labelled) if row not in copies])
    return rows, [Example(one.path, str(one.label), one.hash, one.group) for one in rows.items]


class StoredShots(NamedTuple):
    """Training images in a feature store, by which a model that keeps none explains its answers."""

    rows: StoredRows
    examples: list[Example]
    labels: NDArray[np.str_]
    note: str = ""

    def explain(self, model: CacheClassifier, features: ArrayLike, top: int) -> Explanation:
        """The images behind the answers for these features (m, d)."""
        return model.explain(features, top=top, shots=(self.rows, self.labels))

    @classmethod
    def of(cls, store: FeatureStore, classes: set[str], learned: int) -> StoredShots:
        """Those of these classes, where a model has learned from `learned` images."""
        name = str(store.folder)
        rows, examples = stored_examples(store, TrainingFacts(name), shots=None, seed=0)
        known = [row for row, one in enumerate(examples) if one.label in classes]
        if not known:
            raise DataError(f"The store {name!r} has no image of a class of the model.")
        note = ""
        if len(known) != learned:
            note = (
                f"The model learned from {learned:,} images, and {name!r} has {len(known):,} of "
                "its classes: reasons may name images that it did not learn from, or miss some."
            )
        if len(known) < len(examples):
            rows = StoredRows(store, [rows.items[row] for row in known])
            examples = [examples[row] for row in known]
        return cls(rows, examples, np.array([one.label for one in examples]), note)


def new_examples(
    source: Source | FeatureStore,
    encoder: Encoder,
    views: Views | None,
    training: TrainingFacts,
    known: Sequence[Example],
) -> Learnable:
    """Examples to add to the `known` ones; an error if there are neither new images nor copies."""
    refused = len(training.refused)
    if isinstance(source, FeatureStore):
        rows, examples = stored_examples(source, training, shots=None, seed=0, known=known)
        learnable = Learnable(rows[:], examples, len(source.items()) - len(examples))
    else:
        learnable = all_examples(source, encoder, views, training, known)
    learnable = _without_contradictions(learnable, known, training)
    if not learnable.examples and not learnable.copies:
        first = training.refused[refused:]
        why = f" {first[0].name!r}: {first[0].reason}." if first else " There is none."
        raise DataError(f"No labelled image can be added:{why}")
    return learnable


def _without_contradictions(
    learned: Learnable, known: Iterable[Example], training: TrainingFacts
) -> Learnable:
    """The examples without images that another class has; `training` notes those."""
    known_as = {one.hash: one for one in known}
    kept = []
    for row, example in enumerate(learned.examples):
        if (known_example := known_as.get(example.hash)) is None:
            kept.append(row)
            continue
        reason = (
            f"it is in the model as {known_example.name!r} of the class {known_example.label!r}; "
            "gpcache relabel changes that"
        )
        training.refused.append(Refused(example.name, reason))
    return Learnable(
        learned.features[kept], [learned.examples[row] for row in kept], learned.copies
    )


def find_duplicates(examples: Sequence[Example], known: Iterable[Example] = ()) -> dict[int, str]:
    """Positions of examples that repeat an image of their class, with the name of that image."""
    first = {(example.label, example.hash): example.name for example in known}
    copies = {}
    for place, example in enumerate(examples):
        if (key := (example.label, example.hash)) in first:
            copies[place] = first[key]
        first.setdefault(key, example.name)
    return copies


def copies_notice(examples: Sequence[Example], copies: Mapping[int, str]) -> str:
    """A sentence about images that count once."""
    place, original = next(iter(copies.items()))
    name = examples[place].name
    which = f"{name!r}" if name == original else f"{name!r}, which is {original!r}"
    if len(copies) == 1:
        return f"One image is in its class already and counts once: {which}."
    return f"{len(copies):,} images are in their class already and count once, such as {which}."


def drawn_examples(
    source: Source,
    encoder: Encoder,
    views: Views | None,
    training: TrainingFacts,
    *,
    shots: int,
    seed: int,
) -> tuple[Features, list[Example]]:
    """The same for `shots` images a class; refused images are replaced by another draw."""
    records = {record.name: record for record in source.records}
    unlabelled = [record.name for record in records.values() if record.label is None]
    training.refused += [Refused(name, UNLABELLED) for name in unlabelled]
    accepted: dict[str, tuple[Features, Example]] = {}
    while True:
        labels = [record.label for record in records.values()]
        draw = draw_shots(labels, list(records), shots, seed)
        names = list(records)
        chosen = [names[row] for row in draw.indices]
        fresh = [records[name] for name in chosen if name not in accepted]
        if not fresh:
            break
        part = Source(source.name, fresh, len(fresh))
        known = [example for _, example in accepted.values()]
        learned = all_examples(part, encoder, views, training, known)
        pairs = zip(learned.features, learned.examples, strict=True)
        accepted |= {one.name: (row, one) for row, one in pairs}
        for record in fresh:
            if record.name not in accepted:
                del records[record.name]
        if all(record.label is None for record in records.values()):
            chosen = []  # every image was refused
            break
    training.refused += source.refused
    training.notices += source.notices
    for label, count in draw.short.items():
        training.notices.append(f"The class {label!r} has {count} of {shots} images.")
    rows = [accepted[name][0] for name in chosen]
    features = np.stack(rows) if rows else np.zeros((0, encoder.dim), dtype=np.float32)
    return features, [accepted[name][1] for name in chosen]


def class_names(
    source: Source, examples: Iterable[Example], training: TrainingFacts, further: Iterable[str]
) -> list[str]:
    """The classes of examples and source, and `further` ones, in order; none is an error."""
    labels = {example.label for example in examples}
    names = sorted(labels | {*source.classes, *map(tidy_name, further)})
    if not labels and (refused := training.refused):
        first = next((one for one in refused if one.reason != UNLABELLED), refused[0])
        if names or first.reason != UNLABELLED:
            raise DataError(
                f"All images of {source.name!r} were refused, such as {first.name!r}: "
                f"{first.reason}."
            )
    if not names:
        raise DataError(
            f"There is no labelled image in {source.name!r}: give a folder for each class, a list "
            "with the column label, or fit(images, labels)."
        )
    return names


def find_example(given: str, examples: Sequence[Example]) -> str:
    """The name in the model of a training image, given by that name, its file's name or its path.

    A file on this disk is found by its content. If several images fit, the error lists them; if
    none fits, it suggests the nearest names.
    """
    names = [example.name for example in examples]
    if given in names:
        return given
    try:
        content_hash = sha256(read_file(Path(given)))
    except ImageRefusedError:
        content_hash = ""
    wanted = _parts(given)
    fitting = [one.name for one in examples if one.hash == content_hash] or [
        name for name in names if _end_alike(_parts(name), wanted)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise DataError(
            f"{given!r} matches {len(fitting)} training images: give one of {_listed(fitting)}."
        )
    near = get_close_matches(given, names, 3, 0.4)
    near = near or get_close_matches(wanted[-1] if wanted else "", names, 3, 0.4)
    hint = f"did you mean {_listed(near)}?" if near else f"it has {_listed(names)}."
    raise DataError(f"The model has no training image {given!r}: {hint}")


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]


def _end_alike(one: list[str], other: list[str]) -> bool:
    """Whether the shorter of two paths is the end of the longer one."""
    length = min(len(one), len(other))
    return length > 0 and one[-length:] == other[-length:]


def picture_of(example: Example, source: str) -> bytes | None:
    """A small picture of a training image from its file; None if the file has changed."""
    content = original_of(example.name, example.hash, source)
    try:
        return None if content is None else small_picture(content)
    except ImageRefusedError:
        return None


def original_of(name: str, content_hash: str, source: str) -> bytes | None:
    """The file of a training image; None if it is missing or has changed."""
    place = Path(source)
    # A list of images names them by its own folder.
    root = place if place.is_dir() else place.parent
    try:
        content = read_file(root / name)
    except ImageRefusedError:
        return None
    return content if sha256(content) == content_hash else None


def require_label(record: Record) -> str:
    """The label of a record; one without is an error."""
    if record.label is None:
        raise DataError(
            f"{record.name!r} has no label to compare with: give class folders, a list with the "
            "column label, or one label for each image."
        )
    return record.label


def class_number(record: Record, number: Mapping[str, int]) -> int:
    """The number of a record's class."""
    label = require_label(record)
    if label not in number:
        raise DataError(
            f"{record.name!r} has the label {label!r}, which is not a class of the model: "
            f"it has {_listed(list(number))}."
        )
    return number[label]


def require_class(label: str, classes: Sequence[str]) -> str:
    """The class of a label; an unknown label is refused."""
    for name in classes:
        if tidy_name(name) == tidy_name(label):
            return name
    raise DataError(f"The model has no class {label!r}: it has {_listed(classes)}.")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
