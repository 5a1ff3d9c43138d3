"""From a folder of results to files: tables in three formats, figures in two, the paper's specs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpcache.benchmark import drawings
from gpcache.benchmark.figures import figures_of
from gpcache.benchmark.markup import Table
from gpcache.benchmark.results import read_rows
from gpcache.benchmark.spec import Spec, read_spec
from gpcache.benchmark.tables import tables_of
from gpcache.benchmark.tasks import open_task
from gpcache.encoders import load_encoder
from gpcache.errors import DataError
from gpcache.model.report.drawing import Format, to_file
from gpcache.similarity.folder import load_projection
from gpcache.support.files import make_folder, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: tuple[Format, ...] = ("png", "svg")
_SPECS = "paper"


def experiments_in(folder: str | Path) -> list[Spec]:
    """The specs whose results lie in a folder."""
    places = (path.with_suffix(".toml") for path in sorted(Path(folder).glob("*.jsonl")))
    specs = [read_spec(path) for path in places if path.exists()]
    if not specs:
        raise DataError(
            f"{str(folder)!r} holds no results: make some with 'gpcache benchmark SPEC.toml -o "
            f"{folder}'."
        )
    return specs


def paper_specs() -> dict[str, Path]:
    """The experiments of the paper by name: shipped with the package, or in its repository."""
    here = Path(__file__).resolve()
    for folder in (here.parent / _SPECS, here.parents[3] / "benchmarks" / _SPECS):
        if found := {path.stem: path for path in sorted(folder.glob("*.toml"))}:
            return found
    raise DataError(f"The specs of the paper are not there: {here.parent / _SPECS} is missing.")


def write_tables(folder: str | Path, output: str | Path, command: str) -> list[Table]:
    """Write every table as Markdown, LaTeX and CSV; each page begins with what made it.

    `command` is what makes the tables; the rows say by which commands they were made.
    """
    written: list[Table] = []
    for spec in experiments_in(folder):
        rows = read_rows(Path(folder) / f"{spec.name}.jsonl")
        tables = tables_of(spec, rows)
        if not tables:
            continue
        place = make_folder(output)
        body = "\n".join(table.markdown() for table in tables)
        made_by = dict.fromkeys(row["command"] for row in rows if row.get("command"))
        commands = [*made_by, command]
        page = f"# {spec.title}\n\nMade by\n\n```sh\n{_lines(commands)}```\n\n{body}"
        write_atomic(place / f"{spec.name}.md", page.encode())
        latex = "\n".join(table.latex() for table in tables)
        comments = _lines(f"% {one}" for one in commands)
        write_atomic(place / f"{spec.name}.tex", f"{comments}{latex}".encode())
        for table in tables:
            write_atomic(place / f"{table.name}.csv", table.csv().encode())
        written += tables
    if not written:
        raise DataError(
            f"No cell in {str(folder)!r} is done: run its spec again, which says what fails."
        )
    return written


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def write_figures(folder: str | Path, output: str | Path) -> list[Path]:
    """Write every figure that the results allow, as PNG and SVG."""
    written: list[Path] = []
    for spec in experiments_in(folder):
        rows = read_rows(Path(folder) / f"{spec.name}.jsonl")
        written += _write(figures_of(spec, rows), output)
    return written


def write_drawing(
    spec: Spec, output: str | Path, *, root: Path | None, cache: Path, device: str = "auto"
) -> list[Path]:
    """Write the figure of a spec that needs no runs."""
    if spec.drawing == "weights":
        return _write([(spec.name, drawings.weights_figure())], output)
    if spec.projection is None or len(spec.datasets) != 1:
        raise DataError(
            f"The spec {spec.name!r} draws a projection: it needs the key projection and one data "
            "set."
        )
    name = spec.encoders[0] if spec.encoders else None
    task = open_task(
        spec.datasets[0],
        lambda: None if name is None else load_encoder(name, device=device),
        folder=spec.folder,
        root=root,
        cache=cache,
        wanted=[],
    )
    place = spec.folder / spec.projection.replace("{encoder}", task.encoder_name)
    projection, facts = load_projection(place)
    if facts.fingerprint != task.fingerprint:
        raise DataError(f"The projection {str(place)!r} is of another encoder than the features.")
    return _write([(spec.name, drawings.projection_figure(task.test, projection))], output)


def _write(
    figures: Iterator[tuple[str, Figure]] | Sequence[tuple[str, Figure]], output: str | Path
) -> list[Path]:
    place = make_folder(output)
    written = []
    for name, figure in figures:
        for form in FORMATS:
            path = place / f"{name}.{form}"
            write_atomic(path, to_file(figure, form))
            written.append(path)
    return written
