"""Makes the result pages in docs/results, their index, and the table of the README.

    python benchmarks/results.py            # make results: render everything from rows and sections
    python benchmarks/results.py --run      # make results RUN=1: first run what is missing

A page is a template in text/pages, filled with rows (docs/results/rows, one file per spec) and with
sections that scripts for time and faults wrote (docs/results/sections). `--run` needs the data of
`prepare_data.py`; it goes on where it was stopped, and `--only NAME` runs one spec. `problems` says
where the pages are not those of the rows; a test asks it.
"""

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import result_rows
import row_files
from jinja2 import Environment, StrictUndefined
from pages import RESULTS, SECTIONS, TEXTS, section, text
from result_rows import SPECS, headline_csv, results

from gpcache.images.records import plural

ROOT = Path(__file__).resolve().parent.parent
RUNS, DATA = ROOT / "build" / "results", ROOT / "build" / "data"
# features.toml has no rows; similarity.toml needs projections, see its first lines.
RUN_BY_DEFAULT = sorted({path.stem for path in SPECS.glob("*.toml")} - {"features", "similarity"})
README = re.compile(r"(<!-- headline table: make results -->\n).*?(\n<!-- end of the h)", re.DOTALL)
NAMES = ("headline", "calibration", "paper", "photos", "training", "similarity", "speed", "faults")
TEMPLATES = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
TEMPLATES.globals |= vars(result_rows) | {"section": section, "text": text, "plural": plural}


def _page(name: str) -> tuple[str, str, list[str], list[str]]:
    """The heading of a page, its template, the specs of its rows, and its sections."""
    template = (TEXTS / "pages" / f"{name}.md").read_text(encoding="utf-8")
    found = (re.findall(rf'{kind}\("([\w-]+)"', template) for kind in ("results", "section"))
    specs, sections = (list(dict.fromkeys(names)) for names in found)
    return template.splitlines()[0].removeprefix("# "), template, specs, sections


PAGES = {name: _page(name) for name in NAMES}


def rendered(template: str, **values: object) -> str:
    """A template with its values; a table without lines was not run yet."""
    body = TEMPLATES.from_string(template).render(**values).strip() + "\n"
    return re.sub(r"(?m)^\|.*\n\|[-|]+\|\n(?!\|)", "Not run yet.\n", body)


def generated() -> dict[Path, str]:
    """Every generated file with its content."""
    files = {RESULTS / "headline.csv": headline_csv()}
    for name, (heading, template, specs, _) in PAGES.items():
        rows = {spec: "; ".join(results(spec).made_by) or "none yet" for spec in specs}
        made = " ".join(f"`{spec}.toml`: Rows: {versions}." for spec, versions in rows.items())
        start = f"# {heading}\n\nMade by `make results`.\n" + (f"\n{made}\n" if made else "")
        files[RESULTS / f"{name}.md"] = rendered(start + template.partition("\n")[2])
    index, readme = ((TEXTS / "pages" / f"{name}.md").read_text() for name in ("index", "README"))
    files[RESULTS / "index.md"] = rendered(index, pages=PAGES)
    place = ROOT / "README.md"
    renewed, found = README.subn(rf"\1\n{rendered(readme)}\2", place.read_text(encoding="utf-8"))
    if not found:
        sys.exit(f"README.md lacks the lines around its table: {README.pattern}")
    return files | {place: renewed}


def contradictions(folder: Path = row_files.ROWS) -> list[str]:
    """Cells that two specs show with different figures, and pages whose rows mix versions."""
    seen: dict[str, dict[str, str]] = defaultdict(dict)
    versions: dict[str, set[str]] = defaultdict(set)
    for file in sorted(folder.glob("*.csv")):
        for row in row_files.read(file):
            if row["status"] == "done":
                seen[row["key"]][file.stem] = f"{row['accuracy']} / {row['ece']}"
                versions[file.stem].add(row["version"])
    found = [
        f"{', '.join(specs)} show {' and '.join(sorted(set(specs.values())))} for the cell {key}"
        for key, specs in seen.items()
        if len(set(specs.values())) > 1
    ]
    for page, (_, _, specs, _) in PAGES.items():
        mixed = sorted(set().union(*(versions[spec] for spec in specs)))
        if len(mixed) > 1:
            found.append(f"{page}.md shows rows of the versions {' and '.join(mixed)}")
    return found


def problems() -> list[str]:
    """Why the pages are not those of the rows; none if they are."""
    files = generated()
    stale = [
        f"{path.relative_to(ROOT)} is not what `make results` writes: run it"
        for path, content in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != content
    ]
    known = {path.name for path in files} | {"rows", "sections"}
    known |= {f"{name}.json" for page in PAGES.values() for name in page[3]}
    extra = [
        f"{path.relative_to(ROOT)} is on no page, or no generated page"
        for path in sorted([*RESULTS.iterdir(), *SECTIONS.iterdir()])
        if path.name not in known and path.suffix != ".png"
    ]
    return stale + extra + contradictions()


def run(names: Iterable[str], jobs: int) -> None:
    """Run what is missing of the specs, and append the rows."""
    for name in names:
        command = [sys.executable, ROOT / "benchmarks/run_spec.py", SPECS / f"{name}.toml"]
        command += ["-o", RUNS, "--jobs", str(jobs), "--device", "cpu", "--root", DATA]
        subprocess.run(command, check=False)  # what failed has a row that says why
        if (RUNS / f"{name}.jsonl").exists():
            row_files.append([RUNS / f"{name}.jsonl"])


def main() -> None:
    """Run and render."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", nargs="*", default=RUN_BY_DEFAULT, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.run:
        run(options.only, options.jobs)
    for path, content in generated().items():
        path.write_text(content, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
