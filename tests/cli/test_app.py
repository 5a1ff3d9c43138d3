"""The command line: what it prints where, and how it ends."""

import subprocess
import sys
import warnings
from types import ModuleType

import pytest

import gpcache
from gpcache.cli.app import main


def test_version(run):
    assert run("--version") == (0, f"gpcache {gpcache.__version__}\n", "")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_the_commands(run, option):
    code, out, err = run(option)
    assert (code, err) == (0, "")
    assert "Usage: gpcache" in out
    assert "demo" in out


def test_the_module_runs_as_a_command():
    result = subprocess.run(
        [sys.executable, "-m", "gpcache", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"gpcache {gpcache.__version__}\n"


def test_an_error_of_ours_is_one_sentence_on_stderr(run, tmp_path):
    place = tmp_path / "nothing\x1b[31m"
    code, out, err = run("inspect", place)
    assert (code, out) == (2, "")
    assert err == f"gpcache: {str(place)!r} is not a gpcache model: it has no config.json.\n"


def test_what_the_system_says_is_one_sentence(run, tmp_path):
    place = tmp_path / ("a" * 300)
    code, out, err = run("check", place)
    assert (code, out) == (2, "")
    assert err == f"gpcache: {str(place)!r}: File name too long: choose a shorter name.\n"


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch):
    """A bug keeps its traceback: a module that lacks what the command imports is one."""
    monkeypatch.setitem(sys.modules, "gpcache.model.demo", ModuleType("gpcache.model.demo"))
    monkeypatch.setattr(sys, "argv", ["gpcache", "demo"])
    with pytest.raises(ImportError, match="plant_label"):
        main()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fit", "photos"], "--output"),
        (["fit", "photos", "-o", "a.gpc", "--shots", "0"], "--shots"),
        (["predict", "a.gpc", "photos", "--format", "xml"], "--format"),
        (["evaluate", "a.gpc", "photos", "--reject", "1"], "--reject"),
        (["check", "photos", "--top", "many"], "--top"),
        (["demo", "--shots", "0"], "--shots"),
        (["train"], "train"),
    ],
)
def test_a_bad_option_is_named(run, arguments, named):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err


def test_warnings_are_notes_that_cannot_steer_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(warnings, "showwarning", None)
    monkeypatch.setattr(sys, "argv", ["gpcache", "--version"])
    with pytest.raises(SystemExit):
        main()
    warnings.showwarning("low \x1b[31mmemory", UserWarning, "file.py", 1)
    warnings.showwarning("for developers", DeprecationWarning, "file.py", 1)
    assert capsys.readouterr().err == "note: low �[31mmemory\n"
