"""Runs the commands and Python code of documentation pages, in order, on drawn pictures.

    python docs/run_pages.py                          # the tasks of a new user, each timed
    python docs/run_pages.py how-to/deploy how-to/clip

Blocks marked `sh` and `python` run. Blocks marked `console` do not: downloads, Docker, servers that
keep running. A `text` block below a Python block is its output. A Python block that starts with
`# needs PACKAGE` is skipped if the package is missing.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
import warnings
from importlib.util import find_spec
from itertools import product
from pathlib import Path

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"```(sh|python)\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)
CLASSES = ("bricks", "marble", "wood")
TASKS = ("get-started/first-model", "how-to/fix-labels", "how-to/clip", "how-to/deploy")
TASKS += ("reference/http", "how-to/write-a-method")


def make_folder(folder: Path) -> None:
    """Draw the pictures that the pages use, and train the model of the first page."""
    from gpcache.images.drawn import draw_picture, draw_pictures

    (folder / "data").mkdir()  # for data sets, which are not part of the documentation
    draw_pictures(folder / "photos", CLASSES, each=8)
    draw_pictures(folder / "test_photos", CLASSES, each=4, seed=1)
    draw_pictures(folder / "more_photos", ["grass"], each=3)
    flat = {"new_photos": (CLASSES, [40]), "pool": (CLASSES, range(60, 64))}
    for name, (kinds, numbers) in (flat | {"other_photos": (["clock"], range(3))}).items():
        (folder / name).mkdir()
        for kind, number in product(kinds, numbers):
            place = folder / name / f"{kind}-{number}.jpg"
            draw_picture(kind, number).save(place, quality=90)
    draw_picture("wood", 80).save(folder / "photo.jpg", quality=90)
    run_shell("gpcache fit photos/ -o materials.gpc", folder)
    shutil.copytree(folder / "materials.gpc", folder / "pets.gpc")


def run_shell(code: str, folder: Path) -> None:
    """Run a block; exit code 1 is allowed for `gpcache check`, which has found something."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{code}"], cwd=folder, env=os.environ | {"PATH": path},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    last = code.strip().splitlines()[-1].strip()
    allowed = (0, 1) if last.startswith("gpcache check") else (0,)
    if done.returncode not in allowed:
        raise RuntimeError(f"{code}\n{done.stdout}\n{done.stderr}")


def run_python(code: str, page: Path, names: dict[str, object], folder: Path) -> str:
    """Run a block and return its output."""
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.chdir(folder):
        warnings.simplefilter("ignore")
        exec(compile(code, str(page), "exec"), names)
    return printed.getvalue()


def run_page(page: Path, folder: Path) -> None:
    """Run every block of a page; a Python block must print the output that the page shows."""
    module = types.ModuleType("documented_page")
    sys.modules[module.__name__] = module  # for classes that are pickled
    # Language, code and expected output of each block that runs.
    for language, code, shown in BLOCK.findall(page.read_text()):
        needed = re.findall(r"^# needs (\w+)", code)
        if any(find_spec(name) is None for name in needed):
            continue
        if language == "sh":
            run_shell(code, folder)
        elif (printed := run_python(code, page, vars(module), folder)) != shown:
            raise RuntimeError(f"{page.name} shows\n{shown}\nbut this was printed:\n{printed}")


def main() -> None:
    """Run the given pages, or those of TASKS, and print a table of their times."""
    with tempfile.TemporaryDirectory() as temporary:
        drawn = Path(temporary) / "drawn"
        drawn.mkdir()
        make_folder(drawn)
        for number, name in enumerate(sys.argv[1:] or TASKS):
            folder = shutil.copytree(drawn, Path(temporary) / str(number))
            start = time.perf_counter()
            run_page(DOCS / f"{name}.md", folder)
            seconds = time.perf_counter() - start
            print(f"{name:28} {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
