"""GroupedCache: GPCache in groups of classes, for as many keys as a disk holds.

    logits = s f W + α · k(f) (K + noise·I)⁻¹ Y / variance(f)^η, each group of classes by itself

The paper's targets and groups. The fitted state is one number for each key and class of its group;
the keys stay where they are, and factors are made anew where a variance is asked for.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpcache.cluster.grouped.choosing import Chooser, Chosen
from gpcache.cluster.grouped.engine import ENGINES, Engine, EngineName, opened
from gpcache.cluster.grouped.evidence import Problem
from gpcache.cluster.grouped.groups import Fitted, Group, solved, split
from gpcache.cluster.grouped.keys import Keys, MappedFile
from gpcache.cluster.grouped.memory import need_memory
from gpcache.cluster.grouped.model import GroupedModel
from gpcache.errors import DataError
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.cache.model import HeldOutReport
from gpcache.methods.cache.search import ETAS, Auto, Choice, Settings
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import is_auto, one_of, positive, whole
from gpcache.support.devices import ensure_memory, resolve_device, resolve_dtype
from gpcache.support.progress import progress_bar

# Keys of a group where n_groups is "auto": 1,000 factorise in 20 ms and take 4 MB in float32.
KEYS_PER_GROUP = 1_000
# Rows that are checked at once.
SCANNED_ROWS = 65_536


class TopClasses(NamedTuple):
    """The most probable classes (m, k) of each row and their probabilities (m, k), best first."""

    labels: NDArray[Any]
    probabilities: NDArray[np.float64]


class GroupedCache(FeatureClassifier):
    """Very many labelled features in, calibrated predictions out, group by group.

    Parameters
    ----------
    text_prior : TextPrior or None
        What the text encoder says of each class, matched by name. None: the cache alone.
    n_groups : int or "auto"
        Groups of classes, each a Gaussian process of its own; "auto": of about 1,000 keys.
    alpha, beta, noise, eta : number or "auto"
        Weight of the cache, sharpness of the kernel, noise variance, exponent of the variance.
        "auto" is chosen on keys that are left out. Where `eta` is not 0, every call of `predict`
        factorises all groups.
    kernel_space : "centred" or "raw"
        Whether the mean of the keys is subtracted first.
    engine : "local" or "ray"
        Group after group in this process, or as tasks on the CPUs of a Ray cluster. Both give the
        same bits on the same kind of processor.
    loo_rows : int
        How many keys are left out to choose and calibrate on.
    device, dtype : "auto" or torch's
    random_state : int
        Seed of the groups and of the keys that are left out.

    Attributes
    ----------
    alpha_, beta_, noise_, eta_, temperature_, n_groups_ : the numbers in use.
    loo_ : accuracy, NLL and ECE of the keys `loo_rows_`, and how they were left out.
    search_ : every setting that was looked at, as columns, the choice first.
    """

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        n_groups: int | Auto = "auto",
        alpha: float | Auto = "auto",
        beta: float | Auto = "auto",
        noise: float | Auto = "auto",
        eta: float | Auto = 0.0,
        kernel_space: Literal["centred", "raw"] = "centred",
        engine: EngineName = "local",
        loo_rows: int = 2_000,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.n_groups = n_groups
        self.alpha = alpha
        self.beta = beta
        self.noise = noise
        self.eta = eta
        self.kernel_space = kernel_space
        self.engine = engine
        self.loo_rows = loo_rows
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    # Fitting.

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from keys X (n, d), an array or a memory-mapped file, with labels y (n,)."""
        settings = self._settings()
        source, labels = self._read_keys(X, y)
        self._text = self._text_vectors()
        n_classes = len(self.classes_)
        groups = split(labels, n_classes, self._group_count(len(labels)), self.random_state)
        with opened(self.engine) as engine:
            self._check_memory(engine, groups, source)
            keys = self._scanned(Keys(source, self._device, self._dtype), len(labels))
            handle = engine.share(keys)
            problem = Problem(engine, keys, handle, groups, labels, n_classes, self._text)
            self._accept(Chooser(problem, settings, self.loo_rows, self.random_state).choose())
            parts = self._solved(problem)
        self._model = GroupedModel(keys, parts, self._text, self._choice, n_classes)
        self.n_groups_ = len(groups)
        return self

    def _settings(self) -> Settings:
        """The options, checked."""
        numbers: dict[str, Any] = {}
        for name in ("alpha", "beta", "noise", "eta"):
            value = numbers[name] = getattr(self, name)
            if not is_auto(value):
                zero = name in ("alpha", "eta")
                numbers[name] = positive(name, value, owner=self, allow_zero=zero)
        if not is_auto(self.n_groups):
            whole("n_groups", self.n_groups, least=1)
        whole("loo_rows", self.loo_rows, least=1)
        whole("random_state", self.random_state, least=0)
        one_of("kernel_space", self.kernel_space, ("centred", "raw"), owner=self)
        one_of("engine", self.engine, ENGINES, owner=self)
        return Settings(**numbers, gain=1.0)

    def _read_keys(
        self, X: ArrayLike, y: ArrayLike
    ) -> tuple[NDArray[Any] | MappedFile, NDArray[np.int64]]:
        """Where the rows are, and class numbers (n,); sets device, width and classes."""
        on_ray = self.engine == "ray"
        self._device = resolve_device("cpu" if on_ray and self.device == "auto" else self.device)
        self._dtype = resolve_dtype(self.dtype, self._device)
        if on_ray and self._device.type != "cpu":
            raise DataError(
                "engine='ray' computes on the CPUs of its cluster: use device='cpu', or "
                f"engine='local' for device='{self._device}'."
            )
        array, labels = self._read_labelled(X, y)
        return MappedFile.of(X) or array, self._label_numbers(labels).cpu().numpy()

    def _group_count(self, n: int) -> int:
        count = math.ceil(n / KEYS_PER_GROUP) if is_auto(self.n_groups) else int(self.n_groups)
        return min(count, len(self.classes_))

    def _check_memory(
        self, engine: Engine, groups: list[Group], source: NDArray[Any] | MappedFile
    ) -> None:
        n = sum(len(group.rows) for group in groups)
        copies = self.engine == "ray" and not isinstance(source, MappedFile)
        need_memory(
            groups,
            width=self.n_features_in_,
            n_classes=len(self.classes_),
            sample=min(self.loo_rows, n),
            n_etas=len(ETAS) if is_auto(self.eta) else 1,
            copied_rows=n if copies else 0,
            tasks=engine.tasks_here,
            device=self._device,
            dtype=self._dtype,
        )

    def _scanned(self, keys: Keys, n: int) -> Keys:
        """The keys, every row checked, and centred if asked for: one pass over all of them."""
        total = torch.zeros(self.n_features_in_, dtype=torch.float64)
        rows = keys.source.open() if isinstance(keys.source, MappedFile) else keys.source
        with progress_bar("GroupedCache: reading", total=n, unit="row") as bar:
            for first in range(0, n, SCANNED_ROWS):
                part = np.asarray(rows[first : first + SCANNED_ROWS])
                unit = self._unit(part, f"X[{first}:]" if first else "X")
                total += unit.sum(0, dtype=torch.float64).cpu()
                bar.update(len(part))
        mean = total / n
        # Unit rows lie 1 − |mean|² from their mean on average. Where all are one row, nothing would
        # be left of it.
        apart = float(1 - mean @ mean) > 100 * torch.finfo(self._dtype).eps
        if self.kernel_space == "raw" or not apart:
            return keys
        return keys.centred(mean.to(self._device, self._dtype))

    def _accept(self, chosen: Chosen) -> None:
        choice = self._choice = replace(chosen.seen[0], losses=None)
        self.alpha_, self.beta_, self.eta_ = choice.alpha, choice.beta, choice.eta
        self.noise_ = choice.noise
        names = [one.name for one in fields(Choice) if one.name not in ("losses", "gain")]
        self.search_ = {
            name: np.array([getattr(one, name) for one in chosen.seen]) for name in names
        }
        self._accept_calibration(chosen.calibration)
        self.loo_: HeldOutReport = chosen.report
        self.loo_rows_ = chosen.rows

    def _solved(self, problem: Problem) -> list[Fitted]:
        found = problem.engine.scatter(
            solved, problem.groups, problem.handle, self.beta_, self.noise_
        )
        parts = []
        with progress_bar("GroupedCache: fitting", total=len(problem.groups), unit="group") as bar:
            for group, values in zip(problem.groups, found, strict=True):
                # A copy: what Ray shares goes when Ray goes.
                parts.append(Fitted(group, np.array(values)))
                bar.update()
        return parts

    # Answers.

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each row."""
        features = self._read_queries(X)
        found = [logits.argmax(1) for logits in self._model.logits(self.engine, features)]
        labels: NDArray[Any] = self.classes_[torch.cat(found).numpy()]
        return labels

    def top(self, X: ArrayLike, k: int = 5) -> TopClasses:
        """The k most probable classes of each row; all of them where there are fewer."""
        whole("k", k, least=1)
        features = self._read_queries(X)
        found = [
            self._calibration.probabilities(logits.double()).topk(min(k, logits.shape[1]))
            for logits in self._model.logits(self.engine, features)
        ]
        columns = torch.cat([best.indices for best in found]).numpy()
        probabilities = torch.cat([best.values for best in found]).numpy()
        return TopClasses(self.classes_[columns], probabilities)

    def posterior(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean (m, c) and variance (m, g) of the cache, a column for each class and each group."""
        features = self._read_queries(X)
        self._check_answer(len(features))
        found = list(self._model.posterior(self.engine, features))
        mean = torch.cat([one.mean for one in found]).double()
        variance = torch.cat([one.variance for one in found]).double()
        return mean.numpy(), variance.numpy()

    def _logits(self, features: Tensor) -> Tensor:
        self._check_answer(len(features))
        return torch.cat(list(self._model.logits(self.engine, features)))

    def _check_answer(self, m: int) -> None:
        """Refuse to answer for all classes at once where that is too much."""
        # The logits, and in float64 themselves, their softmax and what comes between.
        size = m * len(self.classes_) * (self._dtype.itemsize + 8 * 5)
        ensure_memory(
            size,
            torch.device("cpu"),
            what=f"An answer for {m:,} rows and {len(self.classes_):,} classes",
            remedy="Ask for fewer rows at once, or for the best classes alone with top(X, k).",
        )
