"""The command `gpcache`: gathers the commands and turns our errors into one sentence."""

from typing import Annotated

import typer

from gpcache import __version__
from gpcache.cli import store
from gpcache.cli.demo import demo
from gpcache.cli.extract import extract
from gpcache.errors import GPCacheError

# Commands import what they run inside their functions: --help must not wait for torch.
app = typer.Typer(
    name="gpcache",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Results go to stdout, progress and warnings to stderr.",
)
app.command()(extract)
app.add_typer(store.app, name="store")
app.command()(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpcache {__version__}")
        raise typer.Exit


@app.callback()
def _gpcache(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Few labelled images per class in, a classifier that knows when it does not know out.

    No validation set, no training needed, seconds on a CPU.
    """


def main() -> None:
    """Run the command line; a mistake of the user ends with one sentence and exit code 2."""
    try:
        app(prog_name="gpcache")
    except GPCacheError as error:
        typer.echo(f"gpcache: {error}", err=True)
        raise SystemExit(2) from None
