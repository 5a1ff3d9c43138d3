"""Seconds and memory of learning a similarity projection, against the number of images.

    PYTHONPATH=src python3 benchmarks/similarity_gpu.py
    python benchmarks/similarity_gpu.py --from cpu.json gpu.json    # the page, measured elsewhere

needs torch and numpy alone. Mining is timed by itself and then again as a part of learning. On a
GPU it writes the page; on a CPU it takes a small problem, to show that it runs, and
``--rows 10000 --dim 512`` is what two cores should do in five minutes. Writes similarity.json into
the folder $OUT if that is set.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from measuring import name_of, once
from pages import keep, table, write_page
from torch import Tensor

from gpcache.similarity import ProjectionOptions, contrastive_loss, learn_projection
from gpcache.similarity.contrast import nearest_sets
from gpcache.similarity.projection import change
from gpcache.support.devices import resolve_device

ROWS = {"cuda": [10_000, 50_000, 100_000, 500_000], "cpu": [2_000]}
DIM = {"cuda": 1_024, "cpu": 128}
HEAD = ("machine", "images", "columns", "steps", "mining s", "training s", "total s", "CPU s")
HEAD += ("ms a step", "TFLOP/s", "peak GB", "gradient error")
TEXT = """
Synthetic features in clusters, one view an image, and the paper's options: 128 neighbours, 256
anchors a step; 40 steps are one epoch of 10,000 images. **CPU s** are the seconds of
all threads together over mining and training, which a busy machine hardly changes. **TFLOP/s** are
the products of a step over its time, where every neighbour is projected for each anchor; a CPU
projects those that anchors share only once. **gradient error** is that of a step's gradient against
float64.
"""
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
    """The relative error of the float32 gradient by the matrix, against float64."""

    def gradient(dtype: torch.dtype) -> Tensor:
        matrix = torch.eye(original.shape[1], dtype=dtype, device=original.device)
        matrix.requires_grad_()
        first, second = (
            torch.nn.functional.normalize(rows[sets].to(dtype) @ matrix.mT, dim=-1)
            for rows in (views, original)
        )
        loss = contrastive_loss(first @ second.mT, temperature=temperature)
        return torch.autograd.grad(loss, matrix)[0].double()

    found, exact = gradient(torch.float32), gradient(torch.float64)
    return float((found - exact).norm() / exact.norm())


def measured(
    rows: int, dim: int, device: torch.device, options: ProjectionOptions
) -> dict[str, Any]:
    """One line of the table."""
    original, views = clustered(rows, dim, device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    mining, sets = once(lambda: nearest_sets(original, options.neighbours))
    error = gradient_error(original, views, sets[:PROBED], options.temperature)
    del sets
    worked = time.process_time()
    total, (projection, history) = once(
        lambda: learn_projection(original, views, options=options, device=device)
    )
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
        "cpu_s": None if on_gpu else time.process_time() - worked,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None,
        "gradient_error": error,
        "first_loss": history[0],
        "last_loss": history[-1],
        "change": change(projection, original[:PROBED].cpu()),
    }


def cells(machine: str, line: dict[str, Any]) -> list[str]:
    """A line as the page shows it; what a machine cannot say is a dash."""
    peak, worked = line["peak_gb"], line.get("cpu_s")
    return [
        machine,
        f"{line['rows']:,}",
        f"{line['dim']:,}",
        f"{line['steps']:,}",
        f"{line['mining_s']:.1f}",
        f"{line['training_s']:.1f}",
        f"{line['total_s']:.1f}",
        "–" if worked is None else f"{worked:.0f}",
        f"{line['ms_a_step']:.2f}",
        "–" if peak is None else f"{line['gflop_a_step'] / line['ms_a_step']:.0f}",
        "–" if peak is None else f"{peak:.1f}",
        f"{line['gradient_error']:.0e}",
    ]


def write_results(results: list[dict[str, Any]]) -> None:
    """The page of what was measured here or on other machines."""
    rows = [cells(result["machine"], line) for result in results for line in result["lines"]]
    heading = "How long a similarity projection takes to learn"
    write_page("similarity-speed", heading, TEXT, table([HEAD, *rows]))


def main() -> None:
    """Print the table, and write the page; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, nargs="*")
    parser.add_argument("--dim", type=int)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--from", dest="results", type=Path, nargs="+", metavar="JSON")
    asked = parser.parse_args()
    if asked.results:
        write_results([json.loads(place.read_text()) for place in asked.results])
        return
    device = resolve_device(asked.device)
    options = ProjectionOptions(epochs=asked.epochs)
    dim = asked.dim or DIM[device.type]
    machine = f"{torch.get_num_threads()} CPU threads"
    if device.type == "cuda":
        machine = name_of(device)
        learn_projection(*clustered(2_000, dim, device), options=ProjectionOptions(epochs=1))
    machine += f", torch {torch.__version__}"
    print(options)
    print(table([HEAD]), end="", flush=True)
    lines = []
    for rows in asked.rows or ROWS[device.type]:
        lines.append(measured(rows, dim, device, options))
        print("| " + " | ".join(cells(machine, lines[-1])) + " |", flush=True)
    result = {"machine": machine, "lines": lines}
    keep("similarity.json", result)
    if device.type == "cuda":
        write_results([result])


if __name__ == "__main__":
    main()
