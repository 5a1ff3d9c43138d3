"""Runs a spec cell by cell: what is done is not run again, what fails is noted and passed over."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpcache.benchmark.cells import Cell, NotPossibleError, Sample
from gpcache.benchmark.protocols import LEGACY, check_legacy
from gpcache.benchmark.results import (
    DONE,
    FAILED,
    NOT_POSSIBLE,
    Results,
    Row,
    done_rows,
    key_of,
)
from gpcache.benchmark.spec import Spec
from gpcache.benchmark.tasks import Task, open_task
from gpcache.encoders import Encoder, load_encoder
from gpcache.errors import GPCacheError, ProtocolError
from gpcache.files import write_atomic

logger = logging.getLogger(__name__)


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
            what = row["label"] or "The data set"
            self.reasons[f"{what} on {row['dataset']}: {row['why']}"] += 1


def run(
    spec: Spec,
    folder: str | Path,
    *,
    root: Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
    legacy: bool = False,
    progress: Callable[[Row], object] = lambda _: None,
) -> Outcome:
    """Run what is not done of a spec and append each row to `folder`/NAME.jsonl at once.

    A copy of the spec is kept beside the rows. Features are loaded once for each data set and
    encoder and shared by all methods, as are text vectors and draws; image features are kept below
    `cache` for other experiments. A row that another experiment in the folder has done is taken
    over.
    """
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
        runner = _Runner(spec, results, done_rows(place), device, progress)
        for encoder in spec.encoders or (None,):
            runner.run_encoder(encoder, root, cache or place / "features")
    runner.outcome.notices += results.notices
    return runner.outcome


class _Runner:
    """One run of a spec."""

    def __init__(
        self,
        spec: Spec,
        results: Results,
        others: Mapping[str, Row],
        device: str,
        progress: Callable[[Row], object],
    ) -> None:
        self.outcome = Outcome()
        self._spec, self._results, self._others = spec, results, others
        self._device, self._progress = device, progress
        self._names: dict[str, str] = {}  # data set → what the spec calls it

    def run_encoder(self, name: str | None, root: Path | None, cache: Path) -> None:
        """Everything that goes through one encoder."""
        spec = self._spec
        loaded: list[Encoder] = []

        def encoder() -> Encoder | None:
            # Loaded when images first need it: features on disk do not.
            if name is not None and not loaded:
                loaded.append(load_encoder(name, device=self._device))
            return loaded[0] if loaded else None

        def opened(reference: str, wanted: Sequence[tuple[int, int]]) -> Task:
            return open_task(
                reference, encoder, folder=spec.folder, root=root, cache=cache, wanted=wanted
            )

        wanted = [(shots, seed) for shots in spec.shots for seed in spec.seeds]
        for reference in spec.datasets:
            try:
                task = opened(reference, wanted)
                tests = [task, *(opened(other, []) for other in spec.tests)]
            except GPCacheError as error:
                self._fail(reference, name, str(error))
                continue
            # Features on disk are of one encoder, whatever others the spec names.
            if task.encoder is None and name not in (None, *spec.encoders[:1]):
                continue
            if self._names.setdefault(task.name, reference) != reference:
                other = self._names[task.name]
                self._fail(reference, name, f"It has the name of {other!r}: rename one of them.")
                continue
            for cell in self._cells(task):
                self._run(cell, tests)

    def _cells(self, task: Task) -> Iterator[Cell]:
        spec = self._spec
        for protocol in spec.protocols:
            for shots in spec.shots:
                for seed in task.seeds(shots, spec.seeds):
                    sample = Sample(task, protocol, shots, seed)
                    for line in spec.methods:
                        yield Cell(spec, sample, line, self._device)

    def _run(self, cell: Cell, tests: Sequence[Task]) -> None:
        try:
            missing = [test for test in tests if not self._is_known(cell, test)]
            rows = cell.rows(missing) if missing else []
        except (NotPossibleError, ProtocolError) as error:
            why = str(error).rstrip(".")
            rows = [_without_score(cell, test, NOT_POSSIBLE, why) for test in tests]
        except GPCacheError as error:
            rows = [_without_score(cell, test, FAILED, str(error)) for test in tests]
        except Exception as error:  # a method's own failure must not cost the other cells
            logger.info("%s failed", cell.line.label, exc_info=True)
            sentence = f"{type(error).__name__}: {error}".splitlines()[0]
            rows = [_without_score(cell, test, FAILED, sentence) for test in tests]
        for row in rows:
            self._results.append(row)
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


def _without_score(cell: Cell, test: Task, status: str, why: str) -> Row:
    place = cell.place(test)
    return {"key": key_of(place)} | place | {"status": status, "why": why}
