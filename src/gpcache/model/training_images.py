"""Training images: from a source to features with labels, of all images or of a few per class."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from gpcache.encoders.vectors import Features
from gpcache.errors import DataError, ImageRefusedError
from gpcache.features.extract import gather
from gpcache.features.manifest import NAME as STORE
from gpcache.features.splits import Draw, draw_shots
from gpcache.features.store import FeatureStore, Item
from gpcache.features.stored_rows import StoredRows
from gpcache.images.augment import Views
from gpcache.images.decode import read_file
from gpcache.images.records import Record, Refused, Source, listed
from gpcache.images.sources import any_source, open_source
from gpcache.images.workers import small_picture
from gpcache.support.checks import shown
from gpcache.support.files import sha256
from gpcache.support.names import tidy_name

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

UNLABELLED = "it has no label"

logger = logging.getLogger(__name__)

Image = TypeVar("Image", Record, Item)


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


class TrainingSet(NamedTuple):
    """Features (n, dim) and examples, and how many images were copies of others."""

    features: Any  # an array or StoredRows
    examples: list[Example]
    copies: int = 0


def training_source(images: Any, labels: Any = None) -> Source | FeatureStore:
    """The feature store of a path or object, or the source of any other images."""
    if isinstance(images, str | Path) and labels is None and (Path(images) / STORE).is_file():
        return FeatureStore.open(images)
    return images if isinstance(images, FeatureStore) else any_source(images, labels)


def open_training(path: Path, *, follow: bool = False) -> Source | FeatureStore:
    """The feature store at a path, or its images; `follow` allows links that leave a folder."""
    place = path.resolve()
    if (place / STORE).is_file():
        return FeatureStore.open(place)
    source = open_source(place, follow=follow)
    logger.info("%r: %s images, %d classes", source.name, source.total, len(source.classes))
    return source


@dataclass(kw_only=True)
class StartedSource(Source):
    """Images that `model.early` is reading already: `reading` of the encoder with `fingerprint`.

    `training` holds what is left out, and is complete when the reading ends.
    """

    fingerprint: str
    training: TrainingFacts
    reading: Future[TrainingSet]


def source_name(source: Source | FeatureStore) -> str:
    """The name of a source in notices and errors: the folder of a feature store."""
    return str(source.folder) if isinstance(source, FeatureStore) else source.name


@dataclass(frozen=True)
class ExampleReader:
    """Reads labelled images; `training` notes those that are left out.

    An image whose class has the same one already, here or among the `known`, is left out: its copy
    would answer for it when it is held out, and held-out figures would be too good.
    """

    encoder: Encoder
    views: Views | None
    training: TrainingFacts
    known: Sequence[Example] = ()

    def read(
        self, source: Source | FeatureStore, shots: int | None = None, seed: int = 0
    ) -> TrainingSet:
        """All labelled images, or `shots` of each class; vectors of a store are not read yet."""
        if isinstance(source, FeatureStore):
            return self._stored(source, shots, seed)
        if isinstance(source, StartedSource) and self._asks_for(source, shots, seed):
            training_set = source.reading.result()
            self.training.refused += source.training.refused
            self.training.notices += source.training.notices
            return training_set
        return self._all(source) if shots is None else self._drawn(source, shots, seed)

    def new(self, source: Source | FeatureStore) -> TrainingSet:
        """Images to add to the `known` ones; an error if there are neither new ones nor copies.

        An image that another class has is refused.
        """
        refused = len(self.training.refused)
        features, examples, copies = self.read(source)
        known_as, kept = {one.hash: one for one in self.known}, []
        for row, example in enumerate(examples):
            if (known := known_as.get(example.hash)) is None:
                kept.append(row)
            else:
                self._refuse(
                    example.name,
                    f"it is in the model as {known.name!r} of the class {shown(known.label)}; "
                    "gpcache relabel changes that",
                )
        if not kept and not copies:
            first = self.training.refused[refused:]
            why = f" {first[0].name!r}: {first[0].reason}." if first else " There is none."
            if first and first[0].reason == UNLABELLED:
                why += " Give a folder for each class, or a list with the column label."
            raise DataError(f"No labelled image can be added:{why}")
        if isinstance(features, StoredRows):  # not read yet
            rows: Any = StoredRows(features.store, [features.items[row] for row in kept])
        else:
            rows = features[kept]
        return TrainingSet(rows, [examples[row] for row in kept], copies)

    def _all(self, source: Source, accepted: Sequence[Example] = ()) -> TrainingSet:
        labelled = replace(source, records=self._labelled(source.records))
        gathered = gather(labelled, self.encoder, views=self.views, description="learn")
        self.training.refused += gathered.refused
        self.training.notices += gathered.notices
        examples = [
            Example(record.name, str(record.label), image_hash, record.group)
            for record, image_hash in zip(gathered.records, gathered.hashes, strict=True)
        ]
        kept = rows_without_copies(examples, self.training, [*self.known, *accepted])
        kept_examples = [examples[row] for row in kept]
        return TrainingSet(gathered.features[kept], kept_examples, len(examples) - len(kept))

    def _asks_for(self, source: StartedSource, shots: int | None, seed: int) -> bool:
        """Whether a source is being read in the way that is asked for now."""
        drawn = (shots, None if shots is None else seed)
        same = self.encoder.fingerprint == source.fingerprint and self.views is None
        return same and drawn == (source.training.shots, source.training.seed)

    def _stored(self, store: FeatureStore, shots: int | None, seed: int) -> TrainingSet:
        store.require_encoder(self.encoder)
        store.require_views(self.views)
        items = list(self._labelled(store.items()))
        if shots is not None:
            labels, names = [one.label for one in items], [one.path for one in items]
            draw = draw_shots(labels, names, shots, seed)
            self._note_short(draw)
            items = [items[row] for row in draw.indices]
        examples = [stored_example(one) for one in items]
        kept = rows_without_copies(examples, self.training, self.known)
        rows = StoredRows(store, [items[row] for row in kept])
        examples = [stored_example(one) for one in rows.items]
        return TrainingSet(rows, examples, len(items) - len(kept))

    def _drawn(self, source: Source, shots: int, seed: int) -> TrainingSet:
        """Refused images are replaced by another draw."""
        records = {record.name: record for record in self._labelled(source.records)}
        accepted: dict[str, tuple[Features, Example]] = {}
        while True:
            names = list(records)
            draw = draw_shots([one.label for one in records.values()], names, shots, seed)
            chosen = [names[row] for row in draw.indices]
            fresh = [records[name] for name in chosen if name not in accepted]
            if not fresh:
                break
            part = Source(source.name, fresh, len(fresh))
            learned = self._all(part, [example for _, example in accepted.values()])
            for row, example in enumerate(learned.examples):
                accepted[example.name] = learned.features[row], example
            for record in fresh:
                if record.name not in accepted:
                    del records[record.name]
            if not records:
                chosen = []  # every image was refused
                break
        self.training.refused += source.refused
        self.training.notices += source.notices
        self._note_short(draw)
        rows = [accepted[name][0] for name in chosen]
        features = np.stack(rows) if rows else np.zeros((0, self.encoder.dim), dtype=np.float32)
        return TrainingSet(features, [accepted[name][1] for name in chosen])

    def _labelled(self, images: Iterable[Image]) -> Iterator[Image]:
        """The images that have a label; the others are refused."""
        for image in images:
            if image.label is not None:
                yield image
            else:
                self._refuse(image.path if isinstance(image, Item) else image.name, UNLABELLED)

    def _refuse(self, name: str, reason: str) -> None:
        self.training.refused.append(Refused(name, reason))

    def _note_short(self, draw: Draw) -> None:
        for label, count in draw.short.items():
            self.training.notices.append(
                f"The class {shown(label)} has {count} of {draw.shots} images."
            )


def stored_example(item: Item) -> Example:
    """An image of a feature store."""
    return Example(item.path, str(item.label), item.hash, item.group)


def rows_without_copies(
    examples: Sequence[Example], training: TrainingFacts, known: Iterable[Example] = ()
) -> list[int]:
    """Rows of the examples that repeat no image of their class; `training` notes the others."""
    first = {(example.label, example.hash): example.name for example in known}
    kept, copies = [], []
    for row, example in enumerate(examples):
        if (key := (example.label, example.hash)) in first:
            copies.append((example.name, first[key]))
        else:
            first[key] = example.name
            kept.append(row)
    if copies:
        name, original = copies[0]
        which = f"{name!r}" if name == original else f"{name!r}, which is {original!r}"
        notice = f"One image is in its class already and counts once: {which}."
        if len(copies) > 1:
            many = f"{len(copies):,} images are in their class already and count once"
            notice = f"{many}, such as {which}."
        training.notices.append(notice)
    return kept


def class_names(
    examples: Iterable[Example], training: TrainingFacts, further: Iterable[str]
) -> list[str]:
    """The classes of examples, and `further` ones, in order; none is an error."""
    labels = {example.label for example in examples}
    names = sorted(labels | set(further))
    if not labels and (refused := training.refused):
        first = next((one for one in refused if one.reason != UNLABELLED), refused[0])
        if names or first.reason != UNLABELLED:
            raise DataError(
                f"All images of {training.source!r} were refused, such as {first.name!r}: "
                f"{first.reason}."
            )
    if not names:
        raise DataError(
            f"There is no labelled image in {training.source!r}: give a folder for each class, a "
            "list with the column label, or fit(images, labels)."
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
            f"{given!r} matches {len(fitting)} training images: give one of {listed(fitting, 5)}."
        )
    near = get_close_matches(given, names, 3, 0.4)
    near = near or get_close_matches(wanted[-1] if wanted else "", names, 3, 0.4)
    hint = f"did you mean {listed(near, 5)}?" if near else f"it has {listed(names, 5)}."
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
            f"{record.name!r} has the label {shown(label)}, which is not a class of the model: "
            f"it has {listed(list(number), 5)}."
        )
    return number[label]


def require_class(label: str, classes: Sequence[str]) -> str:
    """The class of a label; an unknown label is refused."""
    for name in classes:
        if tidy_name(name) == tidy_name(label):
            return name
    raise DataError(f"The model has no class {shown(label)}: it has {listed(list(classes), 5)}.")
