"""Beyond one process: extraction and serving on Ray, on one page.

`python benchmarks/scale.py [PHOTOS]` takes about seven minutes. PHOTOS is a folder of photos;
without it drawings are made. The million keys have a command of their own, in `million_keys.py`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ray_extraction
import ray_serving
from pages import write_page
from serving import photo

DRAWINGS = 1_000

ABOUT = """
What one machine can do, beside the naive ways and its limit: [on a CPU and on a
GPU](#how-near-to-the-machines-limit) (`make bench`, `make bench-gpu`), [how time and memory
grow](#how-time-and-memory-grow)
(`python benchmarks/growth.py`). Here follows what Ray adds, measured where client, server and
workers share one machine: it shows what Ray costs and that nothing is lost, not what more machines
would bring.
"""


def drawings(place: Path) -> Path:
    """A folder of drawings."""
    place.mkdir()
    for seed in range(DRAWINGS):
        (place / f"{seed:04}.jpg").write_bytes(photo(seed))
    return place


def main() -> None:
    """Measure and write the page."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else drawings(place / "photos")
        extraction = ray_extraction.lines(given, place)
    serving = ray_serving.lines()
    write_page(
        "scale",
        "Beyond one process",
        ABOUT,
        "## Extraction: `python benchmarks/ray_extraction.py PHOTOS`",
        "\n".join(extraction),
        "## Serving: `python benchmarks/ray_serving.py`",
        "\n".join(serving),
    )


if __name__ == "__main__":
    main()
