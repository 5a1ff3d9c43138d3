"""Progress bars: on stderr, only in a terminal, and only for work of more than two seconds."""

from typing import Any

from tqdm import tqdm


def progress_bar(description: str, *, total: int | None = None, unit: str = "it") -> Any:
    """A bar to `update()`; use it as a context manager."""
    return tqdm(total=total, desc=description, unit=unit, delay=2, disable=None, leave=False)
