"""Exact nearest neighbours by cosine, block by block, on any device and in bounded memory."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError
from gpcache.support.checks import number_array, require_directions, whole
from gpcache.support.devices import ensure_memory, resolve_device
from gpcache.support.progress import progress_bar

# This size keeps threads and kernels busy; larger blocks only cost memory bandwidth on a CPU.
CPU_BLOCK_BYTES = 2**28
GPU_BLOCK_BYTES = 2**30
# The shortest segment whose maximum a CPU computes with vector instructions.
SEGMENT = 32
# The last bit of a float64 near one.
STEP = 2.0**-52
# Whole tiles keep a GPU busy; on a CPU this does not matter.
TILE = 128
# Keys at once if products are in float64.
COLUMNS = 4096


def nearest(
    queries: Any,
    keys: Any = None,
    k: int = 128,
    *,
    device: str | torch.device = "auto",
    block_bytes: int | None = None,
    exclude_self: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the k keys with the highest cosine for each query.

    The search is exact. Cosines are float32 products, so keys whose cosines differ by less than
    about 1e-7 may change places between devices or block sizes. Equal cosines come in the order of
    the keys.

    Parameters
    ----------
    queries : array or tensor of shape (n, d)
        Queries of any float type; they are scaled to length one.
    keys : array or tensor of shape (m, d), optional
        Keys. Without them the queries are compared with each other.
    k : int, default=128
        Number of neighbours; all keys if there are fewer.
    device : str or torch.device, default="auto"
        Device to compute on.
    block_bytes : int, optional
        Bound on the memory beyond the keys and the result.
    exclude_self : bool, default=False
        Leave out each row itself, but not its copies. Only without `keys`.

    Returns
    -------
    positions : array of shape (n, k)
        Row numbers of the keys, best first.
    cosines : array of shape (n, k)
        Their cosines.

    Raises
    ------
    DataError
        If the widths differ, or `exclude_self` is given with keys.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.features.neighbors import nearest
    >>> positions, cosines = nearest(np.eye(3)[:1], np.eye(3), k=1)
    >>> positions.tolist(), cosines.tolist()
    ([[0]], [[1.0]])
    """
    k = whole("k", k, least=1)
    if exclude_self and keys is not None:
        raise DataError("exclude_self=True compares rows with each other: leave keys out.")
    place = resolve_device(device)
    if place.type == "mps":
        raise DataError("Neighbours need float64, which 'mps' does not have: use device='cpu'.")
    query_rows = _matrix("queries", queries)
    key_rows = query_rows if keys is None else _matrix("keys", keys)
    if query_rows.shape[1] != key_rows.shape[1]:
        raise DataError(
            f"queries have {query_rows.shape[1]} columns but keys have {key_rows.shape[1]}."
        )
    n_queries, n_keys = len(query_rows), len(key_rows)
    k = min(k, max(n_keys - exclude_self, 0))
    if k == 0 or n_queries == 0:
        empty = (n_queries, k)
        return np.zeros(empty, dtype=np.int64), np.zeros(empty, dtype=np.float32)
    if block_bytes is None:
        block_bytes = CPU_BLOCK_BYTES if place.type == "cpu" else GPU_BLOCK_BYTES
    search = _NearestSearch(n_keys, k, exclude_self)
    rows = min(n_queries, search.rows_within(block_bytes))
    search.ensure_memory(n_queries, key_rows.shape[1], rows, place)
    with torch.inference_mode(), torch.autocast(place.type, enabled=False):
        name = "queries" if keys is None else "keys"
        unit_keys = search.padded(key_rows, place, name, block_bytes)
        if keys is None:
            query_rows = unit_keys[:n_queries]
        return search.run(query_rows, unit_keys, rows)


class _NearestSearch:
    """The selection of the k best of each row of similarities, in two steps.

    The keys are cut into segments. The k best keys of a row lie in the k segments with the best
    maxima, as every better segment holds a better key. So only the maxima and then the keys of k
    segments are sorted, two small parts of the row.
    """

    def __init__(self, n_keys: int, k: int, exclude_self: bool) -> None:
        self.n_keys, self.k, self.exclude_self = n_keys, k, exclude_self
        # The square root makes both parts equally long.
        balanced = SEGMENT * max(1, round(sqrt(n_keys / k) / SEGMENT))
        self.width = balanced if n_keys > k * balanced else 1
        self.n_segments = -(-n_keys // self.width)
        self.n_chosen = min(k, self.n_segments)

    def rows_within(self, block_bytes: int) -> int:
        """How many queries at once keep the block and its temporaries within `block_bytes`."""
        rows = max(1, int(block_bytes) // self._bytes_per_row())
        return rows if rows < TILE else rows - rows % TILE

    def _bytes_per_row(self) -> int:
        # 4 bytes a similarity; for what is sorted, copies in float32 and float64.
        sorted_parts = self.n_segments + self.n_chosen * self.width
        return 4 * self.n_segments * self.width + 16 * sorted_parts + 64 * self.k

    def ensure_memory(self, n_queries: int, dim: int, rows: int, device: torch.device) -> None:
        """Raise an error if the search needs too much memory, before anything is allocated."""
        answer = 12 * n_queries * self.k
        needed = 4 * self.n_segments * self.width * dim + rows * self._bytes_per_row()
        what = f"The search for {self.k} neighbours among {self.n_keys:,} keys"
        if device.type == "cpu":
            remedy = "Use fewer keys, a smaller k or a smaller block_bytes."
            ensure_memory(needed + answer, device, what=what, remedy=remedy)
        else:
            remedy = "Use fewer keys, a smaller block_bytes or device='cpu'."
            ensure_memory(needed, device, what=what, remedy=remedy)
            host = torch.device("cpu")
            ensure_memory(answer, host, what=what, remedy="Use fewer queries or a smaller k.")

    def padded(self, keys: Tensor, device: torch.device, name: str, block_bytes: int) -> Tensor:
        """The keys as unit rows, with rows of zeros up to a whole number of segments."""
        unit = torch.zeros(self.n_segments * self.width, keys.shape[1], device=device)
        step = max(1, int(block_bytes) // (12 * keys.shape[1]))  # given, as float32, of length one
        for start in range(0, len(keys), step):
            part = keys[start : start + step]
            unit[start : start + len(part)] = _unit(part, device, name, start)
        return unit

    def run(
        self, queries: Tensor, unit_keys: Tensor, rows: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Positions and similarities (n, k) for all queries, `rows` of them at a time."""
        total = len(queries)
        positions = torch.empty(total, self.k, dtype=torch.int64)
        similarities = torch.empty(total, self.k, dtype=torch.float32)
        block = torch.empty(rows, len(unit_keys), device=unit_keys.device)
        with progress_bar("Nearest neighbours", total=total, unit="row") as bar:
            for start in range(0, total, rows):
                # The last block starts earlier instead of being smaller: products of equal shape
                # are computed in the same way, so duplicates have equal similarities.
                first = min(start, total - rows)
                unit = _unit(queries[first : first + rows], unit_keys.device, "queries", first)
                _multiply(unit, unit_keys, block)
                best_positions, best_similarities = self.best(block, first)
                positions[first : first + rows] = best_positions.cpu()
                similarities[first : first + rows] = best_similarities.cpu()
                bar.update(min(rows, total - start))
        return positions.numpy(), similarities.numpy()

    def best(self, block: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Positions and similarities (rows, k) of the best keys; `block` (rows, …) is changed."""
        rows = len(block)
        block[:, self.n_keys :] = -torch.inf
        if self.exclude_self:
            block[:, first : first + rows].fill_diagonal_(-torch.inf)
        segments = block.view(rows, self.n_segments, self.width)
        # In order, so that equal candidates stay in the order of their keys.
        chosen = _top(segments.amax(-1), self.n_chosen).sort(1).values
        parts = segments.gather(1, chosen[:, :, None].expand(-1, -1, self.width))
        candidates = parts.flatten(1).clamp_(max=1)
        places = _top(candidates, self.k)
        segment = chosen.gather(1, places // self.width)
        return segment * self.width + places % self.width, candidates.gather(1, places)


def _top(values: Tensor, k: int) -> Tensor:
    """The columns (rows, k) of the highest values, best first, and of equal ones the leftmost.

    From left to right, each column is lowered by a step that is smaller than the rounding of
    float32 but can be represented in float64. This breaks ties. Segments are runs of keys, so
    segments with equal maxima also come in the order of their best keys.
    """
    steps = torch.arange(values.shape[1], dtype=torch.float64, device=values.device) * STEP
    return values.clamp(max=1).double().sub_(steps).topk(k).indices


def _multiply(queries: Tensor, keys: Tensor, out: Tensor) -> None:
    """Write queries keysᵀ of float32 rows to `out`, always with full float32 precision.

    If the caller allows coarser float32 products, it is computed in float64, which takes longer:
    torch controls the precision only by a setting that all threads share.
    """
    if torch.get_float32_matmul_precision() == "highest":
        torch.mm(queries, keys.T, out=out)
        return
    wide = queries.double()
    for start in range(0, len(keys), COLUMNS):
        part = slice(start, start + COLUMNS)
        out[:, part] = wide @ keys[part].double().T


def _matrix(name: str, rows: Any) -> Tensor:
    """An array or tensor (n, d) of floats as a tensor that shares its memory."""
    if not isinstance(rows, Tensor):
        rows = torch.from_numpy(np.ascontiguousarray(number_array(name, rows)))
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise DataError(f"{name} must be of shape (rows, columns), got {tuple(rows.shape)}.")
    tensor: Tensor = rows.detach()
    return tensor


def _unit(rows: Tensor, device: torch.device, name: str, first: int) -> Tensor:
    """Rows of length one in float32 on `device`; `first` is the number of their first row."""
    rows = rows.to(device, torch.float32)
    lengths = rows.norm(dim=1, keepdim=True)
    require_directions(lengths, name, first)
    return rows.div(lengths)
