"""Seconds of every approximation of the posterior at ImageNet 16-shot size, beside the paper's.

    PYTHONPATH=src python3 benchmarks/approximations_gpu.py

needs torch, numpy, scikit-learn and tqdm. Synthetic unit features, so times and never accuracies.
*Training-free* is a fit and the logits of 50,000 queries, by mean and variance; *trained* is a step
of GPCache-F, times the steps of 20 epochs. Each is held against the formulas read literally
(explicit inverses, a Python loop over groups, autograd) in the same run. Writes
approximations.json into the folder $OUT if that is set; ``--from FILE`` makes of it a section of
docs/results/paper.md.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch
from literal import Logits, Rows, gradient, maker, naive_way, our_logits
from measuring import Asked, Row, measured_rows, median, name_of
from pages import table, text, write_page

from gpcache.benchmark.published import published
from gpcache.support.devices import resolve_device

N, BATCH, QUERIES, EPOCHS, STEPS, RUNS = 16_000, 256, 50_000, 20, 20, 3
# What both ways of computing may differ by: float32 against float64, a factor against an inverse.
TOLERANCE = 0.02
HEAD = ["", "free s", "naive s", "faster by", "paper's s", "trained s", "naive s", "faster by"]
HEAD += ["paper's s", "without precision gradient s", "paper's s"]


# The lines of the published table: titles, their rows there, and the options of a plan.
LINES: list[tuple[str, str, dict[str, int]]] = [("exact", "exact", {}), ("Mean", "class mean", {})]
for times, size in ((1, "c"), (2, "2c"), (4, "4c")):
    LINES += [(f"Nyström, L = {size}", f"nystrom L={size}", {"n_landmarks": times})]
for count in (256, 512, 1024, 2048, 4096):
    LINES += [(f"Fourier, D = {count}", f"fourier D={count}", {"n_features": count})]
LINES += [(f"{g} groups", f"grouped g={g}", {"n_groups": g}) for g in (8, 16, 32, 64)]


def measure(_asked: Asked) -> Iterator[Row]:
    """The times of each line: training-free in seconds, a training step in milliseconds."""
    device, no_grad = resolve_device("auto"), torch.no_grad()
    rows = Rows(N, device)
    (_, given, targets), queries = rows.batch(BATCH), rows.queries(QUERIES)
    free = rows.keys, queries, rows.values, queries.new_zeros(QUERIES, rows.c)
    facts = {"machine": name_of(device), "torch": torch.__version__, "n": N, "d": rows.d}
    facts |= {"c": rows.c, "batch": BATCH, "queries": QUERIES, "steps": EPOCHS * -(-N // BATCH)}

    def step_ms(logits: Logits) -> float:
        keys = rows.keys.clone().requires_grad_()
        optimiser = torch.optim.AdamW([keys], lr=1e-3, eps=1e-4)

        def step() -> None:
            keys.grad = gradient(logits, rows.dtype, targets, keys, *given[1:])
            optimiser.step()

        return 1e3 * median(step, device, STEPS)[0]

    for title, row, options in LINES:
        kind = "class_mean" if row == "class mean" else row.split()[0]
        options = {key: one * rows.c if kind == "nystrom" else one for key, one in options.items()}
        planned = partial(maker, kind, rows, **options)
        make = planned()
        ours, naive = partial(our_logits, make), naive_way(kind, rows, *make.args)
        expected = no_grad(naive)(*given)
        error = float((no_grad(ours)(*given) - expected).norm() / expected.norm())
        if not error < TOLERANCE:
            raise SystemExit(f"{title}: ours and the literal formulas differ by {error:.0e}.")
        fit_and_answer = no_grad(lambda planned=planned: our_logits(planned(), *free))
        found = {"title": title, "row": row, "error": error, "step_ms": step_ms(ours)}
        found["free_s"] = median(fit_and_answer, device, RUNS)[0]
        found["naive_free_s"] = median(no_grad(partial(naive, *free)), device, RUNS)[0]
        fixed = partial(our_logits, partial(make, precision_gradient=False))
        yield facts | found | {"nograd_step_ms": step_ms(fixed), "naive_step_ms": step_ms(naive)}


def cells(one: Row) -> list[str]:
    """A line of the table: our seconds, the literal formulas', and the published ones."""
    paper = published("approximations")

    def of_paper(row: str, column: str) -> str:
        value = paper.value(row, f"{column} seconds")
        return "–" if value is None else f"{value:g}"

    def compared(ours: float, naive: float, digits: int, column: str) -> list[str]:
        times = [f"{ours:.{digits}f}", f"{naive:.{digits}f}", f"{naive / ours:.1f}×"]
        return [*times, of_paper(one["row"], column)]

    names = ("step_ms", "naive_step_ms", "nograd_step_ms")
    trained, naive, nograd = (one["steps"] / 1e3 * one[name] for name in names)
    free = compared(one["free_s"], one["naive_free_s"], 2, "training-free")
    last = [f"{nograd:.1f}", of_paper(f"{one['row']} nograd", "trained")]
    return [one["title"], *free, *compared(trained, naive, 1, "trained"), *last]


def main() -> None:
    """Measure, or take the rows of a file, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    _, rows = measured_rows(parser, "approximations.json", measure)
    counts = {"runs": RUNS, "timed": STEPS, "epochs": EPOCHS}
    about = text(
        "approximations", **rows[0] | counts | {"error": max(one["error"] for one in rows)}
    )
    heading, after = "Approximations at ImageNet size: time", text("approximations-paper")
    write_page("approximations-gpu", heading, about, table([HEAD, *map(cells, rows)]), after)


if __name__ == "__main__":
    main()
