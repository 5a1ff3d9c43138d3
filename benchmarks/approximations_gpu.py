"""Seconds of every approximation of the posterior at ImageNet 16-shot size, beside the paper's.

    PYTHONPATH=src python3 benchmarks/approximations_gpu.py

needs torch, numpy, scikit-learn and tqdm. Synthetic unit features, so times and never accuracies.
*Training-free* is a fit and the logits of 50,000 queries, by mean and variance; *trained* is a step
of GPCache-F, times the steps of 20 epochs. Each is held against the formulas read literally
(explicit inverses, a Python loop over groups, autograd) in the same run. ``--small`` is a small
problem, to show that it runs. Writes approximations.json into the folder $OUT if that is set;
``--from FILE`` makes of it a section of docs/results/paper.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from literal import ALPHA, BETA, ETA, NOISE, Logits, groups_of, naive_logits, our_logits
from measuring import milliseconds, name_of
from pages import keep, table, text, write_page
from roofline_posterior import Rows
from roofline_training import Step
from torch import Tensor

from gpcache.benchmark.published import published
from gpcache.gp import PRECISIONS
from gpcache.gp.fusion import fuse
from gpcache.support.devices import resolve_device

EPOCHS, STEPS, RUNS = 20, 20, 3
QUERY_BLOCK = 8192
# What both ways of computing may differ by: float32 against float64, a factor against an inverse.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Line:
    """One approximation: its row in the published table, and the options of its plan."""

    title: str
    row: str
    precision: str
    options: dict[str, int] = field(default_factory=dict)


def lines_of(classes: int, *, small: bool) -> list[Line]:
    """The lines of the published table, and the exact posterior."""
    lines = [Line("exact", "exact", "exact"), Line("Mean", "class mean", "class_mean")]
    for times in (1, 2, 4):
        size = f"{times if times > 1 else ''}c"
        options = {"n_landmarks": times * classes}
        lines.append(Line(f"Nyström, L = {size}", f"nystrom L={size}", "nystrom", options))
    sizes, groups = (16, 32) if small else (256, 512, 1024, 2048, 4096), (8, 16, 32, 64)
    lines += [
        Line(f"Fourier, D = {d}", f"fourier D={d}", "fourier", {"n_features": d}) for d in sizes
    ]
    return lines + [
        Line(f"{g} groups", f"grouped g={g}", "grouped", {"n_groups": g}) for g in groups
    ]


def library_logits(line: Line, plan: Any, *, gradient: bool = True) -> Logits:
    """The library's."""
    make = partial(PRECISIONS[line.precision], plan, precision_gradient=gradient)
    return partial(our_logits, make)


def literal_logits(line: Line, rows: Rows, plan: Any) -> Logits:
    """The formulas as they stand."""
    if line.precision in ("nystrom", "fourier"):
        return partial(naive_low_rank, line.precision, plan)
    every = torch.zeros(rows.classes, dtype=torch.long, device=rows.device)
    if line.precision == "class_mean":
        own = torch.eye(rows.classes, dtype=rows.dtype, device=rows.device)
        groups = groups_of(every, torch.arange(rows.classes, device=rows.device))

        def of_means(keys: Tensor, queries: Tensor, _values: Tensor, text: Tensor) -> Tensor:
            means = keys.view(rows.classes, -1, rows.width).mean(1)
            return naive_logits(means, queries, own, text, groups)

        return of_means
    class_group = plan.class_group if line.precision == "grouped" else every
    return partial(naive_logits, groups=groups_of(class_group, rows.labels))


def naive_low_rank(
    kind: str, plan: Any, keys: Tensor, queries: Tensor, values: Tensor, text: Tensor
) -> Tensor:
    """Woodbury with explicit inverses and the whole n × n precision, in float64 as ours."""
    keys = (keys / keys.norm(dim=1, keepdim=True)).double()
    queries, values = queries.double(), values.double()
    if kind == "nystrom":
        landmarks = keys[plan.rows]
        u, near = (torch.exp(-BETA * (1 - x @ landmarks.T)) for x in (keys, queries))
        core = torch.exp(-BETA * (1 - landmarks @ landmarks.T))
        core = core + 1e-8 * torch.eye(len(core), device=keys.device, dtype=keys.dtype)
    else:
        phases = [x @ (BETA**0.5 * plan.draws) for x in (keys, queries)]
        half = plan.draws.shape[1]
        u, near = (torch.cat([x.cos(), x.sin()], 1) / half**0.5 for x in phases)
        core = torch.eye(2 * half, device=keys.device, dtype=keys.dtype)
    inverse = torch.linalg.inv(NOISE * core + u.T @ u)
    eye = torch.eye(len(keys), device=keys.device, dtype=keys.dtype)
    precision = (eye - u @ inverse @ u.T) / NOISE
    mean = torch.exp(-BETA * (1 - queries @ keys.T)) @ precision @ values
    explained = (near @ torch.linalg.inv(core) * near).sum(1, keepdim=True)
    variance = 1 - explained + NOISE * (near @ inverse * near).sum(1, keepdim=True)
    return (text + ALPHA * mean / variance.clamp(min=1e-6) ** ETA).float()


def measured(line: Line, task: Step, queries: Tensor) -> dict[str, Any]:
    """The times of a line: training-free in seconds, a training step in milliseconds."""
    rows, kind = task.rows, PRECISIONS[line.precision]
    facts: dict[str, Any] = {"width": rows.width, "dtype": rows.dtype} | line.options
    planned = partial(kind.plan, rows.labels, rows.classes, **facts)
    plan = planned()
    literal = literal_logits(line, rows, plan)
    nothing = queries.new_zeros(len(queries), rows.classes)

    def fit_and_answer() -> None:
        precision = kind(planned(), rows.keys, rows.values, beta=BETA, noise=NOISE)
        blocks = (one.split(QUERY_BLOCK) for one in (queries, nothing))
        for some, zero_shot in zip(*blocks, strict=True):
            mean, variance = precision.posterior(some)
            fuse(zero_shot, mean, precision.variance_of_classes(variance), alpha=ALPHA, eta=ETA)

    def step_of(logits: Logits) -> Callable[[], None]:
        keys = rows.keys.clone().requires_grad_()
        optimiser = torch.optim.AdamW([keys], lr=1e-3, eps=1e-4)

        def step() -> None:
            answers = logits(keys, *task.given[1:])
            loss = torch.nn.functional.cross_entropy(answers, task.targets)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

        return step

    with torch.no_grad():
        free = milliseconds(fit_and_answer, rows.device, RUNS)
        naive = partial(literal, rows.keys, queries, rows.values, nothing)
        naive_free = milliseconds(naive, rows.device, RUNS)
        ours, theirs = library_logits(line, plan)(*task.given), literal(*task.given)
    error = float((ours - theirs).norm() / theirs.norm())
    if not error < TOLERANCE:
        raise SystemExit(f"{line.title}: ours and the literal formulas differ by {error:.0e}.")
    found = {"title": line.title, "row": line.row, "free_s": free / 1e3, "error": error}
    found["naive_free_s"] = naive_free / 1e3
    for name, logits in (
        ("step_ms", library_logits(line, plan)),
        ("nograd_step_ms", library_logits(line, plan, gradient=False)),
        ("naive_step_ms", literal),
    ):
        found[name] = milliseconds(step_of(logits), rows.device, STEPS)
    return found


def report(result: dict[str, Any]) -> str:
    """The Markdown table: our seconds, the literal formulas', and the published ones."""
    paper = published("approximations")

    def of_paper(row: str, column: str) -> str:
        value = paper.value(row, f"{column} seconds")
        return "–" if value is None else f"{value:g}"

    head = ["", "free s", "naive s", "faster by", "paper's s"]
    head += ["trained s", "naive s", "faster by", "paper's s", "without precision gradient s"]
    rows: list[list[object]] = [[*head, "paper's s"]]
    for one in result["lines"]:
        ours, naive = one["free_s"], one["naive_free_s"]
        free = [f"{ours:.2f}", f"{naive:.2f}", f"{naive / ours:.1f}×"]
        free.append(of_paper(one["row"], "training-free"))
        names = ("step_ms", "naive_step_ms", "nograd_step_ms")
        ours, naive, nograd = (result["steps"] / 1e3 * one[name] for name in names)
        trained = [f"{ours:.1f}", f"{naive:.1f}", f"{naive / ours:.1f}×"]
        trained += [of_paper(one["row"], "trained"), f"{nograd:.1f}"]
        last = of_paper(f"{one['row']} nograd", "trained")
        rows.append([one["title"], *free, *trained, last])
    return table(rows)


def main() -> None:
    """Measure and print, or make the page; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--from", dest="file", type=Path, help="an approximations.json")
    asked = parser.parse_args()
    if asked.file:
        make_page(json.loads(asked.file.read_text()))
        return
    device = resolve_device("auto")
    n, width, batch, count = (1024, 64, 32, 500) if asked.small else (16_000, 1024, 256, 50_000)
    rows = Rows(n, width, device)
    task, queries = Step(rows, batch), rows.queries(count)
    result: dict[str, Any] = {
        "machine": name_of(device), "torch": torch.__version__, "steps": EPOCHS * -(-n // batch),
        "n": n, "d": width, "c": rows.classes, "batch": batch, "queries": count, "lines": [],
    }  # fmt: skip
    for line in lines_of(rows.classes, small=asked.small):
        result["lines"].append(measured(line, task, queries))
        print(json.dumps(result["lines"][-1]), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        keep("approximations.json", result)  # a run that is cut short keeps what it has
    print(report(result))


def make_page(result: dict[str, Any]) -> None:
    """Write the page of a result."""
    error = max(one["error"] for one in result["lines"])
    counts = {"runs": RUNS, "timed": STEPS, "epochs": EPOCHS, "error": error}
    about = text("approximations", **result, **counts)
    heading = "Approximations at ImageNet size: time"
    write_page("approximations-gpu", heading, about, report(result), text("approximations-paper"))


if __name__ == "__main__":
    main()
