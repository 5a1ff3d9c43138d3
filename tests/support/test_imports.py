"""Imports without the collector of garbage."""

import gc
import sys

import pytest

from gpcache.support.imports import SWITCH, quick_imports


@pytest.fixture
def no_torch_yet(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    yield
    gc.unfreeze()


def failing_import():
    with quick_imports():
        assert not gc.isenabled()
        assert sys.getswitchinterval() == SWITCH
        raise ImportError


@pytest.mark.usefixtures("no_torch_yet")
def test_nothing_is_collected_inside_and_everything_is_as_before_after_an_error():
    interval = sys.getswitchinterval()
    with pytest.raises(ImportError):
        failing_import()
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval != SWITCH
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("no_torch_yet")
def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nothing_is_spared_where_torch_is_imported_already():
    assert "torch" in sys.modules
    with quick_imports():
        assert gc.isenabled()
