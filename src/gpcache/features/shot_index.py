"""Labelled rows in an inverted file on disk, by the class in whose answers they count.

What a row counts for depends on its residual: one minus the probability of its own class, and the
probability of its most probable wrong class, which a fit has left. The index lists for each class
its own rows and those it is most confused with, the largest residual first. One safetensors file
holds

    the head     starts, confused_starts (c + 1,): where the lists of a class begin
                 residuals (n,) of the own class; confused_rows, confused (n,): rows of other
                 classes and the probability that they got; name_ends (n + 1,), digests (n, 16)
    the rows     rows (n, d) of length one in float16, names (bytes,), both in order of `starts`

The SHA-256 of the head is the seal of the file, and the head has that of each row (16 bytes of it).
So an answer checks what it reads, and reads nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gpcache.errors import ModelFileError

# Rows that are written at once.
BATCH = 4096
# Bytes of the head for each row.
HEAD_BYTES = 40
_DIGEST = 16
_HEAD = {
    "starts": "<i8",
    "confused_starts": "<i8",
    "residuals": "<f4",
    "confused_rows": "<i8",
    "confused": "<f4",
    "name_ends": "<i8",
    "digests": "|u1",
}
_BODY = {"rows": "<f2", "names": "|u1"}
_CODES = {"<i8": "I64", "<f4": "F32", "|u1": "U8", "<f2": "F16"}


class Seal(NamedTuple):
    """The SHA-256 of the head of an index, and the bytes of the head."""

    sha256: str
    n_bytes: int


class Residuals(NamedTuple):
    """What a fit has left of rows (n,): of the own class, and the most probable wrong class."""

    own: NDArray[np.float32]
    wrong_class: NDArray[np.int64]
    wrong: NDArray[np.float32]


def write_index(
    path: Path,
    rows: Any,
    labels: NDArray[np.int64],
    names: Sequence[str],
    residuals: Residuals,
    n_classes: int,
) -> Seal:
    """Write the index of rows (n, d), class numbers (n,) and names.

    `rows` has a shape, and gives rows for an array of row numbers.
    """
    order, starts = _lists(labels, residuals.own, n_classes)
    place = np.argsort(order)
    confused, confused_starts = _lists(residuals.wrong_class, residuals.wrong, n_classes)
    encoded = [names[row].encode("utf-8", "surrogatepass") for row in order]
    ends = np.append(0, np.cumsum([len(name) for name in encoded], dtype=np.int64))
    head: dict[str, NDArray[Any]] = {
        "starts": starts,
        "confused_starts": confused_starts,
        "residuals": residuals.own[order],
        "confused_rows": place[confused],
        "confused": residuals.wrong[confused],
        "name_ends": ends,
        "digests": np.zeros((len(order), _DIGEST), dtype=np.uint8),
    }
    head = {name: array.astype(_HEAD[name]) for name, array in head.items()}
    header = _header(
        {name: array.shape for name, array in head.items()}
        | {"rows": tuple(rows.shape), "names": (int(ends[-1]),)}
    )
    with path.open("wb") as file:
        file.seek(len(header) + sum(array.nbytes for array in head.values()))
        for first in range(0, len(order), BATCH):
            part = order[first : first + BATCH]
            block = np.asarray(rows[part], dtype=np.float32)
            block = (block / np.linalg.norm(block, axis=1, keepdims=True)).astype("<f2")
            own = zip(block, encoded[first : first + BATCH], strict=True)
            head["digests"][first : first + BATCH] = [_digest(*one) for one in own]
            file.write(block.tobytes())
        file.writelines(encoded)
        start = header + b"".join(array.tobytes() for array in head.values())
        file.seek(0)
        file.write(start)
        file.flush()
        os.fsync(file.fileno())
    return Seal(hashlib.sha256(start).hexdigest(), len(start))


def index_bytes(n: int, width: int, name_bytes: int) -> int:
    """The bytes of the index of n rows, but for what depends on the number of classes."""
    return n * (HEAD_BYTES + 2 * width) + name_bytes


class ShotIndex:
    """An index that `write_index` wrote; it is opened, and its head checked, on first use."""

    def __init__(self, path: Path, seal: Seal) -> None:
        self.path, self.seal = path, seal

    def write(self, path: Path) -> Seal:
        """Copy the file; its head is checked."""
        with self._explained():
            source = self.path.open("rb")
        with source, path.open("wb") as copy:
            self._check_head(source)
            source.seek(0)
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        return self.seal

    @property
    def n_bytes(self) -> int:
        """The bytes of the file, which is not opened."""
        with self._explained():
            return self.path.stat().st_size

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and their width."""
        n, width = self._file.get_slice("rows").get_shape()
        return int(n), int(width)

    @property
    def n_classes(self) -> int:
        """The number of classes."""
        return len(self._head["starts"]) - 1

    def counting(self, label: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The numbers (k,) of the rows that count for a class, and their signed residuals (k,).

        The largest residual comes first.
        """
        head = self._head
        first, last = head["starts"][label : label + 2]
        own = np.arange(first, last)
        part = slice(*head["confused_starts"][label : label + 2])
        numbers = np.concatenate([own, head["confused_rows"][part]])
        residuals = np.concatenate([head["residuals"][own], -head["confused"][part]])
        order = np.argsort(-np.abs(residuals), kind="stable")
        order = order[residuals[order] != 0]
        return numbers[order], residuals[order]

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows (k, d) of these numbers (k,)."""
        return np.stack([self._row(number)[0] for number in numbers.tolist()]).astype(np.float32)

    def label(self, number: int) -> int:
        """The class number of a row."""
        return int(np.searchsorted(self._head["starts"], number, side="right")) - 1

    def name(self, number: int) -> str:
        """The name of a row."""
        return self._row(number)[1].decode("utf-8", "surrogatepass")

    def _row(self, number: int) -> tuple[NDArray[np.float16], bytes]:
        """A row (d,) and the bytes of its name."""
        head, file = self._head, self._file
        first, last = head["name_ends"][number : number + 2].tolist()
        row = file.get_slice("rows")[number]
        name = file.get_slice("names")[first:last].tobytes()
        if _digest(row, name) != head["digests"][number].tolist():
            raise self._damaged()
        return row, name

    @cached_property
    def _head(self) -> dict[str, NDArray[Any]]:
        return {name: self._file.get_tensor(name) for name in _HEAD}

    @cached_property
    def _file(self) -> Any:
        """The file, with its head checked."""
        with self._explained():
            with self.path.open("rb") as file:
                self._check_head(file)
            return safe_open(self.path, "numpy")

    def _check_head(self, file: BinaryIO) -> None:
        if hashlib.sha256(file.read(self.seal.n_bytes)).hexdigest() != self.seal.sha256:
            raise self._damaged()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one sentence why the file cannot be read."""
        try:
            yield
        except FileNotFoundError:
            raise ModelFileError(
                f"{str(self.path)!r} is missing, so training images cannot be named: copy or fit "
                "the model again, or name its feature store with --why-from."
            ) from None
        except OSError as error:
            raise ModelFileError(
                f"{str(self.path)!r} cannot be read ({error.strerror}): check that it is a file "
                "and that you may read it."
            ) from None
        except SafetensorError:  # it is shorter than its head says
            raise self._damaged() from None

    def _damaged(self) -> ModelFileError:
        return ModelFileError(
            f"{str(self.path)!r} is damaged, or another process has replaced the model since it "
            "was read (its SHA-256 differs): load it again, or copy or fit the model again."
        )


def _lists(
    classes: NDArray[np.int64], residuals: NDArray[np.float32], n_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers (n,) by class, the largest residual first, and where each class begins."""
    order = np.lexsort((-residuals, classes))
    return order, np.searchsorted(classes[order], np.arange(n_classes + 1))


def _digest(row: NDArray[Any], name: bytes) -> list[int]:
    return list(hashlib.sha256(row.tobytes() + name).digest()[:_DIGEST])


def _header(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """The first bytes of a safetensors file with arrays of these shapes, one after another."""
    entries, end = {}, 0
    for name, kind in (_HEAD | _BODY).items():
        start, end = end, end + np.dtype(kind).itemsize * int(np.prod(shapes[name]))
        place = {"shape": shapes[name], "data_offsets": (start, end)}
        entries[name] = {"dtype": _CODES[kind], **place}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
