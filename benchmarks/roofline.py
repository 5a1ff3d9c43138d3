"""How near every hot path comes to the limit of the machine.

    make bench        # the CPU: a section of docs/results/speed.md
    make bench-gpu    # a GPU: needs torch, numpy, scikit-learn and tqdm alone

measures the machine (matrix products in each precision, a large copy), then each task beside the
obvious way to do it: ours, naive, their ratio, the floor and the share of the floor that is
reached. The floor is what no program can undercut here: the operations of a task over the measured
rate of matrix products, or the bytes it must touch over the measured bandwidth, whichever is
longer. Features are synthetic: times, and never accuracies. ``--only fit search`` runs some groups
of tasks, ``--rows 320`` gives every task as many rows; both write no page. Writes roofline.json
into the folder $OUT if that is set; ``--from FILE …`` makes the page of such files.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from measuring import RUNS, Asked, Device, Row, least, measured_rows, median, name_of
from pages import table, text, write_page
from roofline_tasks import GROUPS, Rows, Task
from torch import Tensor

from gpcache.support.devices import resolve_device

HEADING = "How near to the machine's limit"
HEAD = "task", "size", "ours", "naive", "ratio", "floor", "bound by", "share of the floor"
# Promised seconds: the device, how a task is called, a part of its size, and the limit.
PROMISED = (
    ("cpu", "default fit", "n = 160,", 0.1),
    ("cpu", "one query", "n = 1,600,", 5e-3),
    ("cuda", "prediction", "n = 16,000, c = 1,000, d = 1,024; 50,000 queries", 3.0),
    ("cuda", "GPCache-F step, exact", "", 60e-3),
    ("cuda", "GPCache-F training", "", 90.0),
    ("cuda", "exact four-parameter search", "", 60.0),
)


def rates(device: Device) -> dict[str, float]:
    """Operations a second by precision, and bytes a second: the best of large products and copies.

    Other work can only slow them down.
    """
    on_gpu, found = device.type == "cuda", {}
    n, before = 8192 if on_gpu else 2048, torch.get_float32_matmul_precision()
    for kind in ("float32", "tf32") if on_gpu else ("float64", "float32"):
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        dtype = torch.float64 if kind == "float64" else torch.float32
        one, out = torch.randn(2, n, n, dtype=dtype, device=device)
        found[kind] = 2 * n**3 / least(partial(torch.mm, one, one, out=out), RUNS, device=device)
    torch.set_float32_matmul_precision(before)
    source, target = torch.randn(2, 2**30 if on_gpu else 2**26, device=device)
    found["bytes"] = 2 * source.nbytes / least(lambda: target.copy_(source), RUNS, device=device)
    return found


def difference(answer: object, expected: object) -> float | None:
    """‖ours − expected‖ / ‖expected‖ of two tensors, over the rows that are expected."""
    if not isinstance(answer, Tensor) or not isinstance(expected, Tensor):
        return None
    mine, theirs = answer[: len(expected)].double().cpu(), expected.double().cpu()
    return float((mine - theirs).norm() / theirs.norm())


def measured(task: Task, device: Device) -> Row:
    """What is measured of a task, in seconds; the difference of the answers is relative."""
    ours, answer = median(task.ours, device)
    naive, expected = median(task.naive, device)
    exact = task.exact() if task.exact else expected
    row = {name: getattr(task, name) for name in ("name", "size", "dtype")}
    row["bytes"] = task.least[1] * (8 if task.dtype == "float64" else 4)
    row |= {"operations": task.least[0], "ours": ours, "naive": naive * task.naive_parts}
    row |= {"difference": difference(answer, exact)}
    return row | ({"naive_difference": difference(expected, exact)} if task.exact else {})


def measure(asked: Asked) -> Iterator[Row]:
    """A row of each task, between two of the machine: others may take a part of it for a while."""
    device = resolve_device(asked.device)
    machine = {"machine": name_of(device), "device": device.type, "version": torch.__version__}
    yield machine | {"rates": rates(device)}
    for makers, *sizes in map(GROUPS.get, asked.only):
        for n in [asked.rows] if asked.rows else sizes[device.type == "cuda"]:
            for task in (task for make in makers for task in make(Rows(n, device))):
                yield measured(task, device)
    yield machine | {"rates": rates(device)}


def duration(seconds: float) -> str:
    """Three digits, in milliseconds or seconds."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def cells(row: Row, peak: dict[str, float]) -> list[str]:
    """A row as the page shows it; what was not compared is a dash."""
    ours, naive, apart = (row[name] for name in ("ours", "naive", "difference"))
    computing, moving = row["operations"] / peak[row["dtype"]], row["bytes"] / peak["bytes"]
    floor, bound = max((computing, "operations"), (moving, "memory"))
    digits = "–" if apart is None else f"{apart:.0e}"
    if "naive_difference" in row:
        digits += f" (naive {row['naive_difference']:.0e})"
    times = [duration(ours), duration(naive), f"{naive / ours:.3g}×", duration(floor)]
    return [row["name"], row["size"], *times, bound, f"{floor / ours:.1%}", digits]


def promises(rows: list[Row], device: str) -> Iterator[list[Any]]:
    """Tasks with a time that they must keep."""
    for row in rows:
        for name, part, limit in (one[1:] for one in PROMISED if one[0] == device):
            if row["name"].startswith(name) and part in row["size"]:
                times = duration(limit), duration(row["ours"])
                yield [row["name"], row["size"], *times, "yes" if row["ours"] <= limit else "no"]


def main() -> None:
    """Measure and write the page, or make the page of files; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--rows", type=int, help="how many rows every task has")
    asked, found = measured_rows(parser, "roofline.json", measure)
    machines = [row for row in found if "rates" in row]
    peak = {kind: max(one["rates"][kind] for one in machines) for kind in machines[0]["rates"]}
    # A later run counts where tasks are the same.
    rows = list({(row["name"], row["size"]): row for row in found if "name" in row}.values())
    parts = [table([[*HEAD, "differ by"], *(cells(row, peak) for row in rows)])]
    if promised := list(promises(rows, machines[0]["device"])):
        head = ["task", "size", "promised", "measured", "kept"]
        parts += ["## Promised\n\n" + table([head, *promised])]
    if asked.rows or asked.only != list(GROUPS):
        print(*parts, sep="\n")
        return
    on_gpu = machines[0]["device"] == "cuda"
    products = (f"{rate / 1e12:.3g} in {kind}" for kind, rate in peak.items() if kind != "bytes")
    facts = {"machine": machines[0]["machine"], "torch": machines[0]["version"]}
    facts |= {"command": "bench-gpu" if on_gpu else "bench", "products": ", ".join(products)}
    about = text("roofline-machine", **facts, copies=peak["bytes"] / 1e9)
    if len(asked.files or ()) > 1:
        about += f" Of {len(asked.files)} runs, the later ones for what they measured again."
    parts += [text("roofline"), *([text("roofline-gpu")] if on_gpu else [])]
    write_page("roofline-gpu" if on_gpu else "roofline", HEADING, about, *parts)


if __name__ == "__main__":
    main()
