"""Seconds and memory of learning a similarity projection, against the number of images.

    PYTHONPATH=src python3 benchmarks/similarity_gpu.py

needs torch and numpy alone. Synthetic clustered features, the paper's options (r = 128, 256 anchors
a step, 10 epochs). Mining is timed by itself and then again as a part of learning. On a CPU it
takes a small problem, to show that it runs; ``--rows 10000 --dim 512`` is what two cores should do
in five minutes. Writes similarity.json into the folder $OUT if that is set.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor

from gpcache.devices import resolve_device
from gpcache.similarity import ProjectionOptions, contrastive_loss, learn_projection
from gpcache.similarity.mining import nearest_sets
from gpcache.similarity.projection import change

ROWS = {"cuda": [10_000, 50_000, 100_000, 500_000], "cpu": [2_000]}
DIM = {"cuda": 1_024, "cpu": 128}
CLUSTER = 200  # images of a kind: more than an anchor's neighbours
PROBED = 32  # anchors whose gradient is compared with that in float64


def clustered(rows: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Unit features (p, d) around shared centres, and a view of each that lies near it."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(count: int) -> Tensor:
        return torch.randn(count, dim, generator=generator, device=device)

    centres = drawn(max(1, rows // CLUSTER))
    kinds = torch.randint(len(centres), (rows,), generator=generator, device=device)
    original = torch.nn.functional.normalize(centres[kinds] + drawn(rows), dim=1)
    views = torch.nn.functional.normalize(original + 0.5 * drawn(rows) / dim**0.5, dim=1)
    return original, views


def gradient_error(original: Tensor, views: Tensor, sets: Tensor, temperature: float) -> float:
    """The relative error of the fast gradient by the matrix, against float64."""

    def gradient(dtype: torch.dtype) -> Tensor:
        matrix = torch.eye(original.shape[1], dtype=dtype, device=original.device)
        matrix.requires_grad_()
        first, second = (
            torch.nn.functional.normalize(rows[sets].to(dtype) @ matrix.mT, dim=-1)
            for rows in (views, original)
        )
        loss = contrastive_loss(first @ second.mT, temperature=temperature)
        return torch.autograd.grad(loss, matrix)[0].double()

    before = torch.get_float32_matmul_precision()
    if original.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    fast = gradient(torch.float32)
    torch.set_float32_matmul_precision(before)
    exact = gradient(torch.float64)
    return float((fast - exact).norm() / exact.norm())


def measured(
    rows: int, dim: int, device: torch.device, options: ProjectionOptions
) -> dict[str, float]:
    """One line of the table."""
    original, views = clustered(rows, dim, device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    sets = nearest_sets(original, options.neighbours)
    mining = time.perf_counter() - start
    error = gradient_error(original, views, sets[:PROBED], options.temperature)
    del sets
    start = time.perf_counter()
    projection, history = learn_projection(original, views, options=options, device=device)
    total = time.perf_counter() - start
    steps = options.epochs * -(-rows // options.batch_size)
    anchors, size = options.batch_size, options.neighbours
    work = 8 * anchors * size * dim**2 + 6 * anchors * size**2 * dim
    return {
        "rows": rows,
        "dim": dim,
        "mining_s": mining,
        "training_s": total - mining,
        "total_s": total,
        "steps": steps,
        "ms_a_step": 1e3 * (total - mining) / steps,
        "gflop_a_step": work / 1e9,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if on_gpu else float("nan"),
        "gradient_error": error,
        "first_loss": history[0],
        "last_loss": history[-1],
        "change": change(projection, original[:PROBED].cpu()),
    }


def main() -> None:
    """Print the table; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, nargs="*")
    parser.add_argument("--dim", type=int)
    parser.add_argument("--epochs", type=int, default=10)
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    options = ProjectionOptions(epochs=asked.epochs)
    dim = asked.dim or DIM[device.type]
    machine = f"{torch.get_num_threads()} CPU threads"
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
        learn_projection(*clustered(2_000, dim, device), options=ProjectionOptions(epochs=1))
    print(f"{machine}, torch {torch.__version__}; d = {dim}, {options}")
    print("| images | mining s | training s | total s | ms a step | peak GB | gradient error |")
    print("|---|---|---|---|---|---|---|", flush=True)
    lines = []
    for rows in asked.rows or ROWS[device.type]:
        line = measured(rows, dim, device, options)
        lines.append(line)
        print(
            f"| {rows:,} | {line['mining_s']:.1f} | {line['training_s']:.1f} "
            f"| {line['total_s']:.1f} | {line['ms_a_step']:.2f} | {line['peak_gb']:.1f} "
            f"| {line['gradient_error']:.0e} |",
            flush=True,
        )
    work = lines[-1]["gflop_a_step"]
    rate = work / lines[-1]["ms_a_step"]
    print(f"{work:.0f} GFLOP a step, {rate:.1f} TFLOP/s without what neighbours share.")
    if "OUT" in os.environ:
        place = Path(os.environ["OUT"]) / "similarity.json"
        place.write_text(json.dumps({"machine": machine, "lines": lines}, indent=1))


if __name__ == "__main__":
    main()
