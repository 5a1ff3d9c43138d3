"""Styled matplotlib figures, and figures as files or as SVG that follows the page's colours.

It uses matplotlib's objects only, neither pyplot nor rcParams, so that a caller's own plots do not
change.
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
FONT_SIZE = 9.0
# The style sheet of the page defines these variables for light and dark.
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    SURFACE: "var(--surface)",
    FOR: "var(--for)",
    AGAINST: "var(--against)",
}
_DOTS_PER_INCH = 200
_GOLDEN_RATIO = 0.618034


def matplotlib(module: str) -> ModuleType:
    """Import a module of matplotlib, or name the extra that installs it."""
    return require(f"matplotlib.{module}", "report", purpose="A report")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; width and height are inches."""
    figure: Figure = matplotlib("figure").Figure(
        figsize=(width, height), layout="constrained", facecolor=SURFACE
    )
    return figure


def style_axes(axes: Axes, *, x: str = "", y: str = "") -> Axes:
    """Axes with these labels, a faint grid and no box."""
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
    """A colour for each class, readable on light and dark; consecutive hues are far apart."""
    colours = []
    for number in range(classes):
        lightness = (0.45, 0.58)[number % 2]
        rgb = colorsys.hls_to_rgb((0.58 + number * _GOLDEN_RATIO) % 1, lightness, 0.62)
        colours.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return colours


def drawable(name: str, limit: int = 24) -> str:
    """A name that matplotlib can draw: short, no formulas, "?" for glyphs that its font lacks."""
    fonts = matplotlib("font_manager")
    font = fonts.get_font(fonts.findfont(fonts.FontProperties(family="DejaVu Sans")))
    short = name if len(name) <= limit else name[: limit - 1] + "…"
    shown = "".join(c if c.isprintable() and font.get_char_index(ord(c)) else "?" for c in short)
    return shown.replace("$", r"\$")


def to_file(figure: Figure, form: Format) -> bytes:
    """The bytes of a PNG or SVG file with a white background; equal figures give equal bytes."""
    if form == "png":
        return _saved(figure, form, {"Software": None})
    root = _svg(figure, prefix="part-")
    for element in root.iter():
        if "href" in element.attrib:  # older viewers know no other name
            element.set("xlink:href", element.attrib.pop("href"))
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("xmlns:xlink", "http://www.w3.org/1999/xlink")
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def to_page(figure: Figure, *, name: str, alternative: str) -> str:
    """An SVG element for an HTML page; `name` makes its ids differ from those of other figures."""
    figure.patch.set_visible(False)
    root = _svg(figure, prefix=f"{name}-")
    del root.attrib["width"], root.attrib["height"]  # the page sets the size
    root.set("role", "img")
    root.set("aria-label", alternative)
    text = ElementTree.tostring(root, encoding="unicode")
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text


def _saved(figure: Figure, form: Format, metadata: dict[str, None]) -> bytes:
    stream = BytesIO()
    figure.savefig(stream, format=form, dpi=_DOTS_PER_INCH, metadata=metadata)
    return stream.getvalue()


def _svg(figure: Figure, prefix: str) -> ElementTree.Element:
    """matplotlib's SVG without comments, metadata, style sheet and namespaces.

    matplotlib's ids are random, and some are the same in every figure: here they are numbered.
    """
    root = ElementTree.fromstring(_saved(figure, "svg", {"Date": None, "Creator": None}))
    ids: dict[str, str] = {}
    for element in list(root.iter()):
        element.tag = element.tag.partition("}")[2]
        for child in list(element):
            if child.tag.endswith(("}metadata", "}style")):
                element.remove(child)
        if "id" in element.attrib:
            ids[element.attrib["id"]] = f"{prefix}{len(ids)}"

    def renumbered(key: str, value: str) -> str:
        if key == "id":
            return ids[value]
        return re.sub(r"#([\w-]+)", lambda match: f"#{ids.get(match[1], match[1])}", value)

    for element in root.iter():
        element.attrib = {
            key.rpartition("}")[2]: renumbered(key, value) for key, value in element.attrib.items()
        }
    # The removed style sheet set these for all elements.
    root.set("stroke-linejoin", "round")
    root.set("stroke-linecap", "butt")
    return root
