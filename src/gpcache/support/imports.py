"""Imports of large packages, faster, and beside other threads."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds until the importing thread lets another one run. Python's own five milliseconds are long
# for threads that only pass something on.
SWITCH = 0.0005


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import torch and scikit-learn inside of this, where they are not imported yet.

    The collector of garbage does not search what they define, neither on the way nor later: that
    takes a tenth of the imports, and finds nothing.
    """
    if "torch" in sys.modules:
        yield
        return
    collects, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(SWITCH)
    try:
        yield
    finally:
        gc.freeze()
        sys.setswitchinterval(interval)
        if collects:
            gc.enable()
