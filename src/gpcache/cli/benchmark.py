"""`gpcache benchmark`: methods on data sets, from a spec to tables and figures."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gpcache.cli.options import (
    DeviceOption,
    JsonOption,
    VerboseOption,
    print_json,
    print_rows,
    printable,
)
from gpcache.errors import DataError

if TYPE_CHECKING:
    from gpcache.benchmark.runner import Outcome
    from gpcache.benchmark.spec import Spec


class _RunsSpecs(TyperGroup):
    """`gpcache benchmark SPEC.toml` is `gpcache benchmark run SPEC.toml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_RunsSpecs,
    no_args_is_help=True,
    help="Run methods on data sets; show tables and figures.\n\n"
    "`gpcache benchmark SPEC.toml -o results` runs a spec.",
)

OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="RESULTS", help="The folder of the results.")
]
RootOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the data sets lie, each in its folder.")
]
FeaturesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where image features are kept.", show_default="RESULTS/features"
    ),
]
DatasetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        metavar="DATA",
        help="Only this data set, by name or path, instead of the spec's; may be repeated.",
    ),
]
EncodersOption = Annotated[
    list[str] | None,
    typer.Option("--encoder", help="This encoder instead of the spec's; may be repeated."),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, metavar="N", help="So many cells at once, in processes.")
]
LegacyOption = Annotated[
    bool,
    typer.Option("--legacy", help="Allow choosing on test images of ImageNet, as published."),
]
ResultsArgument = Annotated[
    Path, typer.Argument(metavar="RESULTS", help="A folder of results, as a run has made it.")
]


@app.command()
def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="A spec, as table.toml.")],
    output: OutputOption,
    root: RootOption = None,
    dataset: DatasetOption = None,
    encoder: EncodersOption = None,
    features: FeaturesOption = None,
    legacy: LegacyOption = False,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Run what is not done of a spec.

    Stopped at any moment, the same command goes on. Exit code 1 if some of it failed: the reasons
    are listed on stderr, and the next run tries again.

    **Examples**

    - `gpcache benchmark table.toml -o results --root ~/data`

    - `gpcache benchmark run table.toml -o results --features ~/features`
    """
    from gpcache.benchmark.spec import read_spec

    _run(
        read_spec(spec), [str(spec)], output, root=root, dataset=dataset, encoder=encoder,
        features=features, legacy=legacy, jobs=jobs, device=device, json=json,
    )  # fmt: skip


@app.command()
def paper(
    show_list: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="The experiment to run.")
    ] = None,
    output: OutputOption = Path("results"),
    root: RootOption = None,
    dataset: DatasetOption = None,
    encoder: EncodersOption = None,
    features: FeaturesOption = None,
    legacy: LegacyOption = False,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """List the experiments of the paper, or run one.

    **Examples**

    - `gpcache benchmark paper --list`

    - `gpcache benchmark paper --experiment few-shot --root ~/data --dataset oxford_pets`
    """
    from gpcache.benchmark.rendering import paper_specs
    from gpcache.benchmark.spec import read_spec

    specs = paper_specs()
    if experiment is not None and experiment not in specs:
        raise DataError(f"The paper has no experiment {experiment!r}: use {', '.join(specs)}.")
    if experiment is not None and not show_list:
        # The specs lie with the package: what they name, as projections/, is the user's.
        shipped = replace(read_spec(specs[experiment]), folder=Path.cwd())
        _run(
            shipped, ["paper", "--experiment", experiment], output, root=root, dataset=dataset,
            encoder=encoder, features=features, legacy=legacy, jobs=jobs, device=device, json=json,
        )  # fmt: skip
        return
    titles = {name: read_spec(path).title for name, path in specs.items()}
    if json:
        print_json(titles)
    else:
        print_rows(titles)


@app.command()
def tables(
    results: ResultsArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where they go.", show_default="RESULTS/tables"
        ),
    ] = None,
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Write the tables of results as Markdown, LaTeX and CSV, and print them.

    **Example**

    - `gpcache benchmark tables results`
    """
    from gpcache.benchmark.rendering import write_tables

    place = output or results / "tables"
    made = write_tables(results, place, _command(["tables", str(results)], {"-o": output}))
    if json:
        print_json(
            [
                {"name": it.name, "title": it.title, "header": list(it.header)}
                | {"rows": [list(row) for row in it.rows], "notes": list(it.notes)}
                for it in made
            ]
        )
        return
    for table in made:
        typer.echo("\n".join(printable(line) for line in table.markdown().split("\n")))
    typer.echo(f"{len(made)} tables are in {printable(str(place))}.", err=True)


@app.command()
def figures(
    results: ResultsArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where they go.", show_default="RESULTS/figures"
        ),
    ] = None,
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Draw the figures of results as PNG and SVG.

    **Example**

    - `gpcache benchmark figures results`
    """
    from gpcache.benchmark.rendering import write_figures

    _print_files(write_figures(results, output or results / "figures"), json)


@app.command()
def datasets(
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the data sets lie, each in its folder.")
    ],
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Say which data sets are there, what is expected where, and who publishes the others.

    **Example**

    - `gpcache benchmark datasets --root ~/data`
    """
    from gpcache.benchmark.datasets import check_datasets

    found = check_datasets(root)
    if json:
        print_json(
            [
                {
                    "name": it.entry.name,
                    "title": it.entry.title,
                    "state": it.state,
                    "problem": it.problem,
                    "expected": [str(path) for path in it.expected],
                    "absent": [str(path) for path in it.absent],
                    "counts": it.counts and it.counts._asdict(),
                    "known": it.known._asdict(),
                    "published": it.entry.published,
                }
                for it in found
            ]
        )
        return
    rows: dict[str, str | list[str]] = {}
    for it in found:
        lines = [it.state if not it.problem else f"{it.state}: {it.problem}"]
        if it.counts is not None:
            counts = it.counts._asdict().items()
            lines.append(", ".join(f"{count:,} {name}" for name, count in counts))
        if it.absent:
            lines.append(f"expected: {', '.join(map(str, it.absent))}")
        if it.state != "found":
            lines.append(f"published: {it.entry.published}")
        rows[it.entry.name] = lines
    print_rows(rows)


def _narrowed(spec: "Spec", datasets: list[str], encoders: list[str], root: Path | None) -> "Spec":
    """The spec with the data sets and encoders of the command line instead of its own."""
    from gpcache.benchmark.tasks import check_reference

    for one in datasets:
        check_reference(one, "--dataset", folder=Path.cwd(), root=root)
    if datasets:
        # A path on the command line starts from here, not from the spec.
        places = [str(Path(one).resolve()) if Path(one).exists() else one for one in datasets]
        spec = replace(spec, datasets=tuple(dict.fromkeys(places)))
    return replace(spec, encoders=tuple(dict.fromkeys(encoders))) if encoders else spec


def _command(words: list[str], options: dict[str, Any]) -> str:
    """What a user types for this; options that were left out are None, False or empty."""
    given = ["gpcache", "benchmark", *words]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                given.append(name)
            elif one not in (None, False):
                given += [name, str(one)]
    return shlex.join(given)


def _run(
    spec: "Spec",
    words: list[str],
    output: Path,
    *,
    root: Path | None,
    dataset: list[str] | None,
    encoder: list[str] | None,
    features: Path | None,
    legacy: bool,
    jobs: int,
    device: str,
    json: bool,
) -> None:
    from gpcache.benchmark.rendering import write_drawing
    from gpcache.benchmark.runner import run as run_spec
    from gpcache.support.progress import progress_bar

    spec = _narrowed(spec, dataset or [], encoder or [], root)
    if spec.drawing is not None:
        cache = features or output / "features"
        place = output / "figures"
        _print_files(write_drawing(spec, place, root=root, cache=cache, device=device), json)
        return
    typed = {
        "-o": output,
        "--root": root,
        "--dataset": dataset,
        "--encoder": encoder,
        "--features": features,
        "--legacy": legacy,
        "--jobs": jobs if jobs > 1 else None,
        "--device": device if device != "auto" else None,
    }
    with progress_bar(spec.name, unit="row") as bar:
        outcome = run_spec(
            spec,
            output,
            root=root,
            cache=features,
            device=device,
            jobs=jobs,
            legacy=legacy,
            command=_command(words, typed),
            progress=lambda _: bar.update(),
        )
    _print_outcome(outcome, output, spec.name, json)
    raise typer.Exit(1 if outcome.counts["failed"] else 0)


def _print_outcome(outcome: "Outcome", output: Path, name: str, json: bool) -> None:
    from gpcache.cli.tables import print_notices

    counts = outcome.counts
    print_notices(outcome.notices)
    for reason, times in outcome.reasons.items():
        typer.echo(f"{printable(reason)}{f' ({times}×)' if times > 1 else ''}", err=True)
    place = output / f"{name}.jsonl"
    if json:
        print_json(
            {
                "results": str(place),
                "done": counts["done"],
                "known": outcome.known,
                "not possible": counts["not possible"],
                "failed": counts["failed"],
                "reasons": dict(outcome.reasons),
                "notices": outcome.notices,
            }
        )
        return
    typer.echo(
        f"{printable(str(place))}: {counts['done']:,} run now, {outcome.known:,} known before, "
        f"{counts['not possible']:,} not possible, {counts['failed']:,} failed."
    )


def _print_files(files: list[Path], json: bool) -> None:
    if json:
        print_json([str(path) for path in files])
    for path in files if not json else ():
        typer.echo(printable(str(path)))
