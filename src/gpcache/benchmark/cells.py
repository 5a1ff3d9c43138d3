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
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray

import gpcache
from gpcache import __version__
from gpcache.benchmark.measures import MEASURES, Predicted, usual
from gpcache.benchmark.options import MULTIPLE
from gpcache.benchmark.peers import Peer, known_methods
from gpcache.benchmark.protocols import ON_SHOTS_ALONE, TRANSDUCTIVE, Sample, fit
from gpcache.benchmark.rows import DONE, FAILED, NOT_POSSIBLE, Row, key_of, packed
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.benchmark.task import Labelled, Task
from gpcache.benchmark.transduction import predicted_together
from gpcache.errors import DataError, GPCacheError, ProtocolError
from gpcache.methods import Method
from gpcache.similarity.folder import load_projection
from gpcache.support.devices import resolve_device
from gpcache.support.files import sha256

logger = logging.getLogger(__name__)


def estimator_source() -> str:
    """A digest of the code that determines the figures: a version between two releases."""
    parts = (Path(gpcache.__file__).parent / part for part in ("gp", "methods", "metrics"))
    files = sorted(file for part in parts for file in part.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files))[:12]


VERSIONS = {
    "gpcache": __version__,
    "source": estimator_source(),
    "python": platform.python_version(),
    "torch": torch.__version__,
    "numpy": np.__version__,
    "scikit-learn": sklearn.__version__,
}
# For each requirement of a method: the attribute of a task that meets it, and the note without it.
_NEEDS = {
    "spatial features": ("spatial_features", "needs spatial features"),
    "encoder": ("encoder", "needs a text encoder"),
    "prompts": ("prompt_vectors", "needs a vector of every prompt"),
    "text": ("prior", "needs text of every class"),
}


class NotPossibleError(GPCacheError):
    """A method cannot run on this data: not a failure, but a fact that the tables show."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One line of a table on one sample."""

    spec: Spec
    sample: Sample
    line: MethodSpec
    device: str

    def place(self, test: Task) -> Row:
        """The fields by which tables find the row, and the identity of its data."""
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
        # Names of the line and of the experiment do not change the result.
        for name in ("experiment", "reference", "label", "family", "varied"):
            del place[name]
        projection = self.projection and self.projection[1]
        return key_of(
            place
            | {"options": self.options, "projection": projection, "preset": self.line.preset}
            | ({"views": True} if self.views is not None else {})
            | ({"measures": sorted(self.spec.measures)} if self.spec.measures else {})
            | {"version": __version__, "rows": self.sample.content, "test_rows": test.content}
        )

    @cached_property
    def method(self) -> Method | Peer:
        """The method."""
        return known_methods()[self.line.name]

    @property
    def views(self) -> NDArray[np.float32] | None:
        """The views of the shots (n, v, d), if there are any and the method learns from them."""
        return self.sample.drawn.views if self.method.constructor.learns_from_views else None

    @cached_property
    def projection(self) -> tuple[NDArray[Any], str] | None:
        """The matrix (d, d) of the similarity projection that the line names, and its hash."""
        if self.line.projection is None:
            return None
        task = self.sample.task
        # The message shows the name in the spec: tables are read on other machines.
        name = self.line.projection.replace("{encoder}", task.encoder_name)
        place = self.spec.folder / name
        if not place.exists():
            raise NotPossibleError(f"there is no projection {name!r}")
        projection, facts = load_projection(place)
        if facts.fingerprint != task.fingerprint:
            raise NotPossibleError(f"the projection {name!r} is of another encoder")
        matrix = projection.matrix.numpy()
        return matrix, sha256(matrix.tobytes())

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The options of the method, with their types."""
        return self.method.constructor.option_types()

    @cached_property
    def options(self) -> dict[str, Any]:
        """The constructor's options: those of the preset, of the protocol, and of the spec."""
        sample, n_classes = self.sample, len(self.sample.task.class_names)
        given: dict[str, Any] = {"strategy": "grid"} if self.line.preset == "paper" else {}
        on_shots = {"criterion": "nll", "selection": "auto"}
        given |= on_shots if sample.protocol in ON_SHOTS_ALONE else {"criterion": "accuracy"}
        given["random_state"] = sample.seed
        options = {name: value for name, value in given.items() if name in self.parameters}
        for name, value in self.line.options_on(sample.task.name, sample.shots).items():
            multiple = MULTIPLE.fullmatch(value) if isinstance(value, str) else None
            options[name] = int(multiple[1] or 1) * n_classes if multiple else value
        return options

    def rows(self, tests: Sequence[Task]) -> list[Row]:
        """Fit once, and score on each test set."""
        for need, (attribute, words) in _NEEDS.items():
            if need in self.method.needs and getattr(self.sample.task, attribute) is None:
                raise NotPossibleError(words)
        fits = [self._fitted(choosing) for choosing, _ in self.sample.parts]
        models, facts = zip(*fits, strict=True)
        accuracies = [fact["accuracy"] for fact in facts if fact["accuracy"] is not None]
        choosing = self.sample.parts[0][0]
        common: Row = {
            "status": DONE,
            "draw": self.sample.drawn.source,
            "preset": self.line.preset,
            "options": self.options,
            "projection": self.projection and self.projection[1],
            "hyper_parameters": _hyper_parameters(models[0]),
            "n_shots": len(self.sample.drawn.shots.labels),
            "n_views": 0 if self.views is None else self.views.shape[1],
            "n_choosing": 0 if choosing is None else len(choosing.labels),
            "seconds": float(np.mean([fact["seconds"] for fact in facts])),
            "device": str(resolve_device(self.device)),
            "notes": self.sample.notes,
            "warnings": sorted({text for fact in facts for text in fact["warnings"]}),
            "versions": VERSIONS,
            "validation_accuracy": float(np.mean(accuracies)) if accuracies else None,
            **self._held_out(models[0]),
        }
        return [
            {"key": self.key(test), **self.place(test), **common, **self._scores(models, test)}
            for test in tests
        ]

    def _fitted(self, choosing: Labelled | None) -> tuple[Any, Row]:
        """A fitted model; its seconds, its warnings, and its accuracy on the rows it chose on."""
        model = self._model()
        given, accuracy = self._training_rows(model, choosing), None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            fit(self.sample.protocol, model, given, self.sample.seed)
            seconds = time.perf_counter() - start
        if choosing is not None:
            found = model.predict(self._inputs(choosing, self.sample.task))
            accuracy = float(np.mean(found == choosing.labels))
        texts = [str(warning.message) for warning in caught]
        return model, {"seconds": seconds, "warnings": texts, "accuracy": accuracy}

    def _model(self) -> Any:
        task, needs = self.sample.task, self.method.needs
        given = self.options | {"text_prior": task.prior, "device": self.device}
        if "encoder" in needs:
            given["encoder"] = task.encoder
        if "prompts" in needs and task.prompt_vectors is not None:
            given["prompt_vectors"] = task.prompt_vectors()
        if self.projection is not None:
            if "projection" not in self.parameters:
                raise NotPossibleError(f"{self.line.name} takes no projection")
            given["projection"] = self.projection[0]
        constructor: Any = self.method.constructor
        paper = self.line.preset == "paper" and hasattr(constructor, "paper")
        make = constructor.paper if paper else constructor.from_options
        return make(**{name: value for name, value in given.items() if name in self.parameters})

    def _training_rows(self, model: Any, choosing: Labelled | None) -> dict[str, Any]:
        """The arguments of `fit`."""
        if choosing is not None and "no validation rows" in self.method.needs:
            raise NotPossibleError("chooses by cross-validation of the shots")
        task, shots = self.sample.task, self.sample.drawn.shots
        given: dict[str, Any] = {}
        # CALIP learns nothing from shots: it chooses on the other rows if there are any.
        if choosing is None or "spatial features" not in self.method.needs:
            given |= {"X": self._inputs(shots, task), "y": shots.labels}
        if choosing is not None and "validation" in inspect.signature(model.fit).parameters:
            given["validation"] = (self._inputs(choosing, task), choosing.labels)
        if self.views is not None:
            given["views"] = self.views
        return given

    def _inputs(self, rows: Labelled, task: Task) -> NDArray[Any]:
        """The X of a method for rows of a task."""
        if "spatial features" in self.method.needs and task.spatial_features is not None:
            return task.spatial_features(rows)
        return rows.features

    def _scores(self, models: Sequence[Any], task: Task) -> Row:
        truth, inputs = task.test.labels, self._inputs(task.test, task)
        classes = models[0].classes_
        unknown = ~np.isin(truth, classes)
        if unknown.any():
            raise DataError(
                f"The test rows have the class {str(truth[unknown][0])!r}, for which the model has "
                "neither shots nor text."
            )
        found = np.empty(len(truth), dtype=classes.dtype)
        probabilities: NDArray[np.float64] | None = np.empty((len(truth), len(classes)))
        start = time.perf_counter()
        for model, (_, tested) in zip(models, self.sample.parts, strict=True):
            part = slice(None) if tested is None else tested
            likely, found[part] = self._predict(model, inputs[part])
            if likely is None or probabilities is None:
                probabilities = None
            else:
                probabilities[part] = likely
        seconds = time.perf_counter() - start
        labels, correct = np.searchsorted(classes, truth), found == truth
        given = (labels, correct, probabilities, task.outside, self.sample.drawn)
        prediction = Predicted(models[0], inputs, *given)
        scores = {"n_test": len(truth), "predict_seconds": seconds, "correct": packed(correct)}
        scores |= usual(prediction)
        for name in self.spec.measures if len(models) == 1 else ():
            scores |= MEASURES[name](prediction)
        return scores

    def _predict(
        self, model: Any, inputs: NDArray[Any]
    ) -> tuple[NDArray[np.float64] | None, NDArray[Any]]:
        """Probabilities (m, c), if there are any, and labels (m,) of rows."""
        probabilities = model.predict_proba(inputs)
        if self.sample.protocol == TRANSDUCTIVE:
            if probabilities is None:
                raise NotPossibleError("has no probabilities to start from")
            shots = self.sample.drawn.shots
            numbers = np.searchsorted(model.classes_, shots.labels)
            probabilities = predicted_together(probabilities, inputs, shots.features, numbers)
        if probabilities is None:
            return None, model.predict(inputs)
        return probabilities, model.classes_[probabilities.argmax(1)]

    def _held_out(self, model: Any) -> Row:
        """Held-out figures of the shots, if they need no further training."""
        free = self.sample.protocol in ON_SHOTS_ALONE and self.options.get("calibrate") is not False
        report = getattr(model, "loo_", None) if free else None
        figures: Sequence[float | None] = (None, None, None)
        if report is not None and not np.isnan(report.accuracy):
            figures = (float(report.accuracy), float(report.ece), int(report.counted.sum()))
        names = ("held_out_accuracy", "held_out_ece", "held_out_rows")
        return dict(zip(names, figures, strict=True))


def computed_rows(cell: Cell, tests: Sequence[Task]) -> list[Row]:
    """The rows of a cell, or rows with the reason for missing figures; nothing is raised."""
    try:
        return cell.rows(tests)
    except (NotPossibleError, ProtocolError) as error:
        status, why = NOT_POSSIBLE, str(error).rstrip(".")
    except GPCacheError as error:
        status, why = FAILED, str(error)
    except Exception as error:  # the failure of one method must not cost the other cells
        logger.info("%s failed", cell.line.label, exc_info=True)
        status, why = FAILED, f"{type(error).__name__}: {error}".splitlines()[0]
    outcome = {"status": status, "why": why, "versions": VERSIONS}
    return [{"key": key_of(place)} | place | outcome for place in map(cell.place, tests)]


def _hyper_parameters(model: Any) -> dict[str, float]:
    """The fitted hyper-parameters by name: attributes that end in an underscore."""
    kind, found = type(model), {}
    properties = {name for name in dir(kind) if isinstance(getattr(kind, name), property)}
    # loo_ may have to train.
    for name in sorted({*vars(model), *properties} - {"loo_", "n_features_in_"}):
        public = name.endswith("_") and not name.startswith("_")
        value = getattr(model, name, None) if public else None
        if isinstance(value, int | float) and np.isfinite(value):
            found[name[:-1]] = float(value)
    return found
