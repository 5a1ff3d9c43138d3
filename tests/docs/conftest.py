"""The folder that the documented commands run in: drawn pictures and a model of them."""

import importlib.util
import shutil
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "docs" / "run_pages.py"
spec = importlib.util.spec_from_file_location("run_pages", PLACE)
run_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_pages)


@pytest.fixture(scope="session")
def drawn_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    run_pages.make_folder(folder)
    return folder


@pytest.fixture
def run_page(drawn_folder, tmp_path):
    """Runs a page in its own copy of the folder."""

    def run(page):
        folder = tmp_path / "page"
        shutil.copytree(drawn_folder, folder)
        run_pages.run_page(page, folder)

    return run
