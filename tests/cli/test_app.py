"""The command line: what it prints where, and how it ends."""

import subprocess
import sys
from types import ModuleType

import pytest

import gpcache
from gpcache.cli.app import main
from gpcache.errors import DataError


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `gpcache ...` in this process and return (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpcache", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def fake_demo(monkeypatch):
    """Replace the demo by one that notes what it was called with; set `error` to make it fail."""
    module = ModuleType("gpcache.demo")
    module.calls, module.error = [], None

    def demo_main(**options):
        module.calls.append(options)
        if module.error:
            raise module.error
        print("the result")

    module.main = demo_main
    monkeypatch.setitem(sys.modules, "gpcache.demo", module)
    return module


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


def test_demo_defaults(run, fake_demo):
    assert run("demo") == (0, "the result\n", "")
    assert fake_demo.calls == [{"shots": [1, 2, 4, 8, 16], "seeds": 5, "json": False}]


def test_demo_options(run, fake_demo):
    run("demo", "--shots", "2", "--shots", "8", "--seeds", "3", "--json")
    assert fake_demo.calls == [{"shots": [2, 8], "seeds": 3, "json": True}]


@pytest.mark.parametrize("arguments", [["--shots", "0"], ["--seeds", "0"], ["--shots", "many"]])
def test_bad_options_never_reach_the_demo(run, fake_demo, arguments):
    code, out, err = run("demo", *arguments)
    assert (code, out, fake_demo.calls) == (2, "", [])
    assert arguments[0] in err


def test_an_error_of_ours_is_one_sentence_on_stderr(run, fake_demo):
    fake_demo.error = DataError("shots must be at most 20, got 50.")
    assert run("demo") == (2, "", "gpcache: shots must be at most 20, got 50.\n")


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch, fake_demo):
    fake_demo.error = ZeroDivisionError("a bug")
    monkeypatch.setattr(sys, "argv", ["gpcache", "demo"])
    with pytest.raises(ZeroDivisionError):
        main()
