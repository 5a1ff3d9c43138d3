"""FeatureStore: unit vectors on disk, found by the content of an image, safe against crashes.

    store.json               the manifest: encoder, views, and every other file with its SHA-256
    shards/….safetensors     vectors (n, dim) or (n, views, dim), and the images' hashes (n, 32)
    items-….jsonl            the images that were extracted: source, path, label, split, group, hash
    refused-….json           the images that were not, with the reason
    texts/….safetensors      class vectors, by their prompts

Every file except the manifest is named by its content and never changes. A change writes new files
first, and then replaces the manifest in one rename. A process that is killed in between leaves
files that are not in the manifest; the next change removes them. Writers use a lock; readers do not
need one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gpcache.errors import DataError, StoreError
from gpcache.features.manifest import NAME, Manifest, StoredFile, described, read_manifest
from gpcache.images.augment import Views
from gpcache.images.records import Refused
from gpcache.support.files import make_folder, sha256, sha256_of_file, write_atomic
from gpcache.support.locks import locked_file

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

LOCK = "lock"
HASH_BYTES = 32
SHARD, ITEMS = "shards/{}.safetensors", "items-{}.jsonl"
REFUSED, TEXT = "refused-{}.json", "texts/{}.safetensors"
KINDS = (SHARD, ITEMS, REFUSED, TEXT)

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Item:
    """One extracted image.

    Parameters
    ----------
    source : str
        Name of the source.
    path : str
        Path of the image as the source names it.
    hash : str
        SHA-256 of its content.
    label, split, group : str, optional
        Its metadata.

    Examples
    --------
    >>> from gpcache.features.store import Item
    >>> Item("photos", "cat/1.jpg", "0" * 64, label="cat").label
    'cat'
    """

    source: str
    path: str
    hash: str
    label: str | None = None
    split: str | None = None
    group: str | None = None


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Images of a store and their vectors.

    Parameters
    ----------
    features : array of shape (n, dim) or (n, views, dim)
        Unit vectors, one per image, or one per view if the views are kept.
    items : list of Item
        The images, in the same order.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.features.store import Item, StoredImages
    >>> StoredImages(np.eye(1), [Item("photos", "cat/1.jpg", "0" * 64, "cat")]).labels.tolist()
    ['cat']
    """

    features: NDArray[np.float32]
    items: list[Item]

    @property
    def labels(self) -> NDArray[Any]:
        """Class names of shape (n,); an image without a label is an error."""
        missing = [item.path for item in self.items if item.label is None]
        if missing:
            raise DataError(f"{len(missing)} images have no label, the first is {missing[0]!r}.")
        return np.array([item.label for item in self.items])

    @property
    def paths(self) -> list[str]:
        """Paths as the source names them."""
        return [item.path for item in self.items]


class FeatureStore:
    """Features of one encoder on disk, found by the content of the image.

    Use `open` to read a store and `create` to write one. `gpcache extract` fills it. Every file is
    checked against its SHA-256. Several processes may write to one store.

    Parameters
    ----------
    folder : Path
        Folder of the store.
    verify : bool, default=True
        Compare the checksum of every file that is read.

    Raises
    ------
    StoreError
        If there is no store, or it is damaged.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from gpcache import FeatureStore, load_encoder
    >>> encoder = load_encoder("lite")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = FeatureStore.create(folder, encoder)
    ...     count = store.append(["0" * 64], encoder.encode_texts(["cat"]))
    ...     len(store), FeatureStore.open(folder).vectors(["0" * 64]).shape
    (1, (1, 1664))
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        self._verify = verify
        self._checked: set[str] = set()
        self._places: dict[str, tuple[StoredFile, int]] = {}  # hash → shard and row
        self._indexed: set[str] = set()
        self.manifest = read_manifest(folder)

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> FeatureStore:
        """Open a store to read it.

        Parameters
        ----------
        folder : str or Path
            Folder of the store.
        verify : bool, default=True
            Compare the checksum of every file that is read.

        Returns
        -------
        FeatureStore
            The store.

        Examples
        --------
        >>> from gpcache import FeatureStore, StoreError
        >>> try:
        ...     FeatureStore.open("no such folder")
        ... except StoreError:
        ...     print("no store")
        no store
        """
        return cls(Path(folder), verify=verify)

    @classmethod
    def create(
        cls, folder: str | Path, encoder: Encoder, views: Views | None = None
    ) -> FeatureStore:
        """Open the store in a folder to add to it, or create it.

        Parameters
        ----------
        folder : str or Path
            Folder of the store.
        encoder : Encoder
            Encoder of the features.
        views : Views, optional
            Augmented views; None is one centre view per image.

        Returns
        -------
        FeatureStore
            The store.

        Raises
        ------
        StoreError
            If the folder holds other files, or the features of another encoder or other views.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(FeatureStore.create(folder, load_encoder("lite")))
        0
        """
        place = make_folder(folder)
        # Another process may be creating this store at the same time: ignore its files.
        store_names = (LOCK, "shards", NAME, f".{NAME}.")
        foreign = [path.name for path in place.iterdir() if not path.name.startswith(store_names)]
        if foreign and not (place / NAME).exists():
            raise StoreError(
                f"{str(folder)!r} is not a feature store and not empty (it has {min(foreign)!r}): "
                "give an empty or new folder."
            )
        make_folder(place / "shards")
        made_by = encoder.name, encoder.fingerprint, encoder.logit_scale, encoder.dim
        with _locked(place):
            if not (place / NAME).exists():
                Manifest(*made_by, described(views)).write(place)
        store = cls(place)
        store.require_encoder(encoder)
        store.require_views(views)
        return store

    def require_encoder(self, encoder: Encoder) -> None:
        """Check that an encoder is the one that made the store.

        Parameters
        ----------
        encoder : Encoder
            The encoder to check.

        Raises
        ------
        StoreError
            If its fingerprint is another one.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> encoder = load_encoder("lite")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, encoder).require_encoder(encoder)
        """
        if self.manifest.fingerprint != encoder.fingerprint:
            raise StoreError(
                f"The store {str(self.folder)!r} was made by the encoder {self.manifest.encoder!r} "
                f"(fingerprint {self.manifest.fingerprint[:12]}), not by {encoder.name!r} "
                f"({encoder.fingerprint[:12]}): their features do not mix. Use another folder."
            )

    def require_views(self, views: Views | None) -> None:
        """Check that views are those that the store was made with.

        Parameters
        ----------
        views : Views or None
            The views to check; None is one centre view per image.

        Raises
        ------
        StoreError
            If the store holds other views.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).require_views(None)
        """
        if self.manifest.views != described(views):
            raise StoreError(
                f"The store {str(self.folder)!r} holds {_shown(self.manifest.views)}, not "
                f"{_shown(described(views))}. Use another folder."
            )

    def __len__(self) -> int:
        return len(self._index())

    def hashes(self) -> set[str]:
        """Return the images whose vectors are in the store.

        Returns
        -------
        set of str
            SHA-256 of the content of each image.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).hashes()
        set()
        """
        return set(self._index())

    # Reading.

    def items(self) -> list[Item]:
        """List every image that was extracted, sorted by source and path.

        Returns
        -------
        list of Item
            The images.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).items()
        []
        """
        # Not splitlines: a name may hold other characters that end a line.
        lines = [line for line in self._read("items").split("\n") if line]
        return self._parsed(f"[{','.join(lines)}]", list[Item])

    def refused(self) -> list[dict[str, str]]:
        """List every image that was refused.

        Returns
        -------
        list of dict
            Source, path and reason of each.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).refused()
        []
        """
        return self._parsed(self._read("refused") or "[]", list[dict[str, str]])

    def _parsed(self, text: str, kind: type[Parsed]) -> Parsed:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_json(text)
        except ValidationError:
            raise self._damage("its list of images", "damaged") from None

    def read(self, *, source: str | None = None, split: str | None = None) -> StoredImages:
        """Read images and their vectors.

        Parameters
        ----------
        source : str, optional
            Only images of this source.
        split : str, optional
            Only images of this split.

        Returns
        -------
        StoredImages
            The images and their vectors.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from gpcache import FeatureStore, load_encoder
        >>> from gpcache.features.extract import extract
        >>> from gpcache.images.sources import from_iterable
        >>> pairs = [(np.full((32, 32, 3), i, np.uint8), "cat") for i in range(2)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = extract(from_iterable(pairs), folder, load_encoder("lite"))
        ...     FeatureStore.open(folder).read().features.shape
        (2, 1664)
        """
        items = [
            item
            for item in self.items()
            if (source is None or item.source == source) and (split is None or item.split == split)
        ]
        return StoredImages(self.vectors([item.hash for item in items]), items)

    def vectors(self, hashes: Sequence[str]) -> NDArray[np.float32]:
        """Read vectors by the hash of the image content.

        Parameters
        ----------
        hashes : sequence of str
            SHA-256 of the content of each image.

        Returns
        -------
        array of shape (n, dim) or (n, views, dim)
            Vectors in the order of `hashes`.

        Raises
        ------
        StoreError
            If the store does not hold one of them.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).vectors([]).shape
        (0, 1664)
        """
        wanted: dict[StoredFile, list[tuple[int, int]]] = {}
        for position, (shard, row) in enumerate(self._places_of(hashes)):
            wanted.setdefault(shard, []).append((position, row))
        gathered = np.empty((len(hashes), *self._row_shape()), dtype=np.float32)
        for shard, pairs in wanted.items():
            positions, rows = np.array(pairs).T
            gathered[positions] = self._tensor(shard, "features", *self._row_shape())[rows]
        if not np.isfinite(gathered).all():
            raise StoreError(f"The store {str(self.folder)!r} holds NaN or inf: extract it again.")
        return gathered

    def places(self, hashes: Sequence[str]) -> list[tuple[str, int]]:
        """Find where vectors are, to read them in this order.

        Parameters
        ----------
        hashes : sequence of str
            SHA-256 of the content of each image.

        Returns
        -------
        list of tuple
            Name of the file, and row in it, of each image.

        Raises
        ------
        StoreError
            If the store does not hold one of them.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).places([])
        []
        """
        return [(shard.name, row) for shard, row in self._places_of(hashes)]

    def _places_of(self, hashes: Sequence[str]) -> list[tuple[StoredFile, int]]:
        places = self._index()
        unknown = [image_hash for image_hash in hashes if image_hash not in places]
        if unknown:
            raise StoreError(
                f"The store {str(self.folder)!r} has no features of {len(unknown)} of the images: "
                "extract them again."
            )
        return [places[image_hash] for image_hash in hashes]

    def text(self, digest: str) -> NDArray[np.float32] | None:
        """Read cached class vectors.

        Parameters
        ----------
        digest : str
            Digest of the prompts (`Prompts.digest`).

        Returns
        -------
        array of shape (c, dim) or None
            The vectors; None if they are not cached.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).text("unknown") is None
        True
        """
        file = self.manifest.texts.get(digest)
        return None if file is None else self._tensor(file, "features", self.manifest.dim)

    # Writing.

    def append(self, hashes: Sequence[str], features: NDArray[np.float32]) -> int:
        """Add a shard of vectors; images that the store has already are left out.

        Parameters
        ----------
        hashes : sequence of str
            SHA-256 of the content of each image.
        features : array of shape (n, dim) or (n, views, dim)
            Their vectors.

        Returns
        -------
        int
            Number of images that were added.

        Raises
        ------
        StoreError
            If the shape is wrong or a value is not finite.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> encoder = load_encoder("lite")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = FeatureStore.create(folder, encoder)
        ...     store.append(["0" * 64], encoder.encode_texts(["cat"]))
        1
        """
        if features.shape != (len(hashes), *self._row_shape()) or not np.isfinite(features).all():
            raise StoreError(f"Features of shape {features.shape} do not belong in this store.")
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
        """Record what was extracted from a source and what was refused.

        It replaces the earlier record of the source.

        Parameters
        ----------
        source : str
            Name of the source.
        items : iterable of Item
            The extracted images.
        refused : iterable of Refused
            The refused images.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> from gpcache.features.store import Item
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = FeatureStore.create(folder, load_encoder("lite"))
        ...     store.record("photos", [Item("photos", "cat/1.jpg", "0" * 64)], [])
        ...     [item.path for item in store.items()]
        ['cat/1.jpg']
        """
        with self._change():
            kept_items = [item for item in self.items() if item.source != source]
            listed = sorted([*kept_items, *items], key=lambda item: (item.source, item.path))
            lines = [json.dumps(asdict(item), ensure_ascii=False) for item in listed]
            kept_refusals = [entry for entry in self.refused() if entry["source"] != source]
            added = [{"source": source, "path": it.name, "reason": it.reason} for it in refused]
            text = json.dumps([*kept_refusals, *added], indent=1, ensure_ascii=False)
            self._commit(
                items=self._write(ITEMS, "\n".join(lines).encode(), len(lines)),
                refused=self._write(REFUSED, text.encode(), len(kept_refusals) + len(added)),
            )

    def cache_text(self, digest: str, features: NDArray[np.float32]) -> None:
        """Cache class vectors.

        Parameters
        ----------
        digest : str
            Digest of the prompts (`Prompts.digest`).
        features : array of shape (c, dim)
            The vectors.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> encoder = load_encoder("lite")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = FeatureStore.create(folder, encoder)
        ...     store.cache_text("0" * 64, encoder.encode_texts(["cat"]))
        ...     store.text("0" * 64).shape
        (1, 1664)
        """
        make_folder(self.folder / "texts")
        with self._change():
            data = save({"features": np.ascontiguousarray(features)})
            file = self._write(TEXT, data, len(features))
            self._commit(texts=self.manifest.texts | {digest: file})

    def damaged(self, progress: Callable[[], object] = lambda: None) -> list[str]:
        """Find files that are missing or differ from their checksum.

        Parameters
        ----------
        progress : callable, optional
            Called after each file.

        Returns
        -------
        list of str
            Names of the files.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FeatureStore.create(folder, load_encoder("lite")).damaged()
        []
        """
        bad = []
        for file in self.manifest.files:
            path = self.folder / file.name
            if not path.is_file() or _checksum(path) != file.sha256:
                bad.append(file.name)
            progress()
        return bad

    def drop(self, names: Iterable[str]) -> None:
        """Remove damaged files from the store; the next extraction makes them again.

        Parameters
        ----------
        names : iterable of str
            Names of the files, as `damaged` returns them.

        Examples
        --------
        >>> import tempfile
        >>> from gpcache import FeatureStore, load_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = FeatureStore.create(folder, load_encoder("lite"))
        ...     store.drop(store.damaged())
        """
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
        """Hold the lock; read the current manifest and remove files that it does not list."""
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
        # `_change` removes the files that killed writers left.
        write_atomic(self.folder / name, data, sweep=False)
        self._checked.add(name)
        return StoredFile(name, digest, rows)

    def _commit(self, **changes: Any) -> None:
        self.manifest = replace(self.manifest, **changes)
        self.manifest.write(self.folder)

    def _index(self) -> dict[str, tuple[StoredFile, int]]:
        """The shard and row of each image; shards are read once."""
        for shard in self.manifest.shards:
            if shard.name not in self._indexed:
                for row, code in enumerate(self._tensor(shard, "hashes", HASH_BYTES)):
                    self._places[code.tobytes().hex()] = (shard, row)
                self._indexed.add(shard.name)
        return self._places

    def _row_shape(self) -> tuple[int, ...]:
        views, dim = self.manifest.views, self.manifest.dim
        return (dim,) if views is None or views["average"] else (views["count"], dim)

    def _read(self, kind: str) -> str:
        """The text of "items" or "refused"; retries if a writer has replaced the file."""
        file: StoredFile | None = getattr(self.manifest, kind)
        for _ in range(10):
            if file is None or (self.folder / file.name).exists():
                break
            self.manifest = read_manifest(self.folder)
            file = getattr(self.manifest, kind)
        if file is None:
            return ""
        try:
            return self._verified(file).read_bytes().decode()
        except UnicodeDecodeError:
            raise self._damage(self.folder / file.name, "damaged") from None

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
    """The checksum of a file; one that cannot be read raises another error than damage."""
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise StoreError(
            f"{str(path)!r} cannot be read ({error.strerror}): check that you may read it."
        ) from None


def _locked(folder: Path) -> AbstractContextManager[None]:
    return locked_file(FileLock(folder / LOCK), folder)


def _shown(views: dict[str, Any] | None) -> str:
    if views is None:
        return "one centre view an image"
    how = "averaged" if views["average"] else "kept apart"
    scale, seed = views["scale"], views["seed"]
    return f"{views['count']} views an image, {how}, of scale {scale}, seed {seed}"
