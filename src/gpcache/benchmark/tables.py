"""Tables of results and published numbers: accuracy, summaries, significance, claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from gpcache.benchmark.comparison import (
    SEED,
    Comparison,
    by_attributes,
    comparisons_of,
    requested_rows,
    setting_of,
    shared_columns,
    slug,
    title_of,
    trains,
)
from gpcache.benchmark.protocols import NO_VALIDATION
from gpcache.benchmark.published import MEAN, Published, published
from gpcache.benchmark.rows import DONE, NOT_POSSIBLE, Row, reason
from gpcache.benchmark.significance import mean_and_deviation, paired_bootstrap
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.benchmark.table_formats import Table

PUBLISHED_ENCODER, PUBLISHED_SHOTS = "clip-rn50", 16
MARKS = {"error": "✗", "doubt": "?"}


def tables_of(spec: Spec, rows: Iterable[Row]) -> list[Table]:
    """Every table of an experiment; each is of one protocol."""
    rows = requested_rows(spec, rows)
    comparisons = comparisons_of(spec, rows)
    paper = None if spec.published is None else published(spec.published)
    tables = []
    for comparison in comparisons:
        tables.append(_accuracy_table(spec, comparison, paper, rows))
        if len(comparison.labels) > 1:
            tables.append(_significance_table(spec, comparison))
    tables += _seed_tables(spec, comparisons)
    tables += _summaries(spec, comparisons, paper)
    return tables + list(_claim_tables(spec, comparisons))


def _accuracy_table(
    spec: Spec, comparison: Comparison, paper: Published | None, rows: Sequence[Row]
) -> Table:
    """Accuracy by method and data set, with ranks, probabilities and times."""
    selection = "held out" if comparison.protocol == NO_VALIDATION else "validation"
    selection_key = f"{selection.replace(' ', '_')}_accuracy"
    ranks, n_ranked = comparison.ranks()
    columns = [*comparison.columns, *([MEAN] if len(comparison.columns) > 1 else [])]
    further = ["rank", selection, "NLL", "ECE", "fit s"]
    comparable = comparison.encoder == PUBLISHED_ENCODER and comparison.shots == PUBLISHED_SHOTS
    complete = set(spec.datasets) <= set(comparison.columns)
    beside = _PublishedRows(paper if comparable else None, columns, means=complete)
    body: list[list[str]] = []
    for method in spec.methods:
        label = method.label
        if label not in comparison.labels:
            continue
        ours = [
            comparison.means(label) if c == MEAN else comparison.values(label, c) for c in columns
        ]
        digits = {selection_key: 2, "nll": 3, "ece": 2, "seconds": 2}
        figures = [_number(comparison.average(label, key), digits[key]) for key in digits]
        rank = _number(ranks.get(label, math.nan), 1)
        body.append([label, *map(_mean_text, ours), rank, *figures])
        body += beside.rows(method, ours, n_further=len(further))
    setting_rows = [
        row for row in rows if setting_of(row) == comparison.setting or not row["label"]
    ]
    devices = {row["device"] for cell in comparison.cells.values() for row in cell.values()}
    notes = [
        f"Accuracy in % on test images, mean ± standard deviation over draws; protocol: "
        f"{comparison.protocol}. *rank* is the mean over the data sets ({n_ranked}) where all ran; "
        f"*{selection}* is accuracy in % on the rows that were chosen on; ECE in %.",
        f"*fit s* are seconds of a fit, its search included, on {' and '.join(sorted(devices))}.",
        *_missing_notes(spec, setting_rows),
        *sorted({note for row in setting_rows if row["status"] == DONE for note in row["notes"]}),
        *beside.notes(),
    ]
    header = ["method", *map(title_of, columns), *further]
    return Table(_name(spec, comparison), _title(spec, comparison), header, body, notes)


class _PublishedRows:
    """Rows with the published numbers and with the differences to ours.

    `means` says whether our means are over the same data sets as the published ones.
    """

    def __init__(self, paper: Published | None, columns: Sequence[str], *, means: bool) -> None:
        self._paper, self._columns, self._means = paper, columns, means
        self._notes: dict[str, None] = {}

    def rows(
        self, method: MethodSpec, ours: Sequence[Sequence[float]], n_further: int = 0
    ) -> list[list[str]]:
        """The two rows, or none if nothing was published.

        Of the `n_further` cells behind the accuracies, the last one is the published time.
        """
        paper, theirs, gaps = self._paper, [], []
        if paper is None:
            return []
        for column, accuracies in zip(self._columns, ours, strict=True):
            place = self._published_column(paper, method, column)
            value, shown, gap = paper.value(method.published, place), "–", "–"
            if value is not None:
                shown = f"{value:.2f}{self._marks(paper, method, column, place)}"
                gap = _signed(fmean(accuracies) - value) if accuracies else "–"
            theirs.append(shown)
            gaps.append(gap)
        if set(theirs) == {"–"}:
            return []
        further = [""] * n_further
        seconds = paper.value(method.published, f"{_kind(method)} seconds")
        if further and seconds is not None:
            further[-1] = f"{seconds:g}"
        return [
            [f"{method.label}, published", *theirs, *further],
            ["difference", *gaps, *("" for _ in further)],
        ]

    def notes(self) -> list[str]:
        """The source, and the known errors in the numbers that are shown."""
        return [] if self._paper is None else [f"Published: {self._paper.source}.", *self._notes]

    def _published_column(self, paper: Published, method: MethodSpec, column: str) -> str:
        """The column of the published table that holds the number of one of our columns, or ""."""
        choices = [] if column == MEAN else [column.rpartition(" → ")[2]]
        # The mean over one data set is its number.
        if self._means and (column == MEAN or len(self._columns) == 1):
            choices += [MEAN, _kind(method)]
        return next((choice for choice in choices if choice in paper.columns), "")

    def _marks(self, paper: Published, method: MethodSpec, column: str, place: str) -> str:
        """Signs for known errors of a published number, which notes explain."""
        notes = [note for note in paper.notes_on(method.published, place) if note.kind in MARKS]
        for note in notes:
            start = f"{MARKS[note.kind]} {method.label}, {title_of(column)}"
            self._notes[f"{start}: {note.text}"] = None
        return "".join(sorted({MARKS[note.kind] for note in notes}))


def _significance_table(spec: Spec, comparison: Comparison) -> Table:
    """Each method against the best, on the same test images."""
    best = max(comparison.labels, key=lambda label: fmean(comparison.means(label) or [-1.0]))
    body = []
    for label in comparison.labels:
        ours, best_shares = comparison.shares_correct([label, best])
        if label == best or not ours:
            continue
        difference = paired_bootstrap(ours, best_shares)
        interval = f"{_signed(100 * difference.low)} to {_signed(100 * difference.high)}"
        p_value = f"{difference.p_value:.3f}" if difference.p_value >= 0.001 else "< 0.001"
        body.append([label, _signed(100 * difference.mean), interval, p_value])
    note = (
        f"Difference in accuracy to {best}, in points, over the data sets where both ran; "
        "paired bootstrap over test images, 95 % interval. It holds for other test images, not for "
        "other draws or data sets."
    )
    header = ["method", f"minus {best}", "95 % interval", "p"]
    name = f"{_name(spec, comparison)}-significance"
    title = f"{_title(spec, comparison)}: significance"
    return Table(name, title, header, body, [note])


def _seed_tables(spec: Spec, comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """The spread of methods that differ only in their seed."""
    families: dict[str, list[str]] = {}
    for method in spec.methods:
        if set(method.varied) == {SEED}:
            families.setdefault(method.family, []).append(method.label)
    for comparison in comparisons:
        body = []
        for family, labels in families.items():
            for column in comparison.columns:
                values = [value for label in labels for value in comparison.values(label, column)]
                if values:
                    cells = [str(len(values)), _mean_text(values)]
                    ends = [_number(min(values), 2), _number(max(values), 2)]
                    body.append([family, title_of(column), *cells, *ends])
        if body:
            header = ["method", "data", "runs", "accuracy", "lowest", "highest"]
            note = f"Accuracy in %, mean ± standard deviation over runs that differ in {SEED}."
            title = _title(spec, comparison, "over seeds, ")
            yield Table(f"{_name(spec, comparison)}-seeds", title, header, body, [note])


def _summaries(
    spec: Spec, comparisons: Sequence[Comparison], paper: Published | None
) -> Iterator[Table]:
    """Means over data sets by shots, and by encoder, if there are several."""
    for (protocol,), of_protocol in by_attributes(comparisons, "protocol").items():
        for (encoder,), group in by_attributes(of_protocol, "encoder").items():
            by_shots = {str(one.shots): one for one in group}
            suits = paper if encoder == PUBLISHED_ENCODER else None
            name, title = f"{slug(protocol, encoder)}-shots", f"by shots, {protocol}, {encoder}"
            yield from _summary(spec, by_shots, suits, name, title)
        for (shots,), group in by_attributes(of_protocol, "shots").items():
            by_encoder = {one.encoder: one for one in group}
            suits = paper if shots == PUBLISHED_SHOTS else None
            name, title = f"{slug(protocol)}-encoders-{shots}", f"by encoder, {protocol}, "
            yield from _summary(spec, by_encoder, suits, name, title + _shots(shots))


def _summary(
    spec: Spec,
    comparisons: Mapping[str, Comparison],
    paper: Published | None,
    name: str,
    title: str,
) -> Iterator[Table]:
    if len(comparisons) < 2:
        return
    shared = shared_columns(list(comparisons.values()))
    complete = set(spec.datasets) <= set(shared)
    beside = _PublishedRows(paper if complete else None, list(comparisons), means=False)
    body: list[list[str]] = []
    for method in spec.methods:
        means = [one.means(method.label, shared) for one in comparisons.values()]
        if any(means):
            body.append([method.label, *map(_mean_text, means)])
            body += beside.rows(method, means)
    sets = ", ".join(map(title_of, shared)) or "no data set: none is on every table"
    notes = [f"Mean accuracy in % over {sets}.", *beside.notes()]
    title = f"{spec.title}: mean {title}"
    yield Table(f"{spec.name}-{name}", title, ["method", *comparisons], body, notes)


def _claim_tables(spec: Spec, comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Whether the claims of the paper hold here."""
    groups = by_attributes(comparisons, "protocol", "encoder") if spec.claims else {}
    for (protocol, encoder), group in groups.items():
        body = []
        for claim in spec.claims:
            for comparison in group:
                if claim.shots and comparison.shots not in claim.shots:
                    continue
                verdict = ["cannot be checked", "–"]
                better, worse = comparison.means(claim.better), comparison.means(claim.worse)
                if better and worse:
                    gap = fmean(better) - fmean(worse)
                    verdict = ["holds" if gap > 0 else "does not hold", _signed(gap)]
                text = claim.text or f"{claim.better} above {claim.worse}"
                body.append([text, str(comparison.shots), *verdict])
        name = f"{spec.name}-{slug(protocol, encoder)}-claims"
        title = f"{spec.title}: what the paper says, {protocol}, {encoder}"
        yield Table(name, title, ["claim", "shots", "verdict", "difference"], body)


def _missing_notes(spec: Spec, rows: Sequence[Row]) -> list[str]:
    """What did not run and why; methods and data sets with the same reason share a note."""
    datasets = {row["dataset"] for row in rows if row["label"]}
    notes = dict.fromkeys(reason(row) for row in rows if not row["label"])
    reasons: dict[str, dict[str, set[str]]] = {}  # reason → label → data sets
    for row in rows:
        if row["label"] and row["status"] != DONE:
            why = row["why"] if row["status"] == NOT_POSSIBLE else f"failed: {row['why']}"
            reasons.setdefault(why, {}).setdefault(row["label"], set()).add(row["dataset"])
    nowhere = {label for where in reasons.values() for label in where if where[label] == datasets}
    other_labels = {method.label for method in spec.methods} - nowhere
    for why, where in reasons.items():
        labels_on: dict[frozenset[str], list[str]] = {}
        for label, names in where.items():
            labels_on.setdefault(frozenset(names), []).append(label)
        for absent, labels in labels_on.items():
            who = ", ".join(labels)
            if set(labels) == other_labels and len(labels) > 1:
                who = "All other lines" if nowhere else "All lines"
            on = "" if absent == datasets else f" on {', '.join(map(title_of, sorted(absent)))}"
            notes[f"{who}{on}: {why}"] = None
    return [note.rstrip(".") + "." for note in notes]


def _name(spec: Spec, comparison: Comparison) -> str:
    return f"{spec.name}-{slug(*comparison.setting)}"


def _title(spec: Spec, comparison: Comparison, what: str = "") -> str:
    setting = f"{comparison.protocol}, {comparison.encoder}, {_shots(comparison.shots)}"
    return f"{spec.title}: {what}{setting}"


def _kind(method: MethodSpec) -> str:
    return "trained" if trains(method) else "training-free"


def _shots(shots: int) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"


def _mean_text(values: Sequence[float]) -> str:
    """Mean ± standard deviation over draws; – if there are none."""
    if not values:
        return "–"
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.2f}" if math.isnan(deviation) else f"{mean:.2f} ± {deviation:.2f}"


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _signed(value: float) -> str:
    # Adding zero turns a negative zero into a plain one.
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")
