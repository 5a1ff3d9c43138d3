"""`--help`, completion and what all commands share."""

import os
import re
import subprocess
import sys

import pytest

from gpcache.methods import registry

# In the order of the help: what most people need first comes first.
COMMANDS = ["fit", "predict", "evaluate", "serve", "check", "suggest", "add", "remove", "relabel"]
COMMANDS += ["inspect", "export", "fetch", "extract", "project", "store", "demo", "benchmark"]
# What answers with a page or with files instead of JSON, and what has commands of its own.
OTHERS = ("serve", "store", "benchmark")
ALL = [*([name] for name in COMMANDS if name not in OTHERS), ["store", "info"], ["store", "verify"]]


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_commands_come_in_order_with_a_line_each(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    listed = re.findall(r"^│ (\w+) +(\S.*?) +│$", out, re.MULTILINE)
    assert [name for name, _ in listed] == COMMANDS
    assert all(summary.endswith(".") for _, summary in listed)
    assert "Exit codes: 0 done" in out


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_has_examples_and_speaks_json(run, command):
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert re.search(rf"^ +• (.*\| )?gpcache {' '.join(command)}\b", out, re.MULTILINE)
    assert "--json" in out
    assert "--verbose" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(*command, "-h")[1] == out


def test_no_argument_shows_the_help(run):
    code, out, err = run()
    assert code in (0, 2)
    assert "Usage: gpcache" in out + err


@pytest.mark.parametrize(
    ("words", "offered"), [("gpcache pre", "predict"), ("gpcache st", "store")]
)
def test_the_shell_completes_commands(words, offered):
    done = subprocess.run(
        [sys.executable, "-m", "gpcache"],
        env=os.environ
        | {"_GPCACHE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, [offered])


def test_fit_lists_every_method_that_features_suffice_for(run):
    listed = " ".join(re.findall(r"│([^│]*)│", run("fit", "--help")[1])).split()
    named = {word.strip(".,") for word in listed}
    assert {name for name, method in registry().items() if not method.beyond_features} <= named
