"""The notebooks are what their scripts say, hold no traces of a machine, and run."""

import importlib.util
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("sphinx_gallery")

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted((DOCS / "examples").glob("*.py"))
spec = importlib.util.spec_from_file_location("make_notebooks", DOCS / "make_notebooks.py")
make_notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_notebooks)


def stored(script):
    return nbformat.read(DOCS / "notebooks" / f"{script.stem}.ipynb", as_version=4)


def sources(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_there_is_one_for_each_reader():
    assert [script.stem for script in SCRIPTS] == ["method_author", "practitioner", "researcher"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_notebook_is_made_from_its_script(script):
    made = make_notebooks.notebook_of(script)
    assert sources(stored(script)) == sources(made), "run python docs/make_notebooks.py"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_notebook_runs(script, tmp_path):
    notebook = stored(script)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    assert all("outputs" in cell for cell in notebook.cells if cell.cell_type == "code")
