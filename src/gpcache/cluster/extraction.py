"""Extracts features on Ray: actors decode and encode images, and return vectors as a stream.

Rows hold paths or bytes. Vectors come back in the order of the source; the reader of the stream
writes them. Ray repeats the work of a process that died: an image may be encoded twice, but it is
returned once. Torch is imported only when an encoder is loaded: processes that decode do not need
it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpcache.cluster.connection import connected, reason_of
from gpcache.errors import DataError, GPCacheError, ImageRefusedError
from gpcache.features.stream import Encoded, images_at_once, vectors
from gpcache.images.augment import Views
from gpcache.images.decode import read_file
from gpcache.images.preprocess import Preprocess
from gpcache.images.records import Record, Refused, Source
from gpcache.images.workers import DecodePool, Prepared
from gpcache.support.checks import whole
from gpcache.support.extras import require
from gpcache.support.files import sha256

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

# Rows of one Ray dataset at most; the actors load their encoder again for the next one.
WINDOW_ROWS = 2**18
WINDOW_BYTES = 2**29
HASH = "S32"

RayRow = dict[str, Any]
COLUMNS = ("row", "hash", "notes", "refused", "failed")  # of both stages, beside what they make


def encoded_on_ray(
    source: Source,
    encoder: Encoder,
    *,
    views: Views | None = None,
    known: set[str] | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Generator[Encoded | Refused, None, None]:
    """Every image of `source`, files or bytes, in its order, encoded or refused.

    Like `stream.encoded`, on the cluster at RAY_ADDRESS, or on a local one that it starts.
    The actors load the encoder by its name, onto the kind of device it has here. `known` travels
    to every machine once, 32 bytes an image; `workers` bounds the decoding actors.
    """
    if workers is not None:
        whole("workers", workers, least=1)
    size = images_at_once(encoder, views, batch_size)
    seen = set(known or ())
    with connected() as ray:
        require("ray.data", "ray", purpose="engine='ray'")
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        shared = ray.put(_sorted_hashes(seen))
        for window in _windows(source.records):
            for row in _rows(ray, window, encoder, views, shared, size, workers):
                record, key, vector = window[row["row"]], row["hash"], row["features"]
                if row["refused"] is not None:
                    yield Refused(record.name, row["refused"])
                elif vector is None or key in seen:
                    yield Encoded(record, key, None)
                else:
                    seen.add(key)
                    kept = (-1, encoder.dim) if views and not views.average else (encoder.dim,)
                    features = np.frombuffer(vector, dtype=np.float32).reshape(kept)
                    yield Encoded(record, key, features, tuple(row["notes"]))


def _windows(records: Iterable[Record]) -> Iterator[list[Record]]:
    window: list[Record] = []
    held = 0
    for record in records:
        if not isinstance(record.content, Path | bytes):
            raise DataError(
                f"engine='ray' takes files and bytes, but {record.name!r} is of the type "
                f"{type(record.content).__name__}: use engine='local'."
            )
        window.append(record)
        held += len(record.content) if isinstance(record.content, bytes) else 0
        if len(window) == WINDOW_ROWS or held >= WINDOW_BYTES:
            yield window
            window, held = [], 0
    if window:
        yield window


def _rows(ray: Any, *settings: Any) -> Iterator[RayRow]:
    """The rows of the dataset of a window; an error of Ray becomes one sentence."""
    try:
        dataset = _dataset(ray, *settings)
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in batch.to_pylist():
                if row["failed"] is not None:
                    raise GPCacheError(row["failed"])
                yield row
    except GPCacheError:
        raise
    except Exception as error:  # of Ray's: its own, those of its workers, of Arrow, of the network
        raise GPCacheError(
            f"Ray stopped: {reason_of(error)}. Encoded images are kept: run it again to continue."
        ) from None


def _dataset(
    ray: Any,
    window: list[Record],
    encoder: Encoder,
    views: Views | None,
    known: Any,
    size: int,
    workers: int | None,
) -> Any:
    """The images of a window in blocks of `size`, each decoded and then encoded as a batch."""
    from gpcache.encoders import load_same_encoder

    resources = ray.cluster_resources()
    cpus, gpus = (int(resources.get(kind, 0)) for kind in ("CPU", "GPU"))
    on_gpu = encoder.device.type == "cuda"
    if on_gpu and gpus < 1:
        raise GPCacheError("The Ray cluster has no GPU: use device='cpu', or give it one.")
    dataset = ray.data.from_blocks([_block(window, at, size) for at in range(0, len(window), size)])
    context = dataset.context
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.max_errored_blocks = 0
    # Actors in both stages: a stage of tasks would be merged into the encoding one.
    actors = partial(ray.data.ActorPoolStrategy, min_size=1)
    blocks = {"batch_size": size, "batch_format": "pyarrow"}
    decoded = dataset.map_batches(
        _Decode,
        fn_constructor_args=(encoder.preprocess, views, known),
        # They use CPUs but hold none, or they could take the last ones after a node was lost, and
        # encoding would wait without end.
        num_cpus=0,
        compute=actors(max_size=workers or max(1, cpus)),
        **blocks,
    )
    name, device = encoder.loadable_name, encoder.device.type
    load = partial(load_same_encoder, name, device=device, fingerprint=encoder.fingerprint)
    return decoded.map_batches(
        _Encode,
        fn_constructor_args=(load, views),
        num_cpus=0 if on_gpu else 1,
        num_gpus=1 if on_gpu else 0,
        compute=actors(max_size=gpus if on_gpu else max(1, cpus)),
        **blocks,
    )


def _block(window: list[Record], start: int, size: int) -> Any:
    """Rows of a window: a path as its bytes, which need not be Unicode, or a file's content."""
    rows = [
        {
            "row": row,
            "path": os.fsencode(content.absolute()) if isinstance(content, Path) else None,
            "content": content if isinstance(content, bytes) else None,
        }
        for row, content in enumerate((it.content for it in window[start : start + size]), start)
    ]
    return _table(rows, "row", "path", "content")


# The code below runs on the cluster. It returns errors as rows, because Ray would print the
# traceback of an exception.


class _Decode:
    """An actor that reads files: paths or bytes → hashes and pixels, or the reason for refusal.

    Another process decodes, so that a crash only refuses the image.
    """

    def __init__(self, preprocess: Preprocess, views: Views | None, known: Any) -> None:
        self._pool = DecodePool(preprocess, views, workers=1)
        self._known = require("ray", "ray").get(known)

    def __call__(self, table: Any) -> Any:
        """Take a block of paths or bytes."""
        under_way = [self._read(given) for given in table.to_pylist()]
        return _table([_prepared(row, future) for row, future in under_way], *COLUMNS, "pixels")

    def _read(self, given: RayRow) -> tuple[RayRow, Future[Prepared] | None]:
        row, path, content = {"row": given["row"]}, given["path"], given["content"]
        try:
            content = content if path is None else read_file(Path(os.fsdecode(path)))
        except ImageRefusedError as error:
            return row | {"refused": error.reason}, None
        row["hash"] = sha256(content)
        if _contains(self._known, row["hash"]):
            return row, None
        return row, self._pool.submit(content, row["hash"])


def _prepared(row: RayRow, future: Future[Prepared] | None) -> RayRow:
    try:
        decoded = None if future is None else future.result()
    except ImageRefusedError as error:
        return row | {"refused": error.reason}
    except GPCacheError as error:
        return row | {"failed": str(error)}
    if decoded is None:
        return row
    return row | {"notes": decoded.notes, "pixels": decoded.pixels.tobytes()}


class _Encode:
    """An actor that holds an encoder: pixels → vectors."""

    def __init__(self, load: Callable[[], Encoder], views: Views | None) -> None:
        self._load, self._views = load, views

    @cached_property
    def _encoder(self) -> Encoder:
        return self._load()

    def __call__(self, table: Any) -> Any:
        """Take a block that `_Decode` gave."""
        rows: list[RayRow] = table.to_pylist()
        pending = [row for row in rows if row["pixels"] is not None]
        try:
            if pending:
                self._encode(pending)
        except GPCacheError as error:
            rows = [{"failed": str(error)}]
        return _table(rows, *COLUMNS, "features")

    def _encode(self, rows: list[RayRow]) -> None:
        side = self._encoder.preprocess.size
        flat = [np.frombuffer(row["pixels"], dtype=np.uint8) for row in rows]
        pixels = [array.reshape(-1, side, side, 3) for array in flat]
        features = vectors(pixels, self._encoder, self._views)
        for row, vector in zip(rows, features, strict=True):
            row["features"] = vector.tobytes()


def _table(rows: list[RayRow], *columns: str) -> Any:
    """Rows as an Arrow table with exactly these columns; missing values are null."""
    arrow = require("pyarrow", "ray", purpose="engine='ray'")
    text = arrow.string()
    binary = dict.fromkeys(("path", "content", "pixels", "features"), arrow.large_binary())
    types = binary | {"row": arrow.int64(), "notes": arrow.list_(text)}
    schema = arrow.schema([(name, types.get(name, text)) for name in columns])
    return arrow.Table.from_pylist(rows, schema=schema)


def _sorted_hashes(hashes: set[str]) -> NDArray[np.bytes_]:
    """Hashes as one array, which all processes of a machine share."""
    return np.sort(np.frombuffer(bytes.fromhex("".join(hashes)), dtype=HASH))


def _contains(hashes: NDArray[np.bytes_], image_hash: str) -> bool:
    code = np.array([bytes.fromhex(image_hash)], dtype=HASH)
    first, behind = (np.searchsorted(hashes, code, side)[0] for side in ("left", "right"))
    return bool(first < behind)
