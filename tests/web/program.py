"""A server as a process of its own: `program.py WORKSPACE` prints its address with the token."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import torch

from gpcache.web.open_workspace import open_workspace
from gpcache.web.server import bind, run

torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location(
    "tiny", Path(__file__).parents[1] / "features" / "tiny.py"
)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


TOKEN = "a-token-for-tests"


def started(_, address):
    print(f"{address}/?token={TOKEN}", flush=True)


opened = open_workspace(sys.argv[1], encoder=tiny.ColourEncoder())
asyncio.run(run(opened, TOKEN, bind(0), started))
