"""GroupedCache: GPCache in groups of classes, for as many keys as a disk holds.

    logits = s f W + α · k(f) (K + noise·I)⁻¹ Y / variance(f)^η, each group of classes by itself

Targets and groups are those of the paper. The fitted state is one number for each key and class of
its group. The keys stay in their file, and a group is factorised again if its variance is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpcache.cluster.grouped.choosing import Chooser, GroupedChoice, GroupedKeys
from gpcache.cluster.grouped.groups import (
    Keys,
    MappedFile,
    SolvedGroup,
    collected,
    mean,
    of_classes,
    posterior,
    require_memory,
    solved,
    split,
)
from gpcache.cluster.grouped.runner import ENGINES, EngineName, TaskRunner, task_runner
from gpcache.errors import DataError
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.fusion import fuse
from gpcache.gp.precision import BATCH_ELEMENTS, Posterior
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.cache.held_out import HeldOutReport
from gpcache.methods.cache.search import ETAS, Auto, Choice, SearchOptions
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import is_auto, one_of, positive, whole
from gpcache.support.devices import ensure_memory, resolve_device, resolve_dtype
from gpcache.support.progress import progress_bar

# Keys of a group where n_groups is "auto": 1,000 factorise in 20 ms and take 4 MB in float32.
KEYS_PER_GROUP = 1_000
# Rows that are checked at once.
SCANNED_ROWS = 65_536


class TopClasses(NamedTuple):
    """The most probable classes of each row, best first.

    Parameters
    ----------
    labels : array of shape (m, k)
        Class labels.
    probabilities : array of shape (m, k)
        Their probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.cluster.grouped import TopClasses
    >>> TopClasses(np.array([["cat"]]), np.array([[0.9]])).labels.tolist()
    [['cat']]
    """

    labels: NDArray[Any]
    probabilities: NDArray[np.float64]


@dataclass(frozen=True)
class GroupedModel:
    """Keys, the solved values of each group, text (c, d) if any, and the chosen values."""

    keys: Keys
    parts: list[SolvedGroup]
    text: Tensor | None
    choice: Choice
    n_classes: int

    def logits(self, engine: EngineName, features: Tensor) -> Iterator[Tensor]:
        """(b, c) of unit rows (m, d), batch by batch."""
        choice = self.choice
        found = self._answers(engine, features, with_variance=choice.eta != 0)
        for batch, (means, variances) in found:
            zero_shot = None if self.text is None else (batch @ self.text.mT).cpu()
            spread = of_classes(variances, self._columns) if choice.eta != 0 else None
            yield fuse(zero_shot, means, spread, alpha=choice.alpha, eta=choice.eta)

    def posterior(self, engine: EngineName, features: Tensor) -> Iterator[Posterior]:
        """Mean (b, c) and variance (b, g) of the cache, in the same batches."""
        for _, found in self._answers(engine, features, with_variance=True):
            yield found

    @property
    def _columns(self) -> list[NDArray[np.int64]]:
        return [part.group.classes for part in self.parts]

    def _answers(
        self, engine: EngineName, features: Tensor, *, with_variance: bool
    ) -> Iterator[tuple[Tensor, Posterior]]:
        """Each batch with the answers of the groups; batches keep kernel rows small."""
        widest = max(len(part.group.rows) for part in self.parts)
        rows = max(64, BATCH_ELEMENTS // max(widest, self.n_classes))
        with task_runner(engine) as runner:
            handle = runner.share(self.keys)
            for batch in torch.split(features, rows):
                answers = self._scattered(runner, handle, batch, with_variance)
                found = collected(
                    answers, self._columns, len(batch), self.keys.dtype, title="Asking the groups"
                )
                yield batch, Posterior(*found)

    def _scattered(
        self, runner: TaskRunner, handle: Any, batch: Tensor, with_variance: bool
    ) -> Iterator[Any]:
        beta, noise = self.choice.beta, self.choice.noise
        queries = runner.share(self.keys.feature_map(batch).cpu().numpy())
        if not with_variance:
            return runner.scatter(mean, self.parts, handle, queries, beta)
        groups = [part.group for part in self.parts]
        return runner.scatter(posterior, groups, handle, queries, beta, noise)


class GroupedCache(FeatureClassifier):
    """GPCache in groups of classes, for as many keys as a disk holds.

    Each group of classes is a separate Gaussian process. Keys stay in a memory-mapped file; no
    matrix of n × n or n × c is held.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes, matched by name. Without it, only the cache decides.
    n_groups : int or "auto", default="auto"
        Number of groups of classes; "auto" makes groups of about 1,000 keys.
    alpha : float or "auto", default="auto"
        Weight of the cache.
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    noise : float or "auto", default="auto"
        Noise variance.
    eta : float or "auto", default=0.0
        Exponent of the variance. If it is not 0, every call of `predict` factorises all groups.
    kernel_space : {"centred", "raw"}, default="centred"
        Whether the mean of the keys is subtracted first.
    engine : {"local", "ray"}, default="local"
        Compute group after group in this process, or as tasks on the CPUs of a Ray cluster. Both
        give the same bits on the same kind of processor.
    loo_rows : int, default=2000
        Number of keys that are left out to choose hyper-parameters and to calibrate.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="float32"
        Precision.
    random_state : int, default=0
        Seed of the groups and of the keys that are left out.

    Attributes
    ----------
    alpha_, beta_, noise_, eta_, temperature_, n_groups_ : float
        The hyper-parameters in use.
    loo_ : HeldOutReport
        Accuracy, NLL and ECE of the keys `loo_rows_`, and how they were left out.
    search_ : dict of arrays
        Every setting that was tried, the choice first.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GroupedCache
    >>> rng = np.random.default_rng(0)
    >>> centres = rng.normal(size=(8, 32))
    >>> y = np.repeat(np.arange(8), 10)
    >>> model = GroupedCache(n_groups=2).fit(centres[y] + rng.normal(size=(80, 32)), y)
    >>> model.predict(centres).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
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
        """Fit the model on labelled keys.

        Parameters
        ----------
        X : array of shape (n, d)
            Keys: an array or a memory-mapped file.
        y : array of shape (n,)
            Labels.

        Returns
        -------
        GroupedCache
            The fitted estimator.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GroupedCache
        >>> GroupedCache(n_groups=1).fit(np.eye(6), ["a", "a", "b", "b", "c", "c"]).n_groups_
        1
        """
        settings = self._settings()
        keys, labels = self._read_keys(X, y)
        n, n_classes = len(labels), len(self.classes_)
        text = self._text = self._text_vectors()
        count = math.ceil(n / KEYS_PER_GROUP) if is_auto(self.n_groups) else int(self.n_groups)
        groups = split(labels, n_classes, min(count, n_classes), self.random_state)
        with task_runner(self.engine) as runner:
            copied = self.engine == "ray" and not isinstance(keys.stored, MappedFile)
            require_memory(
                groups,
                keys,
                n_classes=n_classes,
                sample=min(self.loo_rows, n),
                n_etas=len(ETAS) if is_auto(self.eta) else 1,
                copied_rows=n if copied else 0,
                tasks=runner.tasks_here,
            )
            keys = self._scanned(keys)
            problem = GroupedKeys(runner, keys, runner.share(keys), groups, labels, n_classes, text)
            self._accept(Chooser(problem, settings, self.loo_rows, self.random_state).choose())
            parts = self._solved(problem)
        self._model = GroupedModel(keys, parts, text, self._choice, n_classes)
        self.n_groups_ = len(groups)
        return self

    def _settings(self) -> SearchOptions:
        """Check the options and return them."""
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
        return SearchOptions(**numbers, gain=1.0)

    def _read_keys(self, X: ArrayLike, y: ArrayLike) -> tuple[Keys, NDArray[np.int64]]:
        """Keys and class numbers (n,); sets device, width and classes."""
        on_ray = self.engine == "ray"
        self._device = resolve_device("cpu" if on_ray and self.device == "auto" else self.device)
        self._dtype = resolve_dtype(self.dtype, self._device)
        if on_ray and self._device.type != "cpu":
            raise DataError(
                "engine='ray' computes on the CPUs of its cluster: use device='cpu', or "
                f"engine='local' for device='{self._device}'."
            )
        array, labels = self._read_labelled(X, y)
        keys = Keys(MappedFile.of(X) or array, self._device, self._dtype)
        return keys, self._label_numbers(labels).cpu().numpy()

    def _scanned(self, keys: Keys) -> Keys:
        """The keys, every row checked, and centred if asked for: one pass over all of them."""
        rows = keys.rows
        n, total = len(rows), torch.zeros(self.n_features_in_, dtype=torch.float64)
        with progress_bar("GroupedCache: reading", total=n, unit="row") as bar:
            for first in range(0, n, SCANNED_ROWS):
                part = np.asarray(rows[first : first + SCANNED_ROWS])
                unit = self._unit(part, f"X[{first}:]" if first else "X")
                total += unit.sum(0, dtype=torch.float64).cpu()
                bar.update(len(part))
        centre = total / n
        # Unit rows have a mean squared distance of 1 − |centre|² from the centre. If all rows are
        # equal, centring would leave nothing.
        apart = float(1 - centre @ centre) > 100 * torch.finfo(self._dtype).eps
        if self.kernel_space == "raw" or not apart:
            return keys
        centring = FeatureMap(mean=centre.to(self._device, self._dtype))
        return replace(keys, feature_map=centring)

    def _accept(self, chosen: GroupedChoice) -> None:
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

    def _solved(self, problem: GroupedKeys) -> list[SolvedGroup]:
        groups, parts = problem.groups, []
        found = problem.runner.scatter(solved, groups, problem.handle, self.beta_, self.noise_)
        with progress_bar("GroupedCache: fitting", total=len(groups), unit="group") as bar:
            for group, values in zip(groups, found, strict=True):
                # A copy: memory that Ray shares is freed when Ray stops.
                parts.append(SolvedGroup(group, np.array(values)))
                bar.update()
        return parts

    # Answers.

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the most probable class of each row.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        array of shape (m,)
            Class labels.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GroupedCache
        >>> model = GroupedCache(n_groups=1).fit(np.eye(6), ["a", "a", "b", "b", "c", "c"])
        >>> model.predict(np.eye(6)[:1]).tolist()
        ['a']
        """
        features = self._read_queries(X)
        found = [logits.argmax(1) for logits in self._model.logits(self.engine, features)]
        labels: NDArray[Any] = self.classes_[torch.cat(found).numpy()]
        return labels

    def top(self, X: ArrayLike, k: int = 5) -> TopClasses:
        """Predict the k most probable classes of each row.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.
        k : int, default=5
            Number of classes; all of them if there are fewer.

        Returns
        -------
        TopClasses
            Labels and probabilities, best first.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GroupedCache
        >>> model = GroupedCache(n_groups=1).fit(np.eye(6), ["a", "a", "b", "b", "c", "c"])
        >>> model.top(np.eye(6)[:1], k=2).labels.shape
        (1, 2)
        """
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
        """Compute mean and variance of the posterior of the cache.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        mean : array of shape (m, c)
            Posterior mean of each class.
        variance : array of shape (m, g)
            Posterior variance of each group.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GroupedCache
        >>> model = GroupedCache(n_groups=1).fit(np.eye(6), ["a", "a", "b", "b", "c", "c"])
        >>> mean, variance = model.posterior(np.eye(6)[:1])
        >>> mean.shape, variance.shape
        ((1, 3), (1, 1))
        """
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
        """Refuse to answer for all classes at once if that takes too much memory."""
        # The logits, and in float64 a copy, their softmax and an intermediate array.
        size = m * len(self.classes_) * (self._dtype.itemsize + 8 * 5)
        ensure_memory(
            size,
            torch.device("cpu"),
            what=f"An answer for {m:,} rows and {len(self.classes_):,} classes",
            remedy="Ask for fewer rows at once, or for the best classes only with top(X, k).",
        )
