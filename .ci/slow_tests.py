"""Write tests/slow_tests.txt from the times of a whole run: what `make test` leaves out.

    make test-all PYTEST_ARGS="--junitxml=times.xml --cov --cov-context=test"
    .venv/bin/python .ci/slow_tests.py times.xml --coverage .coverage --seconds 300

Run it on a quiet machine. The longest tests are left out until the others take at most this many
seconds together (on two cores half as long), apart from those that reach many lines that no fast
test reaches. Tests that their files mark as slow do not count.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "slow_tests.txt"
# A long test stays fast if it reaches at least so many further lines a second.
FEWEST_LINES = 3


def times(report: Path) -> dict[str, float]:
    """Test → seconds, its setup included."""
    found: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        last = next(i for i, part in enumerate(parts) if part.startswith("test_"))
        file = "/".join(parts[: last + 1]) + ".py"
        name = "::".join([file, *parts[last + 1 :], case.attrib["name"]])
        found[name] = found.get(name, 0.0) + float(case.attrib["time"])
    return found


def is_marked(name: str) -> bool:
    """Whether the whole file is slow, or the test needs a browser."""
    text = (ROOT / name.partition("::")[0]).read_text()
    return "pytest.mark.slow" in text or "chromium" in text.lower()


def slowest(order: list[str], taken: dict[str, float], seconds: float) -> set[str]:
    """The first tests of an order, until all others take at most so many seconds."""
    left, slow = sum(taken.values()), set()
    for name in order:
        if left <= seconds:
            break
        left -= taken[name]
        slow.add(name)
    return slow


def lines_of(coverage_file: Path, fast: set[str]) -> dict[str, set[tuple[str, int]]]:
    """Slow test → the lines that neither a fast test nor an import reaches."""
    found: dict[str, set[tuple[str, int]]] = defaultdict(set)
    data = CoverageData(str(coverage_file))
    data.read()
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            tests = {context.partition("|")[0] for context in contexts}
            for name in () if tests & {"", *fast} else tests:
                found[name].add((file, line))
    return found


def worth_their_time(lines: dict[str, set[tuple[str, int]]], taken: dict[str, float]) -> list[str]:
    """The tests that reach at least FEWEST_LINES further lines a second, the best first."""
    chosen: list[str] = []
    seen: set[tuple[str, int]] = set()
    while lines:
        gains = {name: len(reached - seen) / (taken[name] + 0.1) for name, reached in lines.items()}
        best = max(gains, key=gains.__getitem__)
        if gains[best] < FEWEST_LINES:
            break
        seen |= lines.pop(best)
        chosen.append(best)
    return chosen


def main() -> None:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--coverage", type=Path, help="made with --cov --cov-context=test")
    parser.add_argument("--seconds", type=float, default=300.0)
    asked = parser.parse_args()
    taken = {name: t for name, t in times(asked.report).items() if not is_marked(name)}
    order = sorted(taken, key=lambda name: -taken[name])
    kept: list[str] = []
    if asked.coverage:
        fast = taken.keys() - slowest(order, taken, asked.seconds)
        lines = lines_of(asked.coverage, fast)
        kept = worth_their_time({name: lines[name] for name in lines if name in taken}, taken)
    slow = slowest([name for name in order if name not in kept], taken, asked.seconds)
    left = sum(taken.values()) - sum(taken[name] for name in slow)
    LIST.write_text("".join(f"{name}\n" for name in sorted(slow)))
    print(f"{len(slow)} of {len(taken)} tests are slow; the others take {left:.0f} s.")


if __name__ == "__main__":
    main()
