"""Runs a spec cell by cell: what is done is not run again, what fails is noted and passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from pathlib import Path

from gpcache.benchmark.cells import Cell, Sample, computed_rows
from gpcache.benchmark.protocols import LEGACY, check_legacy
from gpcache.benchmark.results import DONE, FAILED, Results, Row, done_rows, key_of, reason
from gpcache.benchmark.spec import Spec
from gpcache.benchmark.tasks import Task, check_reference
from gpcache.benchmark.workers import Bench, Order, Workers, workers
from gpcache.errors import DataError, GPCacheError, ProtocolError
from gpcache.support.files import write_atomic


@dataclass
class Outcome:
    """How many rows were run now, known before, not possible, and failed; and the reasons."""

    counts: Counter[str] = field(default_factory=Counter)
    known: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    notices: list[str] = field(default_factory=list)

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
    progress: Callable[[Row], object] = lambda _: None,
) -> Outcome:
    """Run what is not done of a spec and append each row to `folder`/NAME.jsonl at once.

    A copy of the spec is kept beside the rows, and every row says by which `command` it was made.
    Features are loaded once for each data set and encoder and shared by all methods, as are text
    vectors and draws; image features are kept below `cache` for other experiments. With several
    `jobs` so many processes compute cells, and this one writes. A row that another experiment in
    the folder has done is taken over.
    """
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
    place = Path(folder)
    results = Results(place, spec.name)
    with results.writing():
        # Tables are made of the rows and the spec.
        write_atomic(place / f"{spec.name}.toml", spec.path.read_bytes())
        runner = _Runner(spec, results, done_rows(place), command, progress)
        for encoder in spec.encoders or (None,):
            bench = Bench(spec, encoder, root, cache or place / "features", device)
            if jobs == 1:
                runner.run_bench(bench)
            else:
                with workers(bench, jobs) as others:
                    runner.run_bench(bench, others)
    runner.outcome.notices += results.notices
    return runner.outcome


class _Runner:
    """One run of a spec."""

    def __init__(
        self,
        spec: Spec,
        results: Results,
        others: Mapping[str, Row],
        command: str,
        progress: Callable[[Row], object],
    ) -> None:
        self.outcome = Outcome()
        self._spec, self._results, self._others = spec, results, others
        self._command, self._progress = command, progress
        self._names: dict[str, str] = {}  # data set → what the spec calls it

    def run_bench(self, bench: Bench, others: Workers | None = None) -> None:
        """Everything that goes through one encoder, here or by workers."""
        to_do = (todo for one in self._spec.datasets for todo in self._to_do(bench, one))
        if others is None:
            for cell, missing in to_do:
                self._keep(computed_rows(cell, missing))
            return
        # All images are encoded before a worker opens them (but for their places, which CALIP alone
        # wants); what takes longest begins first.
        orders = [Order.of(cell, missing) for cell, missing in to_do]
        orders.sort(key=lambda order: -order.shots)
        for done in as_completed([others.submit(order) for order in orders]):
            self._keep(done.result())

    def _to_do(self, bench: Bench, reference: str) -> Iterator[tuple[Cell, list[Task]]]:
        """The cells of a data set, each with the test sets on which it has no row yet."""
        name = bench.encoder_name
        try:
            task = bench.open(reference)
            tests = [task, *bench.open_tests()]
        except GPCacheError as error:
            self._fail(reference, name, str(error))
            return
        # Features on disk are of one encoder, whatever others the spec names.
        if task.encoder is None and name not in (None, *self._spec.encoders[:1]):
            return
        if self._names.setdefault(task.name, reference) != reference:
            other = self._names[task.name]
            self._fail(reference, name, f"It has the name of {other!r}: rename one of them.")
            return
        for cell in self._cells(task, bench.device):
            if missing := self._missing(cell, tests):
                yield cell, missing

    def _cells(self, task: Task, device: str) -> Iterator[Cell]:
        spec = self._spec
        for protocol in spec.protocols:
            for shots in spec.shots:
                for seed in task.seeds(shots, spec.seeds):
                    sample = Sample(task, protocol, shots, seed)
                    for line in spec.methods:
                        yield Cell(spec, sample, line, device)

    def _missing(self, cell: Cell, tests: Sequence[Task]) -> list[Task]:
        try:
            return [test for test in tests if not self._is_known(cell, test)]
        except GPCacheError:  # computing it will say why
            return list(tests)

    def _keep(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._results.append(row | {"command": self._command})
            self.outcome.add(row)
            self._progress(row)

    def _is_known(self, cell: Cell, test: Task) -> bool:
        """Whether the row is done, here or in another experiment, from which it is taken over."""
        key = cell.key(test)
        known = self._results.known(key) or self._others.get(key)
        if known is None:
            return False
        self._results.append(known | cell.place(test))
        self.outcome.known += 1
        return True

    def _fail(self, reference: str, encoder: str | None, why: str) -> None:
        """A data set that cannot be opened is one row that says why."""
        row: Row = {
            "experiment": self._spec.name,
            "reference": reference,
            "dataset": reference,
            "test": reference,
            "encoder": encoder or "stored features",
            "protocol": "",
            "shots": 0,
            "seed": 0,
            "label": "",
            "status": FAILED,
            "why": why,
        }
        self._results.append({"key": key_of(row)} | row)
        self.outcome.add(row)
