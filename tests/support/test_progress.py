"""Progress bars in a real terminal: none for short work, and none where output goes elsewhere."""

import os
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty", reason="needs a terminal of Unix")
termios = pytest.importorskip("termios", reason="needs a terminal of Unix")

WORK = """
import time
from gpcache.support.progress import progress_bar
with progress_bar("check", total=3, unit="step") as bar:
    for _ in range(3):
        time.sleep({seconds})
        bar.update()
"""


def on_terminal(seconds):
    """What this work prints on a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    run = [sys.executable, "-c", WORK.format(seconds=seconds)]
    with subprocess.Popen(run, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        try:
            while part := os.read(ours, 4096):
                printed += part
        except OSError:  # Linux reports the end of a terminal as an error
            pass
    os.close(ours)
    assert process.returncode == 0, printed
    return printed.decode()


def test_work_of_more_than_two_seconds_has_a_bar_and_shorter_work_has_none():
    assert "check:  67%" in on_terminal(1.1)
    assert on_terminal(0.01) == ""


def test_there_is_no_bar_without_a_terminal():
    run = [sys.executable, "-c", WORK.format(seconds=1.1)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
