"""Blank matplotlib figures, and from a figure to a file or to SVG that follows the page's colours.

Only matplotlib's objects are used: no pyplot, no settings, so that a caller's own plots stay as
they are.
"""

from __future__ import annotations

import colorsys
import re
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

from gpcache.support.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["png", "svg"]

INK, MUTED, LINE, SURFACE = "#1b2430", "#5b6675", "#d9dee5", "#ffffff"
FOR, AGAINST = "#2563a8", "#b4530a"
# In the page these colours are variables of its style sheet, which has a light and a dark set.
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    SURFACE: "var(--surface)",
    FOR: "var(--for)",
    AGAINST: "var(--against)",
}
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_DOTS_PER_INCH = 200
FONT_SIZE = 9.0
_GOLDEN = 0.618034


def matplotlib(module: str) -> ModuleType:
    """A module of matplotlib, or a sentence that says how to get it."""
    return require(f"matplotlib.{module}", "report", purpose="A report")


def blank(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    figure: Figure = matplotlib("figure").Figure(
        figsize=(width, height), layout="constrained", facecolor=SURFACE
    )
    return figure


def dress(axes: Axes, *, x: str = "", y: str = "") -> Axes:
    """Quiet axes: no box, a faint grid, words in muted ink."""
    axes.set_facecolor("none")
    axes.set_xlabel(x, color=MUTED, fontsize=FONT_SIZE)
    axes.set_ylabel(y, color=MUTED, fontsize=FONT_SIZE)
    axes.tick_params(colors=MUTED, labelsize=FONT_SIZE - 1, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
    axes.grid(True, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def class_colours(classes: int) -> list[str]:
    """A colour per class, readable on light and dark; neighbours in order are far in hue."""
    colours = []
    for number in range(classes):
        lightness = (0.45, 0.58)[number % 2]
        rgb = colorsys.hls_to_rgb((0.58 + number * _GOLDEN) % 1, lightness, 0.62)
        colours.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return colours


def drawable(name: str, limit: int = 24) -> str:
    """A name as matplotlib can draw it: one line, no formulas, "?" for what its font lacks."""
    fonts = matplotlib("font_manager")
    font = fonts.get_font(fonts.findfont(fonts.FontProperties(family="DejaVu Sans")))
    short = name if len(name) <= limit else name[: limit - 1] + "…"
    shown = "".join(c if c.isprintable() and font.get_char_index(ord(c)) else "?" for c in short)
    return shown.replace("$", r"\$")


def to_file(figure: Figure, form: Format) -> bytes:
    """The figure as the bytes of a PNG or SVG file, with a white ground."""
    if form == "png":
        return _saved(figure, "png")
    root = _cleaned(_saved(figure, "svg"), prefix="part-")
    for element in root.iter():
        if "href" in element.attrib:  # older viewers know no other name
            element.set("xlink:href", element.attrib.pop("href"))
    root.set("xmlns", _SVG)
    root.set("xmlns:xlink", _XLINK)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def to_page(figure: Figure, *, name: str, alternative: str) -> str:
    """The figure as an SVG element for an HTML page; `name` keeps its ids apart from others'."""
    figure.patch.set_visible(False)
    root = _cleaned(_saved(figure, "svg"), prefix=f"{name}-")
    for element in root.iter():
        for key, value in element.attrib.items():
            for colour, variable in _VARIABLES.items():
                value = value.replace(colour, variable)
            element.set(key, value)
    # The page sets the size.
    del root.attrib["width"], root.attrib["height"]
    root.set("role", "img")
    root.set("aria-label", alternative)
    return ElementTree.tostring(root, encoding="unicode")


def _saved(figure: Figure, form: Format) -> bytes:
    stream = BytesIO()
    # Neither a date nor a version: equal figures give equal files.
    nothing = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[form]
    figure.savefig(stream, format=form, dpi=_DOTS_PER_INCH, metadata=nothing)
    return stream.getvalue()


def _cleaned(svg: bytes, prefix: str) -> ElementTree.Element:
    """matplotlib's SVG without comments, metadata and style sheet, its ids numbered in order."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    # What the style sheet said; its rules would reach every drawing on the page.
    root.set("stroke-linejoin", "round")
    root.set("stroke-linecap", "butt")
    used = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        for name in re.findall(r"(?:^|url\()#([^)]+)", value)
    }
    numbers: dict[str, str] = {}
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        name = element.attrib.pop("id", "")
        if name in used:
            element.set("id", numbers.setdefault(name, f"{prefix}{len(numbers)}"))
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            element.set(key.rpartition("}")[2], _renumbered(value, numbers))
    return root


def _renumbered(value: str, numbers: dict[str, str]) -> str:
    if value.startswith("#") and value[1:] in numbers:
        return f"#{numbers[value[1:]]}"
    return re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{numbers[found[1]]})", value)
