"""A table of text, and how Markdown, LaTeX and CSV write it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": r"$-$", "→": r"$\to$", "–": "--", "—": "---", "≤": r"$\leq$",
    "σ²": r"$\sigma^2$", "η": r"$\eta$", "β": r"$\beta$", "α": r"$\alpha$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A named table: a title that says what is in it, a header, rows of as many cells, notes."""

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

        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(_latex, cells)) + r" \\"

        columns = "l" + "r" * (len(self.header) - 1)
        notes = [rf"\par\smallskip\footnotesize {_latex(note)}" for note in self.notes]
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(self.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            line(self.header),
            r"\midrule",
            *map(line, self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Header and rows; what has no number stays as it is written."""
        stream = io.StringIO(newline="")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return stream.getvalue()


def _latex(text: str) -> str:
    """Text that LaTeX prints as it is read here."""
    text = text.replace("σ²", "\0")
    letters = (_LATEX["σ²"] if letter == "\0" else _LATEX.get(letter, letter) for letter in text)
    return "".join(letters)
