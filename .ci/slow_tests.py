"""Write tests/slow_tests.txt from the times of a whole run: what `make test` leaves out.

    make test-all PYTEST_ARGS=--junitxml=times.xml
    .venv/bin/python .ci/slow_tests.py times.xml --seconds 300

Run it on a quiet machine. The longest tests are left out until the others take at most this many
seconds together (on two cores half as long). Tests that their files mark as slow do not count.
"""

import argparse
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "slow_tests.txt"


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


def main() -> None:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    asked = parser.parse_args()
    taken = {name: t for name, t in times(asked.report).items() if not is_marked(name)}
    left, slow = sum(taken.values()), []
    for name in sorted(taken, key=lambda name: -taken[name]):
        if left <= asked.seconds:
            break
        left -= taken[name]
        slow.append(name)
    LIST.write_text("".join(f"{name}\n" for name in sorted(slow)))
    print(f"{len(slow)} of {len(taken)} tests are slow; the others take {left:.0f} s.")


if __name__ == "__main__":
    main()
