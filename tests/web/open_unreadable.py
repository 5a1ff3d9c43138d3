"""Opens a workspace again and again, each time without access to some of its files.

`open_unreadable.py WORKSPACE` reads a JSON list of lists of paths from the standard input, and
prints for each list one JSON line: the type of the error, its sentence, and whether all files are
as before.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch

from gpcache.errors import GPCacheError
from gpcache.web.open_workspace import open_workspace

torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location(
    "tiny", Path(__file__).parents[1] / "features" / "tiny.py"
)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
folder = Path(sys.argv[1])


def files():
    """Every file but the lock: its content and its inode, which a rewritten file changes."""
    places = [one for one in sorted(folder.rglob("*")) if one.is_file() and one.name != ".lock"]
    return {str(one): (one.read_bytes(), one.stat().st_ino) for one in places}


def opened(encoder):
    """The type and the sentence of the error, if there is one."""
    try:
        workspace = open_workspace(folder, encoder=encoder)
    except GPCacheError as error:
        return type(error).__name__, str(error)
    workspace.folder.close()
    return "", ""


encoder = tiny.ColourEncoder()
for names in json.load(sys.stdin):
    before = files()
    modes = {folder / name: (folder / name).stat().st_mode for name in names}
    for place in modes:
        place.chmod(0)
    kind, sentence = opened(encoder)
    for place, mode in modes.items():
        place.chmod(mode)
    print(json.dumps([kind, sentence, files() == before]), flush=True)
