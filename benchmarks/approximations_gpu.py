"""Seconds of every approximation of the posterior at ImageNet 16-shot size, beside the paper's.

    PYTHONPATH=src python3 benchmarks/approximations_gpu.py

needs torch and numpy alone. Synthetic unit features, so times and never accuracies. *Training-free*
is a fit and the logits of 50,000 queries, by mean and variance; *trained* is a step of GPCache-F,
times the steps of 20 epochs. Each is held against the formulas read literally (explicit inverses, a
Python loop over groups, autograd) in the same run. ``--small`` is a small problem, to show that it
runs. Writes approximations.json into the folder $OUT if that is set; ``--from FILE`` makes of it
a section of docs/results/paper.md.
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
from literal import ALPHA, BETA, ETA, NOISE, groups_of, naive_logits, our_logits
from measuring import milliseconds, name_of
from pages import keep, table, write_page
from torch import Tensor

from gpcache.benchmark.published import published
from gpcache.gp import PRECISIONS
from gpcache.gp.fusion import fuse
from gpcache.gp.kernels import unit_rows
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


@dataclass(frozen=True)
class Problem:
    """Keys (n, d) with labels and values, a batch of queries to train on, and many to answer."""

    keys: Tensor
    labels: Tensor
    values: Tensor
    batch: Tensor
    targets: Tensor
    text: Tensor
    queries: Tensor

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.values.shape[1]


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


def problem(device: torch.device, *, small: bool) -> Problem:
    """Unit features around class centres, as far apart as photos of a class are."""
    classes, shots, width, batch, asked = (
        (64, 4, 64, 32, 500) if small else (1000, 16, 1024, 256, 50_000)
    )
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator).to(device)

    labels = torch.arange(classes).repeat_interleave(shots).to(device)
    centres = drawn(classes)
    keys = unit_rows(centres[labels] + 3 * drawn(len(labels)))
    rows = torch.randperm(len(labels), generator=generator)[:batch].to(device)
    views = unit_rows(keys[rows] + 0.3 * unit_rows(drawn(batch)))
    asked_of = torch.randint(classes, (asked,), generator=generator).to(device)
    return Problem(
        keys=keys,
        labels=labels,
        values=torch.nn.functional.one_hot(labels, classes).float(),
        batch=views,
        targets=labels[rows],
        text=100 * views @ unit_rows(centres).T,
        queries=unit_rows(centres[asked_of] + 3 * drawn(asked)),
    )


Logits = Callable[[Tensor, Tensor, Tensor], Tensor]  # keys, queries, text → logits


def library_logits(line: Line, task: Problem, plan: Any, *, gradient: bool = True) -> Logits:
    """The library's."""
    make = partial(PRECISIONS[line.precision], plan, precision_gradient=gradient)
    return lambda keys, queries, text: our_logits(make, keys, queries, task.values, text)


def literal_logits(line: Line, task: Problem, plan: Any) -> Logits:
    """The formulas as they stand."""
    if line.precision in ("nystrom", "fourier"):
        return lambda keys, queries, text: naive_low_rank(line, task, plan, keys, queries, text)
    every = torch.zeros(task.classes, dtype=torch.long, device=task.keys.device)
    if line.precision == "class_mean":
        own = torch.eye(task.classes, device=task.keys.device)
        groups = groups_of(every, torch.arange(task.classes, device=task.keys.device))

        def of_means(keys: Tensor, queries: Tensor, text: Tensor) -> Tensor:
            means = keys.view(task.classes, -1, keys.shape[1]).mean(1)
            return naive_logits(means, queries, own, text, groups)

        return of_means
    class_group = plan.class_group if line.precision == "grouped" else every
    groups = groups_of(class_group, task.labels)
    return lambda keys, queries, text: naive_logits(keys, queries, task.values, text, groups)


def naive_low_rank(
    line: Line, task: Problem, plan: Any, keys: Tensor, queries: Tensor, text: Tensor
) -> Tensor:
    """Woodbury with explicit inverses and the whole n × n precision, in float64 as ours."""
    keys, queries = (keys / keys.norm(dim=1, keepdim=True)).double(), queries.double()
    values = task.values.double()
    if line.precision == "nystrom":
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


def measured(line: Line, task: Problem) -> dict[str, Any]:
    """The times of a line: training-free in seconds, a training step in milliseconds."""
    device, kind = task.keys.device, PRECISIONS[line.precision]
    facts: dict[str, Any] = {"width": task.keys.shape[1], "dtype": task.keys.dtype} | line.options
    planned = partial(kind.plan, task.labels, task.classes, **facts)
    plan = planned()
    literal = literal_logits(line, task, plan)
    nothing = torch.zeros(len(task.queries), task.classes, device=device)

    def fit_and_answer() -> None:
        precision = kind(planned(), task.keys, task.values, beta=BETA, noise=NOISE)
        blocks = (one.split(QUERY_BLOCK) for one in (task.queries, nothing))
        for queries, text in zip(*blocks, strict=True):
            mean, variance = precision.posterior(queries)
            fuse(text, mean, precision.variance_of_classes(variance), alpha=ALPHA, eta=ETA)

    def step_of(logits: Logits) -> Callable[[], None]:
        keys = task.keys.clone().requires_grad_()
        optimiser = torch.optim.AdamW([keys], lr=1e-3, eps=1e-4)

        def step() -> None:
            answers = logits(keys, task.batch, task.text)
            loss = torch.nn.functional.cross_entropy(answers, task.targets)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

        return step

    with torch.no_grad():
        free = milliseconds(fit_and_answer, device, RUNS)
        naive_free = milliseconds(lambda: literal(task.keys, task.queries, nothing), device, RUNS)
        ours = library_logits(line, task, plan)(task.keys, task.batch, task.text)
        theirs = literal(task.keys, task.batch, task.text)
    error = float((ours - theirs).norm() / theirs.norm())
    if not error < TOLERANCE:
        raise SystemExit(f"{line.title}: ours and the literal formulas differ by {error:.0e}.")
    found = {"title": line.title, "row": line.row, "free_s": free / 1e3, "error": error}
    found["naive_free_s"] = naive_free / 1e3
    for name, logits in (
        ("step_ms", library_logits(line, task, plan)),
        ("nograd_step_ms", library_logits(line, task, plan, gradient=False)),
        ("naive_step_ms", literal),
    ):
        found[name] = milliseconds(step_of(logits), device, STEPS)
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
    task = problem(device, small=asked.small)
    result: dict[str, Any] = {
        "machine": name_of(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__, "steps": EPOCHS * -(-len(task.keys) // len(task.batch)),
        "n": len(task.keys), "d": task.keys.shape[1], "c": task.classes,
        "batch": len(task.batch), "queries": len(task.queries), "lines": [],
    }  # fmt: skip
    for line in lines_of(task.classes, small=asked.small):
        result["lines"].append(measured(line, task))
        print(json.dumps(result["lines"][-1]), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        keep("approximations.json", result)  # a run that is cut short keeps what it has
    print(report(result))


def make_page(result: dict[str, Any]) -> None:
    """Write the page of a result."""
    about = (
        f"Measured by `PYTHONPATH=src python3 benchmarks/approximations_gpu.py` on one "
        f"{result['machine']} with torch {result['torch']}: n = {result['n']:,}, d = "
        f"{result['d']:,}, c = {result['c']:,}, synthetic unit features of that shape, so times "
        f"and no accuracies. *free* is a fit and the logits of {result['queries']:,} queries, by "
        f"mean and variance, median of {RUNS}. *trained* is the median of {STEPS} "
        f"steps of {result['batch']} images, times the {result['steps']:,} steps of {EPOCHS} "
        "epochs, the last column without a gradient through the precision. *naive* is the same "
        "formulas read literally in the same run: explicit inverses, a Python loop over groups, "
        "autograd; answers agree to "
        f"{max(one['error'] for one in result['lines']):.0e}. Exact, Mean and groups are in "
        "float32, Nyström and Fourier in float64, ours and naive alike."
    )
    remark = (
        "The paper's seconds are those of its own program on an RTX 3090, with what else that "
        "program does (a search, features, an unknown number of epochs): they show its scale, not "
        "our speed. Its trained Nyström with more than c landmarks did not converge."
    )
    heading = "Approximations at ImageNet size: time"
    write_page("approximations-gpu", heading, about, report(result), remark)


if __name__ == "__main__":
    main()
