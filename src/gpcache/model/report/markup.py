"""Pieces of HTML: escaped text, numbers, embedded images, tables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from html import escape
from math import isnan

from gpcache.errors import DataError

_SIGNATURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png"}
_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")


def words(value: object) -> str:
    """Any text, safe between tags and inside attributes.

    Names of files may hold bytes that are no text, and controls that HTML forbids.
    """
    text = str(value).encode("utf-8", "replace").decode()
    return escape(text.translate(_CONTROLS))


def name(value: object) -> str:
    """A name from outside: cut to the place it has, whole in its title, its direction its own."""
    shown = words(value)
    return f'<bdi class="name" title="{shown}">{shown}</bdi>'


def percent(share: float, digits: int = 1) -> str:
    """A share as 93.2 %; a dash where there is none."""
    return "–" if isnan(share) else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def signed(weight: float) -> str:
    """A weight with its sign."""
    # Adding zero takes the sign off what rounds to nothing.
    return f"{round(weight, 2) + 0.0:+.2f}".replace("-", "\N{MINUS SIGN}")


def number(value: float) -> str:
    """A number in three digits."""
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def picture(image: bytes, alternative: str) -> str:
    """An image inside the page; JPEG or PNG, because a browser shows nothing else as safely."""
    kind = next((kind for start, kind in _SIGNATURES.items() if image.startswith(start)), None)
    if kind is None:
        raise DataError(
            f"The picture for {alternative!r} is neither JPEG nor PNG: a report embeds no other."
        )
    data = b64encode(image).decode()
    return f'<img alt="{words(alternative)}" src="data:{kind};base64,{data}">'


def figure(drawing: str, caption: str) -> str:
    """A drawing above its caption, both HTML already."""
    return f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>"


def cell(content: str, value: float | None = None) -> str:
    """A table cell; `value` makes it a number, by which the column can be sorted."""
    if value is None:
        return f"<td>{content}</td>"
    return f'<td class="number" data-value="{-1 if isnan(value) else value:.6g}">{content}</td>'


def bar(share: float) -> str:
    """A share as a number on a bar."""
    if isnan(share):
        return percent(share)
    return f'<span class="bar" style="--share:{share:.4f}">{percent(share)}</span>'


def table(
    caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]], *, sortable: bool = False
) -> str:
    """A table that scrolls when it is long; heads and cells are HTML already."""
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    mark = " data-sortable" if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table{mark}>'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "</div>"
    )


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """A list of terms and what they are, both HTML already."""
    inner = "".join(f"<div><dt>{term}</dt><dd>{value}</dd></div>" for term, value in items)
    return f"<dl>{inner}</dl>"
