"""`gpcache benchmark`: methods on data sets, from a spec to tables and figures."""

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from gpcache.cli import options
from gpcache.cli.output import print_notices, show
from gpcache.errors import DataError
from gpcache.support.names import printable

if TYPE_CHECKING:
    from gpcache.benchmark.spec import Spec


class _RunsSpecs(TyperGroup):
    """`gpcache benchmark SPEC.toml` is `gpcache benchmark run SPEC.toml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


HELP = """Run methods on data sets; show tables and figures.

`gpcache benchmark SPEC.toml -o results` runs a spec."""
app = typer.Typer(cls=_RunsSpecs, no_args_is_help=True, help=HELP)

# The options of a run, and those that do something without being given.
OPTIONS = ("-o", "--root", "--dataset", "--encoder", "--features", "--legacy", "--jobs", "--device")
DEFAULTS = [("--jobs", 1), ("--device", "auto")]
ROOT = "The folder that holds the folders of the data sets."
DATASET = "Only this data set, by name or path, instead of the spec's; may be repeated."
ENCODER = "This encoder instead of the spec's; may be repeated."
FEATURES = "Keep image features in this folder."
LEGACY = "Allow choosing on test images of ImageNet, as published."
TABLES = Option("--output", "-o", metavar="DIR", help="Write here.", show_default="RESULTS/tables")
FIGURES = Option(
    "--output", "-o", metavar="DIR", help="Write here.", show_default="RESULTS/figures"
)

SpecArgument = Annotated[Path, Argument(metavar="SPEC", help="A spec, for example table.toml.")]
ResultsArgument = Annotated[Path, Argument(metavar="RESULTS", help="The folder of a run.")]
OUTPUT = "The folder of the results."
OutputOption = Annotated[Path, Option("--output", "-o", metavar="RESULTS", help=OUTPUT)]
RootOption = Annotated[Path | None, Option(metavar="DIR", help=ROOT)]
DatasetOption = Annotated[list[str] | None, Option("--dataset", metavar="DATA", help=DATASET)]
EncodersOption = Annotated[list[str] | None, Option("--encoder", metavar="ENCODER", help=ENCODER)]
FeaturesOption = Annotated[
    Path | None, Option(metavar="DIR", help=FEATURES, show_default="RESULTS/features")
]
LegacyOption = Annotated[bool, Option("--legacy", help=LEGACY)]
JobsOption = Annotated[int, Option("--jobs", min=1, metavar="N", help="Compute N cells at once.")]


@app.command()
def run(
    spec: SpecArgument,
    output: OutputOption,
    root: RootOption = None,
    dataset: DatasetOption = None,
    encoder: EncodersOption = None,
    features: FeaturesOption = None,
    legacy: LegacyOption = False,
    jobs: JobsOption = 1,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Run the cells of a spec that are not done yet.

    After a stop at any moment, the same command continues. Exit code 1 if some cells failed: the
    reasons are listed on stderr, and the next run tries again.

    **Examples**

    - `gpcache benchmark table.toml -o results --root ~/data`

    - `gpcache benchmark run table.toml -o results --features ~/features`
    """
    from gpcache.benchmark.spec import read_spec

    given = (output, root, dataset, encoder, features, legacy, jobs, device)
    _run(read_spec(spec), [str(spec)], dict(zip(OPTIONS, given, strict=True)), json)


@app.command()
def paper(
    show_list: Annotated[bool, Option("--list", help="List the experiments.")] = False,
    experiment: Annotated[str | None, Option(metavar="NAME", help="The one to run.")] = None,
    output: OutputOption = Path("results"),
    root: RootOption = None,
    dataset: DatasetOption = None,
    encoder: EncodersOption = None,
    features: FeaturesOption = None,
    legacy: LegacyOption = False,
    jobs: JobsOption = 1,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """List the experiments of the paper, or run one.

    **Examples**

    - `gpcache benchmark paper --list`

    - `gpcache benchmark paper --experiment few-shot --root ~/data --dataset oxford_pets`
    """
    from gpcache.benchmark.output import paper_specs
    from gpcache.benchmark.spec import read_spec

    specs = paper_specs()
    if experiment is not None and experiment not in specs:
        raise DataError(f"The paper has no experiment {experiment!r}: use {', '.join(specs)}.")
    if experiment is None or show_list:
        titles = {name: read_spec(path).title for name, path in specs.items()}
        show(json, titles, titles)
        return
    # The specs are part of the package: relative paths in them, as projections/, are the user's.
    shipped = replace(read_spec(specs[experiment]), folder=Path.cwd())
    words = ["paper", "--experiment", experiment]
    given = (output, root, dataset, encoder, features, legacy, jobs, device)
    _run(shipped, words, dict(zip(OPTIONS, given, strict=True)), json)


@app.command()
def tables(
    results: ResultsArgument,
    output: Annotated[Path | None, TABLES] = None,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Write the tables of results as Markdown, LaTeX and CSV, and print them.

    **Example**

    - `gpcache benchmark tables results`
    """
    from gpcache.benchmark.output import write_tables

    place = output or results / "tables"
    written = write_tables(results, place, _command(["tables", str(results)], {"-o": output}))
    lines = [line for table in written for line in table.markdown().split("\n")]
    show(json, [asdict(table) for table in written], lines)
    if not json:
        typer.echo(f"{len(written)} tables are in {printable(str(place))}.", err=True)


@app.command()
def figures(
    results: ResultsArgument,
    output: Annotated[Path | None, FIGURES] = None,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Draw the figures of results as PNG and SVG.

    **Example**

    - `gpcache benchmark figures results`
    """
    from gpcache.benchmark.output import write_figures

    files = list(map(str, write_figures(results, output or results / "figures")))
    show(json, files, files)


@app.command()
def datasets(
    root: Annotated[Path, Option(metavar="DIR", help=ROOT)],
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Show which data sets exist, which files are expected where, and who publishes the others.

    **Example**

    - `gpcache benchmark datasets --root ~/data`
    """
    from gpcache.benchmark.datasets.loading import check_datasets

    statuses = check_datasets(root)
    lines = {status.entry.name: status.lines() for status in statuses}
    show(json, [status.to_json() for status in statuses], lines)


def _run(spec: "Spec", words: list[str], given: dict[str, Any], json: bool) -> None:
    """Run a spec, or draw its figure; the command line was `words`, then the options `given`."""
    from gpcache.benchmark.output import write_drawing
    from gpcache.benchmark.run import run as run_spec
    from gpcache.benchmark.run import with_data
    from gpcache.support.progress import progress_bar

    output, features = given["-o"], given["--features"]
    place = {"root": given["--root"], "device": given["--device"]}
    spec = with_data(spec, given["--dataset"] or [], given["--encoder"] or [], given["--root"])
    if spec.drawing is not None:
        cache = features or output / "features"
        files = list(map(str, write_drawing(spec, output / "figures", cache=cache, **place)))
        show(json, files, files)
        return
    with progress_bar(spec.name, unit="row") as bar:
        outcome = run_spec(
            spec, output, cache=features, jobs=given["--jobs"], legacy=given["--legacy"], **place,
            command=_command(words, given), progress=lambda _: bar.update(),
        )  # fmt: skip
    print_notices(outcome.notices)
    for reason, times in outcome.reasons.items():
        typer.echo(f"{printable(reason)}{f' ({times}×)' if times > 1 else ''}", err=True)
    file = str(output / f"{spec.name}.jsonl")
    show(json, {"results": file} | outcome.to_json(), f"{file}: {outcome.sentence()}")
    raise typer.Exit(1 if outcome.counts["failed"] else 0)


def _command(words: list[str], given: dict[str, Any]) -> str:
    """The command line that does the same; options that have their default are left out."""
    command = ["gpcache", "benchmark", *words]
    for name, value in given.items():
        if value is None or value is False or (name, value) in DEFAULTS:
            continue
        for item in value if isinstance(value, list) else [value]:
            command += [name] if item is True else [name, str(item)]
    return shlex.join(command)
