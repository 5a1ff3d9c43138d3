"""Pictures drawn by a program, for demonstrations without photographs of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from gpcache.images.drawn import painters
from gpcache.images.drawn.canvas import Colours, Random, photograph
from gpcache.support.checks import one_of, whole
from gpcache.support.files import make_folder, write_atomic
from gpcache.support.progress import progress_bar

_CLASSES = (
    painters.bricks, painters.grass, painters.knitting, painters.leaves, painters.marble,
    painters.pebbles, painters.sea, painters.sunset, painters.tartan, painters.wood,
)  # fmt: skip
_OTHERS = (painters.bubbles, painters.clock)
_PAINTERS: dict[str, Callable[[Random], Colours]] = {
    painter.__name__: painter for painter in (*_CLASSES, *_OTHERS)
}
DRAWN_CLASSES = tuple(painter.__name__ for painter in _CLASSES)
# Pictures that belong to none of the classes.
DRAWN_OTHERS = tuple(painter.__name__ for painter in _OTHERS)
_QUALITY = 88


def draw_picture(name: str, number: int = 0, *, seed: int = 0) -> Image.Image:
    """Draw one picture; light, scale, rotation, colours, focus and grain vary with its number.

    Parameters
    ----------
    name : str
        One of `DRAWN_CLASSES` or `DRAWN_OTHERS`.
    number : int, default=0
        Which picture of this name.
    seed : int, default=0
        Another seed gives other pictures.

    Returns
    -------
    PIL.Image.Image
        320 pixels wide and 240 high, in RGB.

    Raises
    ------
    DataError
        If nothing of this name can be drawn.

    Examples
    --------
    >>> from gpcache.images.drawn import draw_picture
    >>> draw_picture("bricks").size
    (320, 240)
    """
    one_of("name", name, tuple(_PAINTERS))
    numbers = whole("seed", seed, least=0), whole("number", number, least=0)
    rng = np.random.default_rng([*numbers, *name.encode()])
    return photograph(rng, _PAINTERS[name](rng))


def draw_pictures(
    folder: str | Path, names: Sequence[str] = DRAWN_CLASSES, *, each: int = 20, seed: int = 0
) -> Path:
    """Draw pictures into a folder for each name; files of the same names are replaced.

    Parameters
    ----------
    folder : str or Path
        Where the folders go: `folder/bricks/00.jpg` and so on.
    names : sequence of str, default=DRAWN_CLASSES
        What to draw, from `DRAWN_CLASSES` and `DRAWN_OTHERS`.
    each : int, default=20
        How many pictures of each.
    seed : int, default=0
        Another seed gives other pictures.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    DataError
        If nothing of a name can be drawn, or the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from gpcache.images.drawn import draw_pictures
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     drawn = draw_pictures(folder, ["wood", "marble"], each=2)
    ...     sorted(str(file.relative_to(drawn)) for file in drawn.rglob("*.jpg"))
    ['marble/00.jpg', 'marble/01.jpg', 'wood/00.jpg', 'wood/01.jpg']
    """
    count = whole("each", each, least=1)
    with progress_bar("draw", total=count * len(names), unit="picture") as bar:
        for name, number in product(names, range(count)):
            stream = BytesIO()
            draw_picture(name, number, seed=seed).save(stream, "JPEG", quality=_QUALITY)
            file = make_folder(Path(folder) / name) / f"{number:02}.jpg"
            write_atomic(file, stream.getvalue(), sweep=False)
            bar.update()
    return Path(folder)
