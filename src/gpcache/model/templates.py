"""The Jinja2 environment of the report page and the model card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment(
    clean: Callable[[Any], Any], filters: Sequence[Callable[..., Any]] = ()
) -> Environment:
    """An environment that passes every value through `clean` and then escapes its HTML.

    They can use the `filters` by name.
    """
    jinja = Environment(
        loader=PackageLoader("gpcache.model", "report/templates"),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {one.__name__: one for one in filters}
    return jinja
