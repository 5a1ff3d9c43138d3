"""Names as text: one spelling for each class, and which characters may be printed."""

from __future__ import annotations

import unicodedata

# Persian words and emoji are written with these, which Python does not call printable.
JOINERS = "\u200c\u200d" + "".join(map(chr, range(0xE0020, 0xE0080)))


def tidy_name(name: str) -> str:
    """A class name as it is kept: composed letters (NFC), single spaces, none at either end."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def is_printed(letter: str) -> bool:
    """Whether a character of a name may be printed: what controls a terminal may not."""
    return letter.isprintable() or letter in JOINERS
