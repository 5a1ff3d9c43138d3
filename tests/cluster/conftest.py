"""The encoder of colours that the tests of extraction use."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "tiny", Path(__file__).parents[1] / "features" / "tiny.py"
)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


@pytest.fixture
def encoder():
    return tiny.ColourEncoder()
