"""A cell: one method on one draw of one data set under one protocol, fitted and scored."""

from __future__ import annotations

import inspect
import logging
import platform
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray

from gpcache import __version__, metrics
from gpcache.benchmark.allowed import MULTIPLE
from gpcache.benchmark.protocols import (
    NO_VALIDATION,
    SPARE_SHOTS,
    Labelled,
    digest,
    rows_to_choose_on,
)
from gpcache.benchmark.results import DONE, FAILED, NOT_POSSIBLE, Row, key_of, packed
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.benchmark.tasks import Drawn, Task
from gpcache.errors import DataError, GPCacheError, ProtocolError
from gpcache.methods import FeatureClassifier, Method, find_method
from gpcache.similarity.folder import load_projection
from gpcache.support.files import sha256

logger = logging.getLogger(__name__)

VERSIONS = {
    "gpcache": __version__,
    "python": platform.python_version(),
    "torch": torch.__version__,
    "numpy": np.__version__,
    "scikit-learn": sklearn.__version__,
}
_PAPER = {"strategy": "grid"}


class NotPossibleError(GPCacheError):
    """A method cannot run on this data: no failure, but a fact that the tables show."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What all methods share: the shots of a draw, and the rows to choose on."""

    task: Task
    protocol: str
    shots: int
    seed: int

    @cached_property
    def drawn(self) -> Drawn:
        """The shots; made when the first method asks."""
        return self.task.draw(self.shots, self.seed)

    @cached_property
    def choosing(self) -> Labelled | None:
        """The rows that the protocol lets a method choose on."""
        task = self.task
        return rows_to_choose_on(
            self.protocol,
            dataset=task.name,
            shots=self.shots,
            seed=self.seed,
            validation=self.drawn.spare if task.validation is None else task.validation,
            test=task.test,
        )

    @cached_property
    def content(self) -> str:
        """The hash of the rows that a fit sees."""
        return digest(self.drawn.shots, self.choosing)

    @property
    def notes(self) -> list[str]:
        """What belongs under every table with these rows."""
        if self.choosing is None or self.drawn.spare is None or self.choosing is self.task.test:
            return list(self.task.notes)
        instead = (
            f"{self.task.name} has no validation rows: training rows that are not shots serve "
            f"instead, {SPARE_SHOTS} a class where there are as many."
        )
        return [*self.task.notes, instead]


@dataclass(frozen=True, eq=False)
class Cell:
    """One line of a table on one sample."""

    spec: Spec
    sample: Sample
    line: MethodSpec
    device: str

    def place(self, test: Task) -> Row:
        """What the tables find the row by, and what every row says of its data."""
        task, sample = self.sample.task, self.sample
        return {
            "experiment": self.spec.name,
            "reference": task.reference,
            "dataset": task.name,
            "test": test.name,
            "encoder": task.encoder_name,
            "protocol": sample.protocol,
            "shots": sample.shots,
            "seed": sample.seed,
            "method": self.line.name,
            "label": self.line.label,
            "family": self.line.family,
            "varied": dict(self.line.varied),
            "split_hash": task.split_hash,
            "test_split_hash": test.split_hash,
            "encoder_fingerprint": task.fingerprint,
        }

    def key(self, test: Task) -> str:
        """The hash of everything that determines the row."""
        place = self.place(test)
        # How a line is called, and in which experiment, changes nothing about its numbers.
        for name in ("experiment", "reference", "label", "family", "varied"):
            del place[name]
        projection = self.projection and self.projection[1]
        return key_of(
            place
            | {"options": self.options, "projection": projection, "preset": self.line.preset}
            | ({"views": True} if self.takes_views else {})
            | {"version": __version__, "rows": self.sample.content, "test_rows": test.content}
        )

    @cached_property
    def method(self) -> Method:
        """The method in the registry."""
        return find_method(self.line.name)

    @property
    def takes_views(self) -> bool:
        """Whether the method learns from every view of a shot, and there are some."""
        return self.method.constructor.learns_from_views and self.sample.drawn.views is not None

    @cached_property
    def projection(self) -> tuple[NDArray[Any], str] | None:
        """The matrix (d, d) of the similarity projection that the line names, and its hash."""
        if self.line.projection is None:
            return None
        task = self.sample.task
        name = self.line.projection.replace("{encoder}", task.encoder_name)
        place = self.spec.folder / name
        # Tables are read elsewhere: they say what the spec says, not where that was.
        if not place.exists():
            raise NotPossibleError(f"there is no projection {name!r}")
        projection, facts = load_projection(place)
        if facts.fingerprint != task.fingerprint:
            raise NotPossibleError(f"the projection {name!r} is of another encoder")
        matrix = projection.matrix.numpy()
        return matrix, sha256(matrix.tobytes())

    @cached_property
    def options(self) -> dict[str, Any]:
        """The constructor's options: the preset's, the protocol's, and the spec's own."""
        known = self.method.constructor().get_params(deep=False)
        sample = self.sample
        if sample.protocol == NO_VALIDATION:
            choosing = {"criterion": "nll", "selection": "auto"}
        else:
            choosing = {"criterion": "accuracy"}
        usual = {**(_PAPER if self.line.preset == "paper" else {}), **choosing}
        options: dict[str, Any] = {name: usual[name] for name in usual if name in known}
        if "random_state" in known:
            options["random_state"] = sample.seed
        classes = len(sample.task.class_names)
        for name, value in self.line.options_on(sample.task.name, sample.shots).items():
            multiple = MULTIPLE.fullmatch(value) if isinstance(value, str) else None
            options[name] = int(multiple[1] or 1) * classes if multiple else value
        return options

    def rows(self, tests: Sequence[Task]) -> list[Row]:
        """Fit once, and score on each test set."""
        self._check_needs()
        shots, choosing, views = self.sample.drawn.shots, self.sample.choosing, None
        model = self._model()
        given: dict[str, Any] = {}
        # CALIP learns nothing from shots: it chooses on other rows, where there are any.
        if choosing is None or "spatial features" not in self.method.needs:
            given |= {"X": self._seen(shots), "y": shots.labels}
        if choosing is not None and "validation" in inspect.signature(model.fit).parameters:
            given["validation"] = (self._seen(choosing), choosing.labels)
        if self.takes_views:
            views = given["views"] = self.sample.drawn.views
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            model.fit(**given)
            seconds = time.perf_counter() - start
        common: Row = {
            "status": DONE,
            "draw": self.sample.drawn.source,
            "preset": self.line.preset,
            "options": self.options,
            "projection": self.projection and self.projection[1],
            "hyper_parameters": _numbers(model),
            "n_shots": len(shots.labels),
            "n_views": 0 if views is None else views.shape[1],
            "n_choosing": 0 if choosing is None else len(choosing.labels),
            "seconds": seconds,
            "device": str(getattr(model, "_device", self.device)),
            "notes": self.sample.notes,
            "warnings": sorted({str(warning.message) for warning in caught}),
            "versions": VERSIONS,
            "validation_accuracy": self._accuracy(model, choosing),
            "held_out_accuracy": self._held_out(model),
        }
        return [
            {"key": self.key(test), **self.place(test), **common, **self._scores(model, test)}
            for test in tests
        ]

    def _check_needs(self) -> None:
        """Say what the method lacks on this data, in words that stand under a table."""
        task, needs = self.sample.task, self.method.needs
        if "spatial features" in needs and task.places is None:
            raise NotPossibleError("needs spatial features")
        if "encoder" in needs and task.encoder is None:
            raise NotPossibleError("needs a text encoder")
        if "prompts" in needs and task.prompt_vectors is None:
            raise NotPossibleError("needs a vector of every prompt")
        if "text" in needs and task.prior is None:
            raise NotPossibleError("needs text of every class")

    def _model(self) -> FeatureClassifier:
        constructor: Any = self.method.constructor
        known = constructor().get_params(deep=False)
        given = self.options | {"text_prior": self.sample.task.prior, "device": self.device}
        if "encoder" in self.method.needs:
            given["encoder"] = self.sample.task.encoder
        if "prompts" in self.method.needs and self.sample.task.prompt_vectors is not None:
            given["prompt_vectors"] = self.sample.task.prompt_vectors()
        if self.projection is not None:
            if "projection" not in known:
                raise NotPossibleError(f"{self.line.name} takes no projection")
            given["projection"] = self.projection[0]
        given = {name: value for name, value in given.items() if name in known}
        preset = getattr(constructor, "paper", None) if self.line.preset == "paper" else None
        model: FeatureClassifier = (preset or constructor)(**given)
        return model

    def _seen(self, rows: Labelled, task: Task | None = None) -> NDArray[Any]:
        """What the method sees of rows of a task, by default its own."""
        places = (task or self.sample.task).places
        if "spatial features" in self.method.needs and places is not None:
            return places(rows)
        return rows.features

    def _accuracy(self, model: FeatureClassifier, rows: Labelled | None) -> float | None:
        if rows is None:
            return None
        return float(np.mean(model.predict(self._seen(rows)) == rows.labels))

    def _scores(self, model: FeatureClassifier, task: Task) -> Row:
        rows = task.test
        seen = self._seen(rows, task)
        start = time.perf_counter()
        probabilities = model.predict_proba(seen)
        seconds = time.perf_counter() - start
        unknown = ~np.isin(rows.labels, model.classes_)
        if unknown.any():
            raise DataError(
                f"The test rows have the class {str(rows.labels[unknown][0])!r}, of which the "
                "model knows neither shots nor text."
            )
        labels = np.searchsorted(model.classes_, rows.labels)
        return {
            "n_test": len(labels),
            "accuracy": metrics.accuracy(probabilities, labels),
            "nll": metrics.nll(probabilities, labels),
            "ece": metrics.ece(probabilities, labels),
            "predict_seconds": seconds,
            "correct": packed(probabilities.argmax(1) == labels),
        }

    def _held_out(self, model: FeatureClassifier) -> float | None:
        """What the shots say of themselves, where that costs no further training."""
        if self.sample.protocol != NO_VALIDATION or self.options.get("calibrate") is False:
            return None
        report = getattr(model, "loo_", None)
        accuracy = np.nan if report is None else float(report.accuracy)
        return None if np.isnan(accuracy) else accuracy


def computed_rows(cell: Cell, tests: Sequence[Task]) -> list[Row]:
    """The rows of a cell, or rows that say why there are no numbers; nothing is raised."""
    try:
        return cell.rows(tests)
    except (NotPossibleError, ProtocolError) as error:
        status, why = NOT_POSSIBLE, str(error).rstrip(".")
    except GPCacheError as error:
        status, why = FAILED, str(error)
    except Exception as error:  # a method's own failure must not cost the other cells
        logger.info("%s failed", cell.line.label, exc_info=True)
        status, why = FAILED, f"{type(error).__name__}: {error}".splitlines()[0]
    places = [cell.place(test) for test in tests]
    return [{"key": key_of(place)} | place | {"status": status, "why": why} for place in places]


def _numbers(model: FeatureClassifier) -> dict[str, float]:
    """What was chosen: the fitted numbers by name."""
    return {
        name[:-1]: float(value)
        for name, value in sorted(vars(model).items())
        if name.endswith("_") and not name.startswith("_") and isinstance(value, int | float)
        if name != "n_features_in_" and np.isfinite(value)
    }
