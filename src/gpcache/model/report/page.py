"""The report as one HTML file with everything inside, which fetches nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from gpcache import metrics
from gpcache.errors import DataError
from gpcache.model.card import environment
from gpcache.model.evaluation import ClassScore, Evaluation
from gpcache.model.report.content import Report
from gpcache.model.report.drawing import class_colours, to_page
from gpcache.model.report.plots import MOST_NAMED, report_plots
from gpcache.support.files import write_atomic

_BEST_SETTINGS = 10
_SIGNATURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png"}
_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")


class Section(NamedTuple):
    """A section of the page: its heading, its template and what the template shows."""

    title: str
    template: str
    content: Any


def write_report(report: Report, path: str | Path) -> None:
    """Write the page to `path`; if this fails, an existing file stays as it was."""
    write_atomic(path, render(report).encode())


def render(report: Report) -> str:
    """The page as HTML; equal reports give equal pages."""
    script = Markup(_TEMPLATES.get_template("sort.js").render())
    drawings = {
        name: {"svg": Markup(to_page(figure, name=name, alternative=words)), "words": words}
        for name, figure, words in report_plots(report, on_page=True)
    }
    return _TEMPLATES.get_template("page.html").render(
        report=report,
        sections=_sections(report),
        drawings=drawings,
        most_named=MOST_NAMED,
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


def _sections(report: Report) -> list[Section]:
    """The sections that the report has content for, in order."""
    sections = [
        Section("Mistakes", "mistakes.html", report.main),
        Section("Is its confidence right?", "confidence.html", report.main),
        Section("Advice", "advice.html", report.advice),
        *(Section(title, "cases.html", cases) for title, cases in report.cases.items()),
        Section("Map of the classes", "map.html", report.embedding),
        Section("Settings", "settings.html", report.chosen),
        Section(f"Refused files ({len(report.refused)})", "refused.html", report.refused),
        Section("How this report was made", "facts.html", report.facts),
    ]
    return [section for section in sections if section.content]


def _clean(value: Any) -> Any:
    """Text without the bytes and control characters of file names that HTML forbids."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return value.encode("utf-8", "replace").decode().translate(_CONTROLS)


def percent(share: float) -> str:
    """0.961 as 96.1 %; a dash for NaN."""
    return "–" if isnan(share) else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def signed(weight: float) -> str:
    """A weight with its sign and two decimals."""
    # Adding zero removes the sign of what rounds to zero.
    return f"{round(weight, 2) + 0.0:+.2f}".replace("-", "\N{MINUS SIGN}")


def number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def data_url(image: bytes, caption: str) -> str:
    """An image inside the page: JPEG or PNG, because other formats can hold scripts."""
    for start, kind in _SIGNATURES.items():
        if image.startswith(start):
            return f"data:{kind};base64,{b64encode(image).decode()}"
    raise DataError(
        f"The picture for {caption!r} is neither JPEG nor PNG: a report embeds no other."
    )


def answered(evaluation: Evaluation) -> tuple[float, float, float, int] | None:
    """Accuracy, its interval and n of the images that were not rejected; None if all or none."""
    right = evaluation.correct[~evaluation.rejected]
    if not 0 < len(right) < len(evaluation):
        return None
    low, high = metrics.wilson_interval(int(right.sum()), len(right))
    return float(right.mean()), low, high, len(right)


def worst_first(evaluation: Evaluation) -> list[ClassScore]:
    """The classes by recall; those without images come last."""
    return sorted(evaluation.per_class(), key=lambda one: (isnan(one.recall), one.recall))


def best_settings(search: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns that vary: first the row in use, then the best of the others."""
    other_rows = 1 + np.argsort(search["score"][1:], kind="stable")
    rows = [0, *other_rows[: _BEST_SETTINGS - 1]]
    return {key: column[rows] for key, column in search.items() if len(np.unique(column)) > 1}


_TEMPLATES = environment(
    _clean,
    (percent, signed, number, data_url, answered, worst_first, best_settings, class_colours),
)
