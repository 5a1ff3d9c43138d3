"""The command `gpcache`: gathers the commands and turns our errors into one sentence."""

import atexit
import gc
import logging
import os
import platform
import warnings
from traceback import clear_frames
from typing import Annotated, Any, NoReturn

import typer

from gpcache import __version__
from gpcache.cli import benchmark
from gpcache.cli.demo import demo
from gpcache.cli.evaluate import evaluate
from gpcache.cli.features import extract, project, store_app
from gpcache.cli.fit import fit
from gpcache.cli.labels import add, check, relabel, remove, suggest
from gpcache.cli.model import export, fetch, inspect
from gpcache.cli.options import VerboseOption
from gpcache.cli.predict import predict
from gpcache.cli.serve import serve
from gpcache.errors import GPCacheError
from gpcache.support.files import remedy_of
from gpcache.support.names import printable
from gpcache.support.out_of_memory import is_out_of_memory

# Commands import what they run inside their functions: --help must not wait for torch.
app = typer.Typer(
    name="gpcache",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Results go to stdout, progress and warnings to stderr. Exit codes: 0 done; 1 done, but "
    "check found something or an answer is missing; 2 wrong input.",
)
PANELS = {
    "From photos to answers": (fit, predict, evaluate, serve),
    "Better with every photo": (check, suggest, add, remove, relabel),
    "The model": (inspect, export, fetch),
    "Features on disk": (extract, project),
    "A first look": (demo,),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(store_app, name="store", rich_help_panel="Features on disk")
app.add_typer(benchmark.app, name="benchmark", rich_help_panel="Research")

# For what happens outside of a fit, such as the import of a library.
OUT_OF_MEMORY = (
    "The memory is not enough for this command: close other programs, or raise the memory limit of "
    "this process (ulimit -v) or its container."
)

logger = logging.getLogger(__name__)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpcache {__version__}")
        raise typer.Exit


VERSION = "Show the version and exit."
VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help=VERSION)
]


@app.callback()
def _gpcache(_version: VersionOption = False, _verbose: VerboseOption = False) -> None:
    """Train an image classifier from a few photos per class.

    It says "I don't know" when a photo fits none of them. It needs no validation set and only
    seconds on a CPU.
    """


def main() -> None:
    """Run the command line; an error of ours becomes one sentence and exit code 2."""
    warnings.showwarning = _show_warning
    # Spinning threads would take the cores from other processes, and from each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # At its end Python would search a million objects of torch and others for garbage.
    atexit.register(gc.freeze)
    try:
        app(prog_name="gpcache")
    except GPCacheError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if is_out_of_memory(error):
            clear_frames(error.__traceback__)  # to print needs memory, too
            _fail(OUT_OF_MEMORY)
        if not isinstance(error, OSError) or error.strerror is None:
            raise
        # For example a name that is too long, or a folder that may not be read.
        place = f"{error.filename!r}: " if error.filename else ""
        _fail(f"{place}{error.strerror}: {remedy_of(error)}.")


def _fail(sentence: str) -> NoReturn:
    logger.info("gpcache %s, Python %s", __version__, platform.python_version(), exc_info=True)
    typer.echo(f"gpcache: {printable(sentence)}", err=True)
    raise SystemExit(2)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print our warnings as notes; leave out those for developers."""
    if issubclass(category, UserWarning | RuntimeWarning):
        typer.echo(f"note: {printable(str(message))}", err=True)
