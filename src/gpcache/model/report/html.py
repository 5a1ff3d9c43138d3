"""The page: one HTML file with everything inside, which fetches nothing."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from gpcache.model.report.cases import gallery
from gpcache.model.report.content import Report
from gpcache.model.report.markup import name, pairs, words
from gpcache.model.report.sections import (
    confidence,
    feature_map,
    headline,
    mistakes,
    refusals,
    settings,
)
from gpcache.support.files import write_atomic


def write_report(report: Report, path: str | Path) -> None:
    """Write the page to `path`, whole or not at all."""
    write_atomic(path, render(report).encode())


def render(report: Report) -> str:
    """The page as HTML; the same report gives the same page."""
    sections = _sections(report)
    links = "".join(
        f'<li><a href="#part-{i}">{words(title)}</a></li>' for i, (title, _) in enumerate(sections)
    )
    parts = "".join(
        f'<section id="part-{i}"><h2>{words(title)}</h2>{body}</section>'
        for i, (title, body) in enumerate(sections)
    )
    script = _resource("sort.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    # Should a name slip through unescaped, the browser still runs and fetches nothing of it.
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{words(report.title)}</title>\n<style>{_resource('style.css')}</style>\n"
        f"</head>\n<body>\n<header><p>gpcache report</p><h1>{name(report.title)}</h1></header>\n"
        f"<main>{headline(report)}"
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>{parts}</main>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(report: Report) -> list[tuple[str, str]]:
    """Titles and bodies, in the order of the page, of what the report has."""
    found = []
    main = report.main
    if main is not None:
        found.append(("Where it errs", mistakes(main)))
        found.append(("Is it as sure as it should be?", confidence(report, main)))
    found += [(title, gallery(cases)) for title, cases in report.cases.items() if cases]
    if report.embedding is not None:
        found.append(("Map of the classes", feature_map(report.embedding)))
    if report.chosen:
        found.append(("Settings", settings(report.chosen, report.search)))
    if report.refused:
        found.append((f"Refused files ({len(report.refused)})", refusals(report)))
    if report.facts:
        lines = ((words(key), name(value)) for key, value in report.facts.items())
        found.append(("How this was made", pairs(lines)))
    return found


def _resource(file: str) -> str:
    return files("gpcache.model.report").joinpath(file).read_text(encoding="utf-8")
