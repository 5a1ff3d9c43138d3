"""Runs a spec cell by cell: cells that are done are not run again, failures are noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpcache.benchmark.cells import Cell
from gpcache.benchmark.datasets.loading import check_reference
from gpcache.benchmark.protocols import LEGACY, Sample, check_legacy
from gpcache.benchmark.rows import DONE, FAILED, NOT_POSSIBLE, Row, RowFile, key_of, reason
from gpcache.benchmark.spec import Spec
from gpcache.benchmark.task import Task
from gpcache.benchmark.workers import DataSource, compute
from gpcache.errors import DataError, GPCacheError, ProtocolError
from gpcache.support.files import write_atomic


@dataclass
class Outcome:
    """Numbers of rows that were run now, known before, not possible and failed, with reasons."""

    counts: Counter[str] = field(default_factory=Counter)
    known: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    notices: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """The outcome as `gpcache benchmark --json` prints it."""
        counts = self.counts
        return {
            "done": counts[DONE],
            "known": self.known,
            "not possible": counts[NOT_POSSIBLE],
            "failed": counts[FAILED],
            "reasons": dict(self.reasons),
            "notices": self.notices,
        }

    def sentence(self) -> str:
        """The outcome in words."""
        done, absent, failed = (self.counts[name] for name in (DONE, NOT_POSSIBLE, FAILED))
        return (
            f"{done:,} run now, {self.known:,} known before, {absent:,} not possible, "
            f"{failed:,} failed."
        )

    def add(self, row: Row) -> None:
        """Count a row that was run now."""
        self.counts[row["status"]] += 1
        if row["status"] != DONE:
            self.reasons[reason(row)] += 1


def run(
    spec: Spec,
    folder: str | Path,
    *,
    root: Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
    jobs: int = 1,
    legacy: bool = False,
    command: str = "",
    is_done: Callable[[str], bool] = lambda _: False,
    trained_device: str | None = None,
    progress: Callable[[Row], object] = lambda _: None,
) -> Outcome:
    """Run the missing cells of a spec, and append each row to `folder`/NAME.jsonl at once.

    A copy of the spec is kept next to the rows, and every row holds the `command` that made it.
    Features, text vectors and draws are loaded once for each data set and encoder and shared by all
    methods; image features are kept below `cache` for other experiments. Several `jobs` are as many
    processes that compute cells, while this one writes. A row that another experiment in the folder
    has done is copied; a cell for whose key `is_done` is true is known elsewhere and left out.
    Methods that train do so on `trained_device` if it is given.
    """
    _check(spec, root, jobs, legacy)
    place = Path(folder)
    file = RowFile(place, spec.name)
    with file.writing():
        # Tables are made of the rows and the spec.
        write_atomic(place / f"{spec.name}.toml", spec.path.read_bytes())
        runner = _Runner(spec, file, is_done)
        for encoder in spec.encoders or (None,):
            kept = cache or place / "features"
            source = DataSource(spec, encoder, root, kept, device, trained_device)
            for rows in compute(source, runner.cells_to_run(source), jobs):
                for row in rows:
                    file.append(row | {"command": command})
                    runner.outcome.add(row)
                    progress(row)
    runner.outcome.notices += file.notices
    return runner.outcome


def _check(spec: Spec, root: Path | None, jobs: int, legacy: bool) -> None:
    """Raise an error for invalid input before anything runs."""
    if jobs < 1:
        raise DataError(f"There must be at least one job, got {jobs}.")
    for key, references in (("datasets", spec.datasets), ("tests", spec.tests)):
        for reference in references:
            where = f"In the spec {spec.path}, {key}"
            check_reference(reference, where, folder=spec.folder, root=root)
    if LEGACY in spec.protocols:
        if not legacy:
            raise ProtocolError(
                f"The spec {spec.name!r} asks for the protocol {LEGACY!r}, which chooses on test "
                "images: it runs only where --legacy says so."
            )
        for dataset in spec.datasets:
            check_legacy(dataset)


def with_data(spec: Spec, datasets: list[str], encoders: list[str], root: Path | None) -> Spec:
    """The spec with the data sets and encoders of a command line instead of its own."""
    for reference in datasets:
        check_reference(reference, "--dataset", folder=Path.cwd(), root=root)
    if datasets:
        # A path on the command line starts from the working directory, not from the spec.
        places = [str(Path(one).resolve()) if Path(one).exists() else one for one in datasets]
        spec = replace(spec, datasets=tuple(dict.fromkeys(places)))
    return replace(spec, encoders=tuple(dict.fromkeys(encoders))) if encoders else spec


class _Runner:
    """The cells of a spec that have to run."""

    def __init__(self, spec: Spec, file: RowFile, is_done: Callable[[str], bool]) -> None:
        self.outcome = Outcome()
        self._spec, self._file, self._is_done = spec, file, is_done
        self._references: dict[str, str] = {}  # name of a data set → its reference in the spec

    def cells_to_run(self, source: DataSource) -> Iterator[tuple[Cell, list[Task]]]:
        """The cells of one encoder, each with the test sets on which it has no row yet."""
        for reference in self._spec.datasets:
            tasks = self._open(source, reference)
            for cell in self._cells(tasks[0], source) if tasks else ():
                try:
                    missing = [test for test in tasks if not self._is_known(cell, test)]
                except GPCacheError:  # computing the cell gives the reason
                    missing = tasks
                if missing:
                    yield cell, missing

    def _open(self, source: DataSource, reference: str) -> list[Task]:
        """A data set and its test sets; none if they cannot be opened or need another encoder."""
        encoder = source.encoder_name
        try:
            tasks = source.open_with_tests(reference)
        except GPCacheError as error:
            self._fail(reference, encoder, str(error))
            return []
        # Features on disk have one encoder; the others of the spec do not apply.
        if tasks[0].encoder is None and encoder not in (None, *self._spec.encoders[:1]):
            return []
        first = self._references.setdefault(tasks[0].name, reference)
        if first != reference:
            self._fail(reference, encoder, f"It has the name of {first!r}: rename one of them.")
            return []
        return tasks

    def _cells(self, task: Task, source: DataSource) -> Iterator[Cell]:
        spec = self._spec
        for protocol in spec.protocols:
            for shots in spec.shots:
                for seed in task.seeds(shots, spec.seeds):
                    sample = Sample(task, protocol, shots, seed)
                    for line in spec.methods:
                        yield source.cell(sample, line)

    def _is_known(self, cell: Cell, test: Task) -> bool:
        """Whether the row is done, here or in another experiment, from which it is copied."""
        key = cell.key(test)
        if not self._is_done(key):
            known = self._file.known(key)
            if known is None:
                return False
            self._file.append(known | cell.place(test))
        self.outcome.known += 1
        return True

    def _fail(self, reference: str, encoder: str | None, why: str) -> None:
        """Write one row for a data set that cannot be opened."""
        row: Row = {"experiment": self._spec.name, "reference": reference, "dataset": reference}
        row |= {"test": reference, "encoder": encoder or "stored features"}
        row |= {"protocol": "", "shots": 0, "seed": 0, "label": "", "status": FAILED, "why": why}
        self._file.append({"key": key_of(row)} | row)
        self.outcome.add(row)
