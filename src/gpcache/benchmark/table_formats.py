"""A table of text, and how Markdown, LaTeX and CSV write it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": r"$-$", "→": r"$\to$", "–": "--", "—": "---", "≤": r"$\leq$",
    "\0": r"$\sigma^2$", "η": r"$\eta$", "β": r"$\beta$", "α": r"$\alpha$",
})  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A named table: a title, a header, rows of as many cells, notes."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """A heading, the table, and the notes as a list."""
        lines = [[cell.replace("|", r"\|") for cell in row] for row in (self.header, *self.rows)]
        body = [f"| {' | '.join(cells)} |" for cells in lines]
        body.insert(1, "|---|" + "---:|" * (len(self.header) - 1))
        notes = [f"- {note}" for note in self.notes]
        parts = [f"## {self.title}", "\n".join(body), "\n".join(notes)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def latex(self) -> str:
        """A table environment with booktabs rules; the notes stand below as text."""
        header, *rows = (" & ".join(map(_latex, r)) + r" \\" for r in (self.header, *self.rows))
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip\footnotesize {_latex(note)}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """Header and rows as they are written in the other formats."""
        stream = io.StringIO(newline="")
        csv.writer(stream, lineterminator="\n").writerows([self.header, *self.rows])
        return stream.getvalue()


def _latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return text.replace("σ²", "\0").translate(_LATEX)
