"""Names as text: one spelling for each class, and which characters may be printed."""

import unicodedata

# Persian words and emoji contain these, which Python does not consider printable.
JOINERS = "\u200c\u200d" + "".join(map(chr, range(0xE0020, 0xE0080)))


def tidy_name(name: str) -> str:
    """A class name in standard form: composed letters (NFC), single spaces, none at either end."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def is_printed(letter: str) -> bool:
    """Whether a character may be printed: not if it controls a terminal."""
    return letter.isprintable() or letter in JOINERS


def printable(text: str) -> str:
    """Text on one line that cannot control a terminal or change how other text is shown."""
    return "".join(letter if is_printed(letter) else "�" for letter in text)
