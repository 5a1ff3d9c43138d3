"""Which options of a method a spec may set, and which values they take."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from gpcache.benchmark.peers import known_methods
from gpcache.support.checks import shown

# "2c" in the options of a spec: twice the number of classes.
MULTIPLE = re.compile(r"(\d*)c")
# Options that a run sets itself: data, device, and the projection of the spec.
_PASSED_BY_THE_RUN = ("text_prior", "prompt_vectors", "encoder", "projection", "device")
_WORDS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    tuple: "a list of numbers",
}


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The known word closest to a misspelt one, as the end of a sentence; "" if none is close."""
    near = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def option_problem(method: str, option: str, value: Any) -> str:
    """What is wrong with an option of a method, as the end of a sentence; "" if nothing is."""
    known = _options(method)
    if option not in known:
        names = ", ".join(sorted(known))
        return f"is not an option of {method!r}{did_you_mean(option, known)}: use {names}"
    allowed = _allowed(known[option])
    if _fits(value, allowed):
        return ""
    choices = [one for one in allowed if isinstance(one, str)]
    kinds = [_WORDS[one] for one in allowed if not isinstance(one, str)]
    words = " or ".join([*map(repr, choices), *kinds])
    return f"must be {words}, got {shown(value)}{did_you_mean(value, choices)}"


@cache
def _options(method: str) -> dict[str, Any]:
    """The options of a method's constructor that a spec may set, with their types."""
    hints = known_methods()[method].constructor.option_types()
    return {name: hint for name, hint in hints.items() if name not in _PASSED_BY_THE_RUN}


def _allowed(hint: Any) -> list[str | type]:
    """The literal values and the plain types that a type hint allows."""
    if get_origin(hint) is tuple:
        return [tuple]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return [one for part in get_args(hint) for one in _allowed(part)]
    return [hint] if hint in _WORDS else []


def _fits(value: Any, allowed: list[str | type]) -> bool:
    if isinstance(value, str):
        multiple = int in allowed and MULTIPLE.fullmatch(value) is not None
        return value in allowed or str in allowed or multiple
    if isinstance(value, list):
        return tuple in allowed and all(type(one) in (int, float) for one in value)
    # Every whole number is a number, but true and false are not.
    return type(value) in allowed or (type(value) is int and float in allowed)
