"""FeatureStore: unit vectors on disk, found by what an image contains, safe against crashes.

    store.json               the manifest: encoder, views, and every other file with its SHA-256
    shards/….safetensors     vectors (n, dim) or (n, views, dim), and the images' hashes (n, 32)
    items-….jsonl            the images that were extracted: source, path, label, split, group, hash
    refused-….json           the images that were not, with the reason
    texts/….safetensors      class vectors, by the prompts they were made of

Every file but the manifest is named by its content and never changes. A change writes new files
first and then the manifest, in one rename. A process that is killed in between leaves files that
are not in the manifest; the next change removes them. Writers take turns by a lock; readers need
none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gpcache.encoders import Encoder
from gpcache.errors import DataError, StoreError
from gpcache.features.manifest import NAME, Manifest, StoredFile, read_manifest
from gpcache.images.augment import Views
from gpcache.images.records import Refused
from gpcache.support.files import make_folder, sha256, sha256_of_file, write_atomic
from gpcache.support.locks import locked_file

LOCK = "lock"
HASH_BYTES = 32
SHARD, ITEMS = "shards/{}.safetensors", "items-{}.jsonl"
REFUSED, TEXT = "refused-{}.json", "texts/{}.safetensors"
KINDS = (SHARD, ITEMS, REFUSED, TEXT)


@dataclass(frozen=True)
class Item:
    """One extracted image: where it came from, what is known of it, and the hash of its content."""

    source: str
    path: str
    hash: str
    label: str | None = None
    split: str | None = None
    group: str | None = None


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Images of a store and their vectors: `features` (n, dim), or (n, views, dim) kept apart."""

    features: NDArray[np.float32]
    items: list[Item]

    @property
    def labels(self) -> NDArray[Any]:
        """Class names (n,); an unlabelled image is an error."""
        missing = [item.path for item in self.items if item.label is None]
        if missing:
            raise DataError(f"{len(missing)} images have no label, the first is {missing[0]!r}.")
        return np.array([item.label for item in self.items])

    @property
    def paths(self) -> list[str]:
        """Paths (n,) as the source named them."""
        return [item.path for item in self.items]


class FeatureStore:
    """The features of one encoder, in one kind of views; open or create it by the class methods."""

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        self._verify = verify
        self._checked: set[str] = set()
        self._places: dict[str, tuple[StoredFile, int]] = {}  # hash → shard and row
        self._indexed: set[str] = set()
        self.manifest = read_manifest(folder)

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> FeatureStore:
        """Open a store to read; `verify=False` skips the checksums of the files that are read."""
        return cls(Path(folder), verify=verify)

    @classmethod
    def create(
        cls, folder: str | Path, encoder: Encoder, views: Views | None = None
    ) -> FeatureStore:
        """Open the store in `folder` to add to it, or begin it; another encoder's is an error."""
        place = make_folder(folder)
        # Another process may be creating this store at the same moment: its files are no others.
        own = (LOCK, "shards", NAME, f".{NAME}.")
        foreign = [path.name for path in place.iterdir() if not path.name.startswith(own)]
        if foreign and not (place / NAME).exists():
            raise StoreError(
                f"{str(folder)!r} is no feature store and not empty (it has {min(foreign)!r}): "
                "give a folder of its own."
            )
        make_folder(place / "shards")
        made_by = encoder.name, encoder.fingerprint, encoder.logit_scale, encoder.dim
        with _locked(place):
            if not (place / NAME).exists():
                Manifest(*made_by, _described(views)).write(place)
        store = cls(place)
        store.require_encoder(encoder)
        store.require_views(views)
        return store

    def require_encoder(self, encoder: Encoder) -> None:
        """Refuse an encoder other than the one the store was made by."""
        if self.manifest.fingerprint != encoder.fingerprint:
            raise StoreError(
                f"The store {str(self.folder)!r} was made by the encoder {self.manifest.encoder!r} "
                f"(fingerprint {self.manifest.fingerprint[:12]}), not by {encoder.name!r} "
                f"({encoder.fingerprint[:12]}): their features do not mix. Use another folder."
            )

    def require_views(self, views: Views | None) -> None:
        """Refuse views other than those the store was made with."""
        described = _described(views)
        if self.manifest.views != described:
            raise StoreError(
                f"The store {str(self.folder)!r} holds {_shown(self.manifest.views)}, not "
                f"{_shown(described)}. Use another folder."
            )

    def __len__(self) -> int:
        return len(self._index())

    def hashes(self) -> set[str]:
        """The images whose vectors are here, by the SHA-256 of their content."""
        return set(self._index())

    # Reading.

    def items(self) -> list[Item]:
        """Every image that was extracted, sorted by source and path."""
        # Not splitlines: a name may hold other characters that end a line.
        lines = [line for line in self._read("items").split("\n") if line]
        found: list[Item] = self._parsed(f"[{','.join(lines)}]", list[Item])
        return found

    def refused(self) -> list[dict[str, str]]:
        """Every image that was refused: source, path and reason."""
        found: list[dict[str, str]] = self._parsed(
            self._read("refused") or "[]", list[dict[str, str]]
        )
        return found

    def _parsed(self, text: str, kind: Any) -> Any:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_json(text)
        except ValidationError:
            raise self._damage("its list of images", "damaged") from None

    def read(self, *, source: str | None = None, split: str | None = None) -> StoredImages:
        """The images, all or of one source or split, and their vectors."""
        items = [
            item
            for item in self.items()
            if (source is None or item.source == source) and (split is None or item.split == split)
        ]
        return StoredImages(self.vectors([item.hash for item in items]), items)

    def vectors(self, hashes: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of images by the hash of their content, in the order asked for."""
        places = self._index()
        unknown = [image_hash for image_hash in hashes if image_hash not in places]
        if unknown:
            raise StoreError(
                f"The store {str(self.folder)!r} has no features of {len(unknown)} of the images: "
                "extract them again."
            )
        wanted: dict[StoredFile, list[tuple[int, int]]] = {}
        for position, image_hash in enumerate(hashes):
            shard, row = places[image_hash]
            wanted.setdefault(shard, []).append((position, row))
        gathered = np.empty((len(hashes), *self._row_shape()), dtype=np.float32)
        for shard, pairs in wanted.items():
            positions, rows = np.array(pairs).T
            gathered[positions] = self._tensor(shard, "features", *self._row_shape())[rows]
        if not np.isfinite(gathered).all():
            raise StoreError(f"The store {str(self.folder)!r} holds NaN or inf: extract it again.")
        return gathered

    def text(self, digest: str) -> NDArray[np.float32] | None:
        """The class vectors made of prompts with this digest, if they are cached."""
        file = self.manifest.texts.get(digest)
        return None if file is None else self._tensor(file, "features", self.manifest.dim)

    # Writing.

    def append(self, hashes: Sequence[str], features: NDArray[np.float32]) -> int:
        """Add a shard of vectors; those another process has added meanwhile are left out."""
        if features.shape != (len(hashes), *self._row_shape()) or not np.isfinite(features).all():
            raise StoreError(f"Features of shape {features.shape} do not belong into this store.")
        with self._change():
            first = {image_hash: row for row, image_hash in reversed(list(enumerate(hashes)))}
            known = self._index()
            fresh = {key: row for key, row in first.items() if key not in known}
            if not fresh:
                return 0
            codes = np.frombuffer(bytes.fromhex("".join(fresh)), dtype=np.uint8)
            tensors: dict[str, NDArray[Any]] = {
                "features": np.ascontiguousarray(features[list(fresh.values())], dtype=np.float32),
                "hashes": codes.reshape(-1, HASH_BYTES),
            }
            shard = self._write(SHARD, save(tensors), len(fresh))
            self._commit(shards=(*self.manifest.shards, shard))
        return len(fresh)

    def record(self, source: str, items: Iterable[Item], refused: Iterable[Refused]) -> None:
        """Note what was extracted from `source` and what was refused; replaces the earlier note."""
        with self._change():
            kept = [item for item in self.items() if item.source != source]
            listed = sorted([*kept, *items], key=lambda item: (item.source, item.path))
            lines = [json.dumps(asdict(item), ensure_ascii=False) for item in listed]
            others = [entry for entry in self.refused() if entry["source"] != source]
            own = [{"source": source, "path": it.name, "reason": it.reason} for it in refused]
            text = json.dumps([*others, *own], indent=1, ensure_ascii=False)
            self._commit(
                items=self._write(ITEMS, "\n".join(lines).encode(), len(lines)),
                refused=self._write(REFUSED, text.encode(), len(others) + len(own)),
            )

    def cache_text(self, digest: str, features: NDArray[np.float32]) -> None:
        """Keep the class vectors made of prompts with this digest."""
        make_folder(self.folder / "texts")
        with self._change():
            data = save({"features": np.ascontiguousarray(features)})
            file = self._write(TEXT, data, len(features))
            self._commit(texts=self.manifest.texts | {digest: file})

    def damaged(self, progress: Callable[[], object] = lambda: None) -> list[str]:
        """The names of files that are missing or no longer what was written."""
        bad = []
        for file in self.manifest.files:
            path = self.folder / file.name
            if not path.is_file() or _checksum(path) != file.sha256:
                bad.append(file.name)
            progress()
        return bad

    def drop(self, names: Iterable[str]) -> None:
        """Forget damaged files, so that the next extraction makes what they held again."""
        bad = set(names)

        def intact(file: StoredFile | None) -> bool:
            return file is not None and file.name not in bad

        with self._change():
            known = self.manifest
            self._commit(
                shards=tuple(filter(intact, known.shards)),
                items=known.items if intact(known.items) else None,
                refused=known.refused if intact(known.refused) else None,
                texts={key: file for key, file in known.texts.items() if intact(file)},
            )
            self._places.clear()
            self._indexed.clear()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock, with the manifest as it is now and no files that it does not know."""
        with _locked(self.folder):
            self.manifest = read_manifest(self.folder)
            known = {file.name for file in self.manifest.files}
            for folder, _, name in (kind.rpartition("/") for kind in KINDS):
                for pattern in (name, f".{name}.*"):  # and the temporary siblings
                    for path in (self.folder / folder).glob(pattern.format("*")):
                        if path.relative_to(self.folder).as_posix() not in known:
                            path.unlink()
            yield

    def _write(self, pattern: str, data: bytes, rows: int) -> StoredFile:
        digest = sha256(data)
        name = pattern.format(digest[:24])
        # What killed writers left is removed by `_change`.
        write_atomic(self.folder / name, data, sweep=False)
        self._checked.add(name)
        return StoredFile(name, digest, rows)

    def _commit(self, **changes: Any) -> None:
        self.manifest = replace(self.manifest, **changes)
        self.manifest.write(self.folder)

    def _index(self) -> dict[str, tuple[StoredFile, int]]:
        """Where each image's vector is; shards are read once."""
        for shard in self.manifest.shards:
            if shard.name not in self._indexed:
                for row, code in enumerate(self._tensor(shard, "hashes", HASH_BYTES)):
                    self._places[code.tobytes().hex()] = (shard, row)
                self._indexed.add(shard.name)
        return self._places

    def _row_shape(self) -> tuple[int, ...]:
        views = self.manifest.views
        apart = views is not None and not views["average"]
        return (views["count"], self.manifest.dim) if views and apart else (self.manifest.dim,)

    def _read(self, kind: str) -> str:
        """The text of "items" or "refused"; a writer may have replaced the file meanwhile."""
        for _ in range(10):
            file: StoredFile | None = getattr(self.manifest, kind)
            if file is None:
                return ""
            if (self.folder / file.name).exists():
                return self._verified(file).read_bytes().decode()
            self.manifest = read_manifest(self.folder)
        raise StoreError(f"The store {str(self.folder)!r} lost a file: run gpcache store verify.")

    def _tensor(self, file: StoredFile, key: str, *shape: int) -> NDArray[Any]:
        """A tensor of a file whose rows have this shape, read through the memory map."""
        path = self._verified(file)
        try:
            with safe_open(path, "numpy") as tensors:
                tensor: NDArray[Any] = tensors.get_tensor(key)
        except (SafetensorError, TypeError, LookupError):
            raise self._damage(path) from None
        kind = np.uint8 if key == "hashes" else np.float32
        if tensor.shape != (file.rows, *shape) or tensor.dtype != kind:
            raise self._damage(path)
        return tensor

    def _verified(self, file: StoredFile) -> Path:
        path = self.folder / file.name
        if not path.is_file():
            raise self._damage(path, "missing")
        if self._verify and file.name not in self._checked:
            if _checksum(path) != file.sha256:
                raise self._damage(path)
            self._checked.add(file.name)
        return path

    def _damage(self, what: Path | str, how: str = "damaged (its SHA-256 differs)") -> StoreError:
        return StoreError(
            f"{str(what)!r} is {how}: run 'gpcache store verify --repair "
            f"{quote(str(self.folder))}', then extract the images again."
        )


def _checksum(path: Path) -> str:
    """The checksum of a file; one that cannot be read is not called damaged."""
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise StoreError(
            f"{str(path)!r} cannot be read ({error.strerror}): check that you may read it."
        ) from None


def _locked(folder: Path) -> AbstractContextManager[None]:
    return locked_file(FileLock(folder / LOCK), folder)


def _described(views: Views | None) -> dict[str, Any] | None:
    """The views as the manifest has them after JSON."""
    described: dict[str, Any] | None = json.loads(json.dumps(views.describe() if views else None))
    return described


def _shown(views: dict[str, Any] | None) -> str:
    if views is None:
        return "one centre view an image"
    how = "averaged" if views["average"] else "kept apart"
    scale, seed = views["scale"], views["seed"]
    return f"{views['count']} views an image, {how}, of scale {scale}, seed {seed}"
