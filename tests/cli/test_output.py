"""Tables: plain unwrapped lines in a pipe, wrapped in a terminal; no name controls either."""

import io
import re
import sys

import pytest

from gpcache.cli.output import json_text, print_notes, print_rows, printable
from gpcache.images.records import Refused


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_pipe_lines_are_plain_and_never_wrapped(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    long = " ".join(["words"] * 20_000)
    print_rows({"model": "pets.gpc", "classes": long, "confused": ["cat → dog", "dog → cat"]})
    assert capsys.readouterr().out == (
        f"model     pets.gpc\nclasses   {long}\nconfused  cat → dog\n          dog → cat\n"
    )


def test_in_a_terminal_long_values_are_wrapped_beside_their_name(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    print_rows({"model": "pets.gpc", "classes": "cat (4), dog (4), budgerigar (4), horse (4), cow"})
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in terminal.getvalue().splitlines()]
    assert max(map(len, lines)) <= 40
    assert lines[0] == "model    pets.gpc"
    assert lines[1].startswith("classes  cat (4), dog (4)")
    assert all(line.startswith(" " * 9) for line in lines[2:])
    assert len(lines) > 2


@pytest.mark.parametrize("name", ["\x1b[31mred", "[red]cat[/red]", ":cat:", "two\nlines", "a\tb"])
def test_names_are_text(name, capsys):
    print_rows({"data": name})
    print_notes([Refused(name, name)], [name])
    out, err = capsys.readouterr()
    shown = "".join(letter if letter.isprintable() else "�" for letter in name)
    assert out == f"data  {shown}\n"
    assert err == f"1 refused:\n  {shown}  {shown}\nnote: {shown}\n"


def test_long_lists_are_cut(capsys):
    print_notes([Refused(f"{n}.jpg", "it is empty") for n in range(60)], ["small"] * 30)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "60 refused:"
    assert lines[51] == "  … and 10 more."
    assert lines[-1] == "note: … and 10 more notes."
    assert len(lines) == 52 + 21


def test_names_with_joiners_are_printed_as_they_are():
    for name in ("می\u200cخواهم", "👩‍🔬", "🏴\U000e0067\U000e0062\U000e007f"):
        assert printable(name) == name
        assert json_text([name]) == f'["{name}"]'
    assert printable("a\u202eb\x1b") == "a�b�"
