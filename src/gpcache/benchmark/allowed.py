"""What a spec may name: methods, their options and values; a mistake gets the nearest word."""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from reprlib import repr as shown
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpcache.errors import GPCacheError
from gpcache.methods import registry

# "2c" in the options of a spec: twice the number of classes.
MULTIPLE = re.compile(r"(\d*)c")
# What a run gives to a method itself: its data, where it computes, the spec's own projection.
_GIVEN = ("text_prior", "prompt_vectors", "encoder", "projection", "device")
_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}

Refuse = Callable[[str, str], GPCacheError]


def nearest(word: object, known: Iterable[str]) -> str:
    """The known word that a mistake is closest to, as the end of a sentence; "" if none is."""
    near = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_method(name: str, refuse: Refuse) -> None:
    """Refuse a method that is not in the registry."""
    known = registry()
    if name not in known:
        near = nearest(name, known)
        raise refuse("name", f"is {name!r}, which is no method{near}: use {_list(known)}")


def check_options(method: str, key: str, options: Mapping[str, Any], refuse: Refuse) -> None:
    """Refuse an option that the method's constructor lacks, or a value that it cannot be."""
    known = _hints(method)
    for name, value in options.items():
        if name not in known:
            raise refuse(
                f"{key}.{name}",
                f"is no option of {method!r}{nearest(name, known)}: use {_list(known)}",
            )
        choices, kinds = _members(known[name])
        if not _fits(value, choices, kinds):
            words = [*map(repr, choices), *(_WORDS[kind] for kind in kinds)]
            raise refuse(
                f"{key}.{name}",
                f"must be {' or '.join(words)}, got {shown(value)}{nearest(value, choices)}",
            )


@cache
def _hints(method: str) -> dict[str, Any]:
    """The options of a method's constructor that a spec may set, with their types."""
    constructor = registry()[method].constructor
    hints: dict[str, Any] = {}
    for parent in reversed(constructor.__mro__[:-1]):
        if "__init__" in vars(parent):
            hints |= get_type_hints(inspect.unwrap(vars(parent)["__init__"]))
    names = constructor().get_params(deep=False)
    return {name: hints[name] for name in names if name not in _GIVEN}


def _members(hint: Any) -> tuple[list[str], list[type]]:
    """The literal values, and the plain types, of which an option may be."""
    if get_origin(hint) is Literal:
        return list(get_args(hint)), []
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_members(part) for part in get_args(hint)]
        return [one for part in parts for one in part[0]], [
            one for part in parts for one in part[1]
        ]
    return [], [hint] if hint in _WORDS else []


def _fits(value: Any, choices: list[str], kinds: list[type]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, str):
        multiple = int in kinds and MULTIPLE.fullmatch(value) is not None
        return value in choices or str in kinds or multiple
    return type(value) in kinds or (isinstance(value, int) and float in kinds)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
