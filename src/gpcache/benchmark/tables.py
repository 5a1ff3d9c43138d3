"""Tables of results beside the published numbers: accuracy, summaries, significance, claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from gpcache.benchmark.boards import (
    SEED,
    Board,
    boards_of,
    rows_of,
    shared_columns,
    shown,
    slug,
    title_of,
    trains,
)
from gpcache.benchmark.markup import Table
from gpcache.benchmark.protocols import NO_VALIDATION
from gpcache.benchmark.published import MEAN, Published, published
from gpcache.benchmark.results import DONE, NOT_POSSIBLE, Row, reason
from gpcache.benchmark.significance import paired_bootstrap
from gpcache.benchmark.spec import MethodSpec, Spec

PUBLISHED_ENCODER, PUBLISHED_SHOTS = "clip-rn50", 16
MARKS = {"error": "✗", "doubt": "?"}


def tables_of(spec: Spec, rows: Iterable[Row]) -> list[Table]:
    """Every table of an experiment; each is of one protocol."""
    wanted = rows_of(spec, rows)
    boards = boards_of(spec, wanted)
    paper = None if spec.published is None else published(spec.published)
    tables = [table for board in boards for table in _board_tables(spec, board, paper, wanted)]
    tables += _spreads(spec, boards)
    tables += _summaries(spec, boards, paper)
    tables += _claims(spec, boards)
    return tables


def _board_tables(
    spec: Spec, board: Board, paper: Published | None, rows: Sequence[Row]
) -> Iterator[Table]:
    heading = f"{spec.title}: {board.protocol}, {board.encoder}, {_shots(board.shots)}"
    name = f"{spec.name}-{slug(board.protocol)}-{slug(board.encoder)}-{board.shots}"
    yield _accuracy_table(spec, board, paper, rows, name, heading)
    if len(board.lines) > 1:
        yield _significance_table(board, f"{name}-significance", heading)


def _accuracy_table(
    spec: Spec,
    board: Board,
    paper: Published | None,
    rows: Sequence[Row],
    name: str,
    heading: str,
) -> Table:
    own = "held out" if board.protocol == NO_VALIDATION else "validation"
    own_name = "held_out_accuracy" if own == "held out" else "validation_accuracy"
    ranks, ranked = board.ranks()
    several = len(board.columns) > 1
    header = ["method", *map(title_of, board.columns), *(["mean"] if several else [])]
    columns = [*board.columns, *([MEAN] if several else [])]
    further = ["rank", own, "NLL", "ECE", "fit s"]
    comparable = board.encoder == PUBLISHED_ENCODER and board.shots == PUBLISHED_SHOTS
    beside = _Beside(paper if comparable else None, set(spec.datasets) <= set(board.columns))
    body: list[list[str]] = []
    for line in _lines(spec, board):
        cells_of = [board.values(line.label, column) for column in board.columns]
        cells_of += [board.means(line.label)] if several else []
        figures = [
            _number(ranks.get(line.label, math.nan), 1),
            _number(board.average(line.label, own_name), 2),
            _number(board.average(line.label, "nll"), 3),
            _number(board.average(line.label, "ece"), 2),
            _number(board.average(line.label, "seconds"), 2),
        ]
        body.append([line.label, *map(shown, cells_of), *figures])
        body += beside.rows(line, columns, cells_of, len(figures) - 1, with_seconds=True)
    place = (board.protocol, board.encoder, board.shots)
    own_rows = [
        row
        for row in rows
        if (row["protocol"], row["encoder"], row["shots"]) == place or not row["label"]
    ]
    notes = [
        f"Accuracy in % on test images, mean ± standard deviation over draws; protocol: "
        f"{board.protocol}. *rank* is the mean over the data sets ({ranked}) where all ran; "
        f"*{own}* is accuracy in % on the rows that were chosen on; ECE in %.",
        f"*fit s* are seconds of a fit, its search included, on {_devices(board)}.",
        *_absent(spec, own_rows),
        *sorted({note for row in own_rows if row["status"] == DONE for note in row["notes"]}),
        *beside.notes(),
    ]
    return Table(name, heading, [*header, *further], body, notes)


class _Beside:
    """The published numbers beside ours: a line for them and one for the differences."""

    def __init__(self, paper: Published | None, complete: bool) -> None:
        self._paper, self._complete = paper, complete
        self._notes: dict[str, None] = {}
        self._single = False

    def rows(
        self,
        line: MethodSpec,
        columns: Sequence[str],
        ours: Sequence[Sequence[float]],
        blanks: int = 0,
        *,
        with_seconds: bool = False,
    ) -> list[list[str]]:
        """The two lines, or none where nothing was published; `blanks` cells stay empty."""
        self._single = len(columns) == 1
        printed = [self._value(line, column) for column in columns]
        if all(value is None for value in printed):
            return []
        theirs = [
            "–" if value is None else f"{value:.2f}{self._mark(line, column)}"
            for value, column in zip(printed, columns, strict=True)
        ]
        gaps = [
            "–" if value is None or not found else _signed(fmean(found) - value)
            for value, found in zip(printed, ours, strict=True)
        ]
        seconds = self._seconds(line) if with_seconds else []
        blank = [""] * blanks
        return [
            [f"{line.label}, published", *theirs, *blank, *seconds],
            ["difference", *gaps, *blank, *("" for _ in seconds)],
        ]

    def notes(self) -> list[str]:
        """What is known to be wrong with the numbers that were shown."""
        if self._paper is None:
            return []
        return [f"Published: {self._paper.source}.", *self._notes]

    def _place(self, line: MethodSpec, column: str) -> tuple[str, str] | None:
        """Where the published table has the number of a line and one of our columns."""
        if self._paper is None:
            return None
        test = column.rpartition(" → ")[2]
        choices = [test]
        # A mean over other data sets than the published one does not compare; the mean over one
        # data set is its number.
        if self._complete and (column == MEAN or self._single):
            choices += [MEAN, _kind(line)]
        elif column == MEAN:
            choices = []
        for choice in choices:
            if choice in self._paper.columns:
                return line.published, choice
        return None

    def _value(self, line: MethodSpec, column: str) -> float | None:
        place = self._place(line, column)
        return None if place is None or self._paper is None else self._paper.value(*place)

    def _seconds(self, line: MethodSpec) -> list[str]:
        """The published time, on the machine of its authors."""
        found = self._paper and self._paper.value(line.published, f"{_kind(line)} seconds")
        return ["" if found is None else f"{found:g}"]

    def _mark(self, line: MethodSpec, column: str) -> str:
        place = self._place(line, column)
        if place is None or self._paper is None:
            return ""
        found = [note for note in self._paper.notes_on(*place) if note.kind in MARKS]
        for note in found:
            self._notes[f"{MARKS[note.kind]} {line.label}, {title_of(column)}: {note.text}"] = None
        return "".join(sorted({MARKS[note.kind] for note in found}))


def _significance_table(board: Board, name: str, heading: str) -> Table:
    """Each line against the best, on the same test images."""
    best = max(board.lines, key=lambda line: fmean(board.means(line) or [-1.0]))
    body = []
    for line in board.lines:
        ours, others = board.answered([line, best])
        if line == best or not ours:
            continue
        found = paired_bootstrap(ours, others)
        interval = f"{_signed(100 * found.low)} to {_signed(100 * found.high)}"
        p_value = f"{found.p_value:.3f}" if found.p_value >= 0.001 else "< 0.001"
        body.append([line, _signed(100 * found.mean), interval, p_value])
    note = (
        f"Difference in accuracy to {best}, in points, over the data sets where both ran; "
        "paired bootstrap over test images, 95 % interval. It tells about other test images, not "
        "about other draws or data sets."
    )
    header = ["method", f"minus {best}", "95 % interval", "p"]
    return Table(name, f"{heading}: significance", header, body, [note])


def _spreads(spec: Spec, boards: Sequence[Board]) -> Iterator[Table]:
    """How far lines that differ in their seed alone lie apart."""
    families: dict[str, list[str]] = {}
    for method in spec.methods:
        if set(method.varied) == {SEED}:
            families.setdefault(method.family, []).append(method.label)
    for board in boards:
        body = []
        for family, labels in families.items():
            for column in board.columns:
                found = [value for label in labels for value in board.values(label, column)]
                if found:
                    ends = [_number(min(found), 2), _number(max(found), 2)]
                    body.append([family, title_of(column), str(len(found)), shown(found), *ends])
        if body:
            yield Table(
                f"{spec.name}-{slug(board.protocol)}-{slug(board.encoder)}-{board.shots}-seeds",
                f"{spec.title}: over seeds, {board.protocol}, {board.encoder}, "
                f"{_shots(board.shots)}",
                ["method", "data", "runs", "accuracy", "lowest", "highest"],
                body,
                [f"Accuracy in %, mean ± standard deviation over runs that differ in {SEED}."],
            )


def _summaries(spec: Spec, boards: Sequence[Board], paper: Published | None) -> Iterator[Table]:
    """Means over data sets by shots, and by encoder, where there are several."""
    for protocol in dict.fromkeys(board.protocol for board in boards):
        of_protocol = [board for board in boards if board.protocol == protocol]
        for encoder in dict.fromkeys(board.encoder for board in of_protocol):
            group = [board for board in of_protocol if board.encoder == encoder]
            if len(group) > 1:
                suits = paper if encoder == PUBLISHED_ENCODER else None
                names = {str(board.shots): board for board in group}
                heading = f"{spec.title}: mean by shots, {protocol}, {encoder}"
                name = f"{spec.name}-{slug(protocol)}-{slug(encoder)}-shots"
                yield _summary(spec, names, suits, name, heading)
        for shots in dict.fromkeys(board.shots for board in of_protocol):
            group = [board for board in of_protocol if board.shots == shots]
            if len(group) > 1:
                suits = paper if shots == PUBLISHED_SHOTS else None
                names = {board.encoder: board for board in group}
                heading = f"{spec.title}: mean by encoder, {protocol}, {_shots(shots)}"
                yield _summary(
                    spec, names, suits, f"{spec.name}-{slug(protocol)}-encoders-{shots}", heading
                )


def _summary(
    spec: Spec, boards: dict[str, Board], paper: Published | None, name: str, heading: str
) -> Table:
    shared = shared_columns(list(boards.values()))
    complete = set(spec.datasets) <= set(shared)
    beside = _Beside(paper if complete else None, complete=False)
    body: list[list[str]] = []
    for line in spec.methods:
        means = [board.means(line.label, shared) for board in boards.values()]
        if any(means):
            body.append([line.label, *map(shown, means)])
            body += beside.rows(line, list(boards), means)
    sets = ", ".join(map(title_of, shared)) or "no data set: none is on every table"
    notes = [f"Mean accuracy in % over {sets}.", *beside.notes()]
    return Table(name, heading, ["method", *boards], body, notes)


def _claims(spec: Spec, boards: Sequence[Board]) -> Iterator[Table]:
    """Whether the paper's sentences hold here."""
    by_place: dict[tuple[str, str], list[Board]] = {}
    for board in boards:
        by_place.setdefault((board.protocol, board.encoder), []).append(board)
    for (protocol, encoder), group in by_place.items() if spec.claims else ():
        body = []
        for claim in spec.claims:
            for board in group:
                if claim.shots and board.shots not in claim.shots:
                    continue
                better, worse = board.means(claim.better), board.means(claim.worse)
                if better and worse:
                    gap = fmean(better) - fmean(worse)
                    verdict = ["holds" if gap > 0 else "does not hold", _signed(gap)]
                else:
                    verdict = ["cannot be checked", "–"]
                body.append([claim.text, str(board.shots), *verdict])
        yield Table(
            f"{spec.name}-{slug(protocol)}-{slug(encoder)}-claims",
            f"{spec.title}: what the paper says, {protocol}, {encoder}",
            ["claim", "shots", "verdict", "difference"],
            body,
        )


def _absent(spec: Spec, rows: Sequence[Row]) -> list[str]:
    """What did not run, and why, each once: lines and data sets of one reason stand together."""
    datasets = {row["dataset"] for row in rows if row["label"]}
    notes = dict.fromkeys(reason(row) for row in rows if not row["label"])
    reasons: dict[str, dict[str, set[str]]] = {}  # why → line → data sets
    for row in rows:
        if row["label"] and row["status"] != DONE:
            why = row["why"] if row["status"] == NOT_POSSIBLE else f"failed: {row['why']}"
            reasons.setdefault(why, {}).setdefault(row["label"], set()).add(row["dataset"])
    nowhere = {line for where in reasons.values() for line in where if where[line] == datasets}
    others = {method.label for method in spec.methods} - nowhere
    for why, where in reasons.items():
        lines_on: dict[frozenset[str], list[str]] = {}
        for line, names in where.items():
            lines_on.setdefault(frozenset(names), []).append(line)
        for found, lines in lines_on.items():
            who = ", ".join(lines)
            if set(lines) == others and len(lines) > 1:
                who = "All other lines" if nowhere else "All lines"
            on = "" if found == datasets else f" on {', '.join(map(title_of, sorted(found)))}"
            notes[f"{who}{on}: {why}"] = None
    return [note.rstrip(".") + "." for note in notes]


def _devices(board: Board) -> str:
    devices = {row["device"] for cell in board.cells.values() for row in cell.values()}
    return " and ".join(sorted(devices))


def _lines(spec: Spec, board: Board) -> list[MethodSpec]:
    return [method for method in spec.methods if method.label in board.lines]


def _kind(line: MethodSpec) -> str:
    return "trained" if trains(line) else "training-free"


def _shots(shots: int) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _signed(value: float) -> str:
    # Adding zero makes of a negative zero a plain one.
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")
