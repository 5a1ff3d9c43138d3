"""The command `gpcache`: gathers the commands and turns our errors into one sentence."""

import logging
import warnings
from typing import Annotated, Any

import typer

from gpcache import __version__
from gpcache.cli import store
from gpcache.cli.check import check
from gpcache.cli.demo import demo
from gpcache.cli.evaluate import evaluate
from gpcache.cli.export import export
from gpcache.cli.extract import extract
from gpcache.cli.fit import fit
from gpcache.cli.inspect import inspect
from gpcache.cli.predict import predict
from gpcache.cli.suggest import suggest
from gpcache.cli.update import add, relabel, remove
from gpcache.errors import GPCacheError

# Commands import what they run inside their functions: --help must not wait for torch.
app = typer.Typer(
    name="gpcache",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Results go to stdout, progress and warnings to stderr. Exit codes: 0 done, 1 done but "
    "something was found or refused, 2 a mistake in what was asked.",
)
for command in (fit, predict, evaluate, check, suggest, add, remove, relabel, inspect, export):
    app.command()(command)
app.command()(extract)
app.add_typer(store.app, name="store")
app.command()(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpcache {__version__}")
        raise typer.Exit


@app.callback()
def _gpcache(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what is done to stderr.")
    ] = False,
) -> None:
    """Few labelled images per class in, a classifier that knows when it does not know out.

    No validation set, no training needed, seconds on a CPU.
    """
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")


def main() -> None:
    """Run the command line; a mistake of the user ends with one sentence and exit code 2."""
    warnings.showwarning = _show_warning
    try:
        app(prog_name="gpcache")
    except GPCacheError as error:
        typer.echo(f"gpcache: {error}", err=True)
        raise SystemExit(2) from None


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Our warnings as notes; those of libraries speak to developers, who have -W error."""
    if issubclass(category, UserWarning | RuntimeWarning):
        typer.echo(f"note: {message}", err=True)
