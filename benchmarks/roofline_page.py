"""The page of a roofline: one table, what was promised, and where the time goes."""

from __future__ import annotations

from typing import Any

from pages import table, write_page
from roofline_machine import Machine, Spent

Result = dict[str, Any]

HEAD = ["task", "size", "ours", "naive", "ratio", "floor", "bound by", "share of the floor"]
HEAD += ["differ by"]
# What the tables cannot say of themselves.
REMARKS = """
**Floor**: the operations of a task over the measured rate of matrix products in its precision, or
the bytes that it must touch over the measured bandwidth, whichever is longer; the formulas stand
beside the tasks in `benchmarks/roofline_*.py`. An addition and a multiplication count as two, a
symmetric matrix as its half. **Share** is the floor over our time: 100 % is a program that does
nothing but products at full speed. **differ by** is the relative difference of both answers, where
they should be equal. Medians; what takes more than 8 s is run once.

What stands between a task and its floor: a factor and a triangular solve depend on themselves step
by step and reach a part of the rate of one large product; a symmetric matrix is computed and read
whole, because its half in one product has no faster routine; what is element by element (kernel,
fusion, softmax) moves each number once more through memory; small sizes wait for the start of each
operation, not for its work.
"""
ON_A_GPU = """
Of the exact step: the floor counts every product once at the rate of TF32, while the factor and the
Gram matrix take three such products for one, to keep the digits; the diagonal blocks of the factor
and their inverses (`linalg_cholesky_ex`, `linalg_solve_triangular`) are chains of small operations
that leave most of the device idle; kernel, its gradient and the copies of the n × n matrices
(`add`, `copy_`, part of everything else) are bound by memory. Of the search: a factor and the
inverse of its triangle in float32 for each of 220 places, products for the left-out means, and
fusion, which walks over all logits once for each α and η. Of one or a few queries: two triangular
solves are chains, where the naive way multiplies with an inverse that it was given.

How far the gradients of a step are from float64 is measured on a batch that has something to learn,
in [training](training.md).
"""


def cells(line: dict[str, Any], machine: Machine) -> list[str]:
    """A line as the page shows it; what was not measured is a dash."""
    ours, naive, difference = (line[name] for name in ("ours", "naive", "difference"))
    floor, bound = machine.floor(line["operations"], line["bytes"], line["dtype"])
    return [
        line["name"],
        line["size"],
        duration(ours),
        "–" if naive is None else duration(naive),
        "–" if naive is None else f"{naive / ours:.3g}×",
        duration(floor),
        bound,
        f"{floor / ours:.1%}",
        "–" if difference is None else f"{difference:.0e}",
    ]


def duration(seconds: float) -> str:
    """Three digits, in milliseconds or seconds."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def write_results(result: Result) -> None:
    """Write the page of what was measured."""
    machine = Machine(**result["machine"])
    on_gpu = machine.device == "cuda"
    peaks = ", ".join(f"{rate / 1e12:.3g} in {kind}" for kind, rate in machine.peaks.items())
    about = (
        f"Measured by `make {'bench-gpu' if on_gpu else 'bench'}` on {machine.name} with torch "
        f"{machine.version}. Products of matrices reach {peaks} (TFLOP/s), copies "
        f"{machine.bandwidth / 1e9:.3g} GB/s, read and written. Synthetic features, so times and "
        "never accuracies."
    )
    if result.get("runs", 1) > 1:
        about += f" Of {result['runs']} runs, the later ones for what they measured again."
    lines = result["lines"]
    parts = [about, table([HEAD, *(cells(line, machine) for line in lines)]), notes_of(result)]
    parts.append(slower(lines))
    promised = [line for line in lines if line["limit"] is not None]
    if promised:
        parts.append("## Promised\n\n" + promises(promised))
    for title, spent in result["spent"].items():
        parts.append(f"## Where the time goes: {title}\n\n" + spent_table(spent))
    name = "roofline-gpu" if on_gpu else "roofline"
    remarks = REMARKS + ON_A_GPU if on_gpu else REMARKS
    write_page(name, "How near to the machine's limit", *parts, remarks)


def notes_of(result: Result) -> str:
    """What must be known of the naive ways and of tasks that were left out, once each."""
    notes = dict.fromkeys(line["note"] for line in result["lines"] if line["note"])
    return "\n".join(f"- {note}" for note in [*notes, *filter(None, [result.get("skipped")])])


def slower(lines: list[dict[str, Any]]) -> str:
    """The tasks at which the naive way is faster, each with the reason."""
    rows = [["slower than naive", "size", "ratio", "reason"]]
    for line in lines:
        if line["naive"] is not None and line["naive"] < line["ours"]:
            ratio, reason = line["naive"] / line["ours"], line.get("reason") or "not known"
            rows.append([line["name"], line["size"], f"{ratio:.3g}×", reason])
    return table(rows) if len(rows) > 1 else "No task is slower than its naive way."


def promises(lines: list[dict[str, Any]]) -> str:
    """Tasks with a time that they must keep."""
    rows = [["task", "size", "promised", "measured", "kept"]]
    for line in lines:
        kept = "yes" if line["ours"] <= line["limit"] else "no"
        times = [duration(line["limit"]), duration(line["ours"])]
        rows.append([line["name"], line["size"], *times, kept])
    return table(rows)


def spent_table(spent: Spent) -> str:
    """Milliseconds of the parts, and their shares."""
    whole = sum(part for _, part in spent)
    rows = [["part", "ms", "share"]]
    rows += [[name, f"{part:.3g}", f"{part / whole:.0%}"] for name, part in spent]
    return table(rows)
