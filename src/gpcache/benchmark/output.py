"""Writes the tables and figures of a folder of results, and finds the specs of the paper."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpcache.benchmark.figures import figures_of, projection_figure, weights_figure
from gpcache.benchmark.rows import Row, read_rows
from gpcache.benchmark.spec import Spec, read_spec
from gpcache.benchmark.table_formats import Table
from gpcache.benchmark.tables import tables_of
from gpcache.benchmark.workers import DataSource
from gpcache.errors import DataError
from gpcache.model.report.drawing import Format, to_file
from gpcache.similarity.folder import load_projection
from gpcache.support.files import make_folder, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: tuple[Format, ...] = ("png", "svg")


def experiments_in(folder: str | Path) -> list[tuple[Spec, list[Row]]]:
    """The specs whose results are in a folder, with their rows."""
    experiments = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        if path.with_suffix(".toml").exists():
            spec = read_spec(path.with_suffix(".toml"))
            experiments.append((spec, read_rows(path.with_name(f"{spec.name}.jsonl"))))
    if not experiments:
        raise DataError(
            f"{str(folder)!r} holds no results: make some with 'gpcache benchmark SPEC.toml -o "
            f"{folder}'."
        )
    return experiments


def paper_specs() -> dict[str, Path]:
    """The experiments of the paper by name: shipped with the package, or in its repository."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "paper", here.parents[3] / "benchmarks" / "paper"):
        if specs := {path.stem: path for path in sorted(folder.glob("*.toml"))}:
            return specs
    raise DataError(f"The specs of the paper are missing: there is no {here.parent / 'paper'}.")


def write_tables(folder: str | Path, output: str | Path, command: str) -> list[Table]:
    """Write every table as Markdown, LaTeX and CSV; each page begins with the commands.

    `command` makes the tables; the rows hold the commands that made them.
    """
    written: list[Table] = []
    for spec, rows in experiments_in(folder):
        tables = tables_of(spec, rows)
        if not tables:
            continue
        place = make_folder(output)
        commands = [*dict.fromkeys(row["command"] for row in rows if row.get("command")), command]
        shell = "".join(f"{one}\n" for one in commands)
        body = "\n".join(table.markdown() for table in tables)
        page = f"# {spec.title}\n\nMade by\n\n```sh\n{shell}```\n\n{body}"
        write_atomic(place / f"{spec.name}.md", page.encode())
        comments = "".join(f"% {one}\n" for one in commands)
        latex = comments + "\n".join(table.latex() for table in tables)
        write_atomic(place / f"{spec.name}.tex", latex.encode())
        for table in tables:
            write_atomic(place / f"{table.name}.csv", table.csv().encode())
        written += tables
    if not written:
        raise DataError(
            f"No cell in {str(folder)!r} is done: run its spec again to see what fails."
        )
    return written


def write_figures(folder: str | Path, output: str | Path) -> list[Path]:
    """Write every figure that the results allow, as PNG and SVG."""
    experiments = experiments_in(folder)
    return [path for spec, rows in experiments for path in _write(figures_of(spec, rows), output)]


def write_drawing(
    spec: Spec, output: str | Path, *, root: Path | None, cache: Path, device: str = "auto"
) -> list[Path]:
    """Write the figure of a spec that needs no runs."""
    if spec.drawing == "weights":
        return _write([(spec.name, weights_figure())], output)
    if spec.projection is None or len(spec.datasets) != 1:
        raise DataError(
            f"The spec {spec.name!r} draws a projection: it needs the key projection and one data "
            "set."
        )
    encoder = spec.encoders[0] if spec.encoders else None
    source = DataSource(spec, encoder, root, cache, device)
    task = source.open(spec.datasets[0], encode_draws=False)
    place = spec.folder / spec.projection.replace("{encoder}", task.encoder_name)
    projection, facts = load_projection(place)
    if facts.fingerprint != task.fingerprint:
        raise DataError(f"The projection {str(place)!r} is of another encoder than the features.")
    return _write([(spec.name, projection_figure(task.test, projection))], output)


def _write(figures: Iterable[tuple[str, Figure]], output: str | Path) -> list[Path]:
    place = make_folder(output)
    written = []
    for name, figure in figures:
        for form in FORMATS:
            written.append(place / f"{name}.{form}")
            write_atomic(written[-1], to_file(figure, form))
    return written
