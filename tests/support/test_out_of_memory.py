"""Errors that mean that memory has run out; on the command line they are one sentence."""

import errno
import subprocess
import sys

import pytest
from PIL import Image

from gpcache.support.out_of_memory import is_out_of_memory

# The address space is limited once Python runs; then the first large library cannot be mapped.
LIMITED = """
import resource, sys
from pathlib import Path
import numpy
from gpcache.cli.app import main
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150_000_000, resource.RLIM_INFINITY))
sys.argv[1:] = ["fit", sys.argv[1], "-o", "unwritten.gpc", "--dry-run"]
main()
"""

# A command that holds all of the memory when it fails.
FULL = """
import resource
from pathlib import Path
from gpcache.cli import app as cli

def fill(**_):
    blocks = []
    for size in (10**6, 10**4, 100):
        try:
            while True:
                blocks.append(bytes(size))
        except MemoryError as error:
            full = error
    raise full

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, resource.RLIM_INFINITY))
cli.app = fill
cli.main()
"""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("unable to mmap 90868376 bytes from file <x>: Cannot allocate memory (12)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory"),
        ImportError("_fblas.so: failed to map segment from shared object"),
    ],
)
def test_it_is_recognised_also_as_the_cause_of_another_error(error):
    assert is_out_of_memory(error)
    outer = ImportError("the library seems to be broken")
    outer.__cause__ = error
    assert is_out_of_memory(outer)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes differ"), ImportError("no module x"), OSError(2, "no file")]
)
def test_other_errors_are_not(error):
    assert not is_out_of_memory(error)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of Linux")
@pytest.mark.parametrize("program", [LIMITED, FULL], ids=["a library", "to the last byte"])
def test_the_command_line_says_it_in_one_sentence(program, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / name / "1.png")
    run = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("gpcache: The memory is not enough for this command:")
    assert len(done.stderr.splitlines()) == 1
