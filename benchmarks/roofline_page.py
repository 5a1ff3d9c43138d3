"""The page of a roofline: one table, and what was promised."""

from __future__ import annotations

from typing import Any

from pages import table, text, write_page
from roofline_machine import Machine

Result = dict[str, Any]

HEAD = ["task", "size", "ours", "naive", "ratio", "floor", "bound by", "share of the floor"]
HEAD += ["differ by"]


def cells(line: dict[str, Any], machine: Machine) -> list[str]:
    """A line as the page shows it; what was not compared is a dash."""
    ours, naive, difference = (line[name] for name in ("ours", "naive", "difference"))
    floor, bound = machine.floor(line["operations"], line["bytes"], line["dtype"])
    apart = "–" if difference is None else f"{difference:.0e}"
    if "naive_difference" in line:
        apart += f" (naive {line['naive_difference']:.0e})"
    times = [duration(ours), duration(naive), f"{naive / ours:.3g}×", duration(floor)]
    return [line["name"], line["size"], *times, bound, f"{floor / ours:.1%}", apart]


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
    parts = [about, table([HEAD, *(cells(line, machine) for line in lines)])]
    promised = [line for line in lines if line["limit"] is not None]
    if promised:
        parts.append("## Promised\n\n" + promises(promised))
    parts += [text("roofline"), *([text("roofline-gpu")] if on_gpu else [])]
    write_page("roofline-gpu" if on_gpu else "roofline", "How near to the machine's limit", *parts)


def promises(lines: list[dict[str, Any]]) -> str:
    """Tasks with a time that they must keep."""
    rows = [["task", "size", "promised", "measured", "kept"]]
    for line in lines:
        kept = "yes" if line["ours"] <= line["limit"] else "no"
        times = [duration(line["limit"]), duration(line["ours"])]
        rows.append([line["name"], line["size"], *times, kept])
    return table(rows)
