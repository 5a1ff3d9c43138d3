"""Seconds of an exact search for nearest neighbours, beside the obvious way, in one run.

    PYTHONPATH=src python3 benchmarks/neighbors.py --device cuda

Every row of a random set looks for its neighbours in that set. *Obvious way*: the product of a
chunk of rows with all keys, then torch.topk over whole rows, all in float32. Both answers are
compared: the similarities must agree.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch
from measuring import once
from torch import Tensor

from gpcache.features.neighbors import nearest
from gpcache.support.devices import resolve_device

# The sizes that a user meets: photos on a laptop, and a similarity projection on a GPU.
SIZES = {"cpu": (50_000, 512), "cuda": (500_000, 1_024)}
NAIVE_CHUNK_BYTES = 2**30


def naive(rows: Tensor, k: int) -> Tensor:
    """The k highest similarities of each row (n, k), whole rows of them at a time."""
    chunk = max(1, NAIVE_CHUNK_BYTES // (4 * len(rows)))
    return torch.cat([(part @ rows.T).topk(k).values.cpu() for part in rows.split(chunk)])


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, help="default: 500,000 on a GPU, 50,000 on a CPU")
    parser.add_argument("--dim", type=int, help="default: 1,024 on a GPU, 512 on a CPU")
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--naive", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    asked = options()
    device = resolve_device(asked.device)
    default_rows, default_dim = SIZES.get(device.type, SIZES["cpu"])
    n, dim = asked.rows or default_rows, asked.dim or default_dim
    k = min(asked.k, n)
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=1)
    machine = f"{os.cpu_count()} CPU cores"
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
        rows = rows.to(device)
    nearest(rows[:4096], rows, k, device=device)  # warm up threads, kernels and the allocator
    seconds, found = once(lambda: nearest(rows, k=k, device=device))
    ratio, obvious = "–", "–"
    if asked.naive:
        naive(rows[:4096], min(k, 4096))
        naive_seconds, expected = once(lambda: naive(rows, k))
        np.testing.assert_allclose(found[1], expected.numpy(), atol=1e-5)  # type: ignore[index, attr-defined]
        ratio, obvious = f"{naive_seconds / seconds:.2f}×", f"{naive_seconds:.1f}"
    print("| rows | columns | k | device | seconds | obvious way s | faster by |")
    print("|---|---|---|---|---|---|---|")
    print(f"| {n:,} | {dim:,} | {k} | {machine} | {seconds:.1f} | {obvious} | {ratio} |")


if __name__ == "__main__":
    main()
