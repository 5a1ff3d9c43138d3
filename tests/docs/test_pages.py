"""Every page runs: its shell and Python blocks, in order, in a folder of drawn pictures.

Blocks marked `sh` and `python` run. Blocks marked `console` show what a test cannot run: downloads,
Docker, servers that stay. A `text` block beneath a Python block is what it prints.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import types
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = [
    *DOCS.glob("*.md"),
    *(
        page
        for part in ("get-started", "how-to", "concepts", "reference")
        for page in (DOCS / part).glob("*.md")
    ),
]
PAGES = sorted([ROOT / "README.md", *WRITTEN])
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
BLOCK = re.compile(r"```(sh|python)\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)
SECONDS = 600


def blocks(page):
    return BLOCK.findall(page.read_text())


def run_shell(code, folder):
    """Run a block; `gpcache check` says by the exit code 1 that it found something."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{code}"], cwd=folder, env=os.environ | {"PATH": path},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    last = code.strip().splitlines()[-1]
    allowed = (0, 1) if last.startswith("gpcache check") else (0,)
    assert done.returncode in allowed, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(code, page, names, folder):
    printed = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(printed),
        contextlib.chdir(folder),
    ):
        warnings.simplefilter("ignore")
        exec(compile(code, str(page), "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, page_folder, monkeypatch):
    module = types.ModuleType("documented_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # for classes that are pickled
    for language, code, shown in blocks(page):
        needed = re.findall(r"^# needs (\w+)", code)
        if any(find_spec(name) is None for name in needed):
            continue
        if language == "sh":
            run_shell(code, page_folder)
            continue
        printed = run_python(code, page, vars(module), page_folder)
        assert printed == shown


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_how_to_fits_on_a_screen(page):
    assert len(page.read_text().splitlines()) <= 65


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text)
    built = ("../gallery",)  # made by sphinx-gallery
    missing = [
        target
        for target in targets
        if not (page.parent / target).exists() and not target.startswith(built)
    ]
    assert missing == []


# Sentences that nobody understood; they must not come back.
GONE = [
    "So many classes an image",
    "so large a share of all",
    "knows when it does not know out",
    "to learn it anew",
    "at the numbers in use",
    "nats in all",
    "no shot is of it",
    "of so many rows is inverted",
]


@pytest.mark.parametrize("sentence", GONE)
def test_no_riddle_is_left(sentence):
    files = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    files += (ROOT / "src").rglob("*.html")
    found = [file for file in files if sentence in " ".join(file.read_text().split())]
    assert found == []
