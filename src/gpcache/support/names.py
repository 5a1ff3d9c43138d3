"""Names as text: the rules of class names, and which characters may be printed."""

import unicodedata

from gpcache.errors import DataError

MAX_CLASS_NAME = 200

# Persian words and emoji contain these, which Python does not consider printable.
JOINERS = "\u200c\u200d" + "".join(map(chr, range(0xE0020, 0xE0080)))
# Letters and symbols to Python, but nothing is to be seen of them.
_BLANKS = "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
# They choose between two forms of the character before them.
_SELECTORS = "".join(map(chr, range(0xFE00, 0xFE10)))


def tidy_name(name: str) -> str:
    """A class name in standard form: composed letters (NFC), single spaces, none at either end."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def class_name(name: str) -> str:
    """A class name in standard form; one that cannot be seen, or is too long, is an error.

    Folders, lists and the page share this rule. Estimators keep their labels as they are.
    """
    text = tidy_name(name)
    if len(text) > MAX_CLASS_NAME:
        raise DataError(
            f"The class name {quoted(f'{text[:40]}…')} is longer than {MAX_CLASS_NAME} characters: "
            "give the class a shorter name."
        )
    if hidden := next((letter for letter in text if not is_printed(letter)), None):
        raise DataError(
            f"The class name {quoted(text)} holds the character U+{ord(hidden):04X}, which is not "
            "printable: rename the class without it."
        )
    if not text.replace("_", " ").strip(f" {JOINERS}{_SELECTORS}"):
        raise DataError(f"{quoted(text)} is not a class name: give it printable characters.")
    return text


def is_printed(letter: str) -> bool:
    """Whether a character may be printed: not if it controls a terminal."""
    # Python's tables may be older than an emoji.
    is_new_emoji = "\U0001f000" <= letter <= "\U0001fbff"
    known = letter.isprintable() and letter not in _BLANKS
    return known or letter in JOINERS or is_new_emoji


def quoted(name: str) -> str:
    """A name in quotes, as `repr` writes it, but with all characters that may be printed."""
    quote = '"' if "'" in name and '"' not in name else "'"
    escaped = (x if is_printed(x) and x != "\\" else repr(x)[1:-1] for x in name)
    return quote + "".join(f"\\{x}" if x == quote else x for x in escaped) + quote


def printable(text: str) -> str:
    """Text on one line that cannot control a terminal or change how other text is shown."""
    return "".join(letter if is_printed(letter) else "�" for letter in text)
