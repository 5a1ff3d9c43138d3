"""Options of the GPCache family, in groups, and the flat list of all.

Constructors take the groups, so that a reader sees a dozen parameters. Files and specs hold flat
names; `CacheOptions` is that flat list, and the one form that the rest of the code reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from gpcache.errors import DataError, ProtocolError
from gpcache.gp.low_rank import Cross
from gpcache.methods.cache.recipe import Likelihood
from gpcache.methods.cache.search import Auto, Criterion

Space = Literal["raw", "centred", "whitened"]
SelectionRows = Literal["auto", "loo", "folds", "validation"]


@dataclass(frozen=True)
class Regression:
    """Options of the Gaussian likelihood: regression on the labels, as in the paper.

    Parameters
    ----------
    noise : float or "auto", default="auto"
        Noise variance.
    eta : float or "auto", default="auto"
        Exponent of the variance that divides the mean. It acts only with `confidence_scaling`.
    prior : {"residual", "zero_shot"}, default="residual"
        Regress on what the text leaves unexplained, or on the labels (the paper).
    precision_weighting : bool, default=True
        Weight the shots by the precision matrix; the paper's weight calibration.
    confidence_scaling : bool, default=False
        Divide the mean by variance^eta; the paper's confidence calibration.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import Regression
    >>> GPCacheClassifier(likelihood=Regression(noise=0.1)).likelihood.noise
    0.1
    """

    noise: float | Auto = "auto"
    eta: float | Auto = "auto"
    prior: Literal["residual", "zero_shot"] = "residual"
    precision_weighting: bool = True
    confidence_scaling: bool = False


@dataclass(frozen=True)
class Grouped:
    """Approximate the posterior by one posterior for each group of classes (the paper).

    Parameters
    ----------
    n_groups : int, default=8
        Number of random groups of classes.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import Grouped
    >>> GPCacheClassifier(approximation=Grouped(16)).approximation
    Grouped(n_groups=16)
    """

    n_groups: int = 8


@dataclass(frozen=True)
class Nystrom:
    """Approximate the posterior through landmarks.

    Parameters
    ----------
    n_landmarks : int, optional
        Number of landmarks; None chooses it from the number of shots.
    cross : {"exact", "consistent"}, default="exact"
        Whether the kernel row of a query is exact or approximated as well.

    Examples
    --------
    >>> from gpcache.methods import Nystrom
    >>> Nystrom(n_landmarks=100).cross
    'exact'
    """

    n_landmarks: int | None = None
    cross: Cross = "exact"


@dataclass(frozen=True)
class Fourier:
    """Approximate the posterior through random Fourier features of the kernel.

    Parameters
    ----------
    n_features : int, default=1024
        Number of random features.
    cross : {"exact", "consistent"}, default="exact"
        Whether the kernel row of a query is exact or approximated as well.

    Examples
    --------
    >>> from gpcache.methods import Fourier
    >>> Fourier(n_features=256)
    Fourier(n_features=256, cross='exact')
    """

    n_features: int = 1024
    cross: Cross = "exact"


@dataclass(frozen=True)
class ClassMean:
    """Approximate the posterior through one key per class, the mean of its shots (the paper).

    Parameters
    ----------
    cross : {"exact", "consistent"}, default="exact"
        Whether the kernel row of a query is exact or approximated as well.

    Examples
    --------
    >>> from gpcache.methods import ClassMean
    >>> ClassMean()
    ClassMean(cross='exact')
    """

    cross: Cross = "exact"


@dataclass(frozen=True)
class Explicit:
    """Fit in explicit features of the kernel, which takes any number of shots.

    Rows are read in batches, and the size of the model does not depend on their number. The
    features are the whitened ones and Nyström features beside them. Hyper-parameters are chosen on
    a part of the shots. It needs the softmax likelihood.

    Parameters
    ----------
    n_features : int, default=1024
        Number of Nyström features beside the whitened ones.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import Explicit
    >>> GPCacheClassifier(approximation=Explicit(512)).approximation
    Explicit(n_features=512)
    """

    n_features: int = 1024


PrecisionName = Literal["auto", "exact", "explicit", "grouped", "nystrom", "fourier", "class_mean"]
Approximation = PrecisionName | Explicit | Grouped | Nystrom | Fourier | ClassMean


@dataclass(frozen=True)
class Weights:
    """Weights of the parts of the logit; "auto" fits a weight on held-out shots.

    Parameters
    ----------
    cache : float or "auto", default="auto"
        Weight of the cache.
    text : float or "auto", default="auto"
        Weight of the text.
    discriminant : float or "auto", default="auto"
        Weight of the linear discriminant.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import Weights
    >>> GPCacheClassifier(weights=Weights(text=1.0)).weights.text
    1.0
    """

    cache: float | Auto = "auto"
    text: float | Auto = "auto"
    discriminant: float | Auto = "auto"


@dataclass(frozen=True)
class Whitened:
    """The whitened kernel space with a given shrinkage.

    Parameters
    ----------
    shrinkage : float or "auto", default="auto"
        Shrinkage of the scatter matrix within classes.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import Whitened
    >>> GPCacheClassifier(kernel_space=Whitened(4.0)).kernel_space
    Whitened(shrinkage=4.0)
    """

    shrinkage: float | Auto = "auto"


@dataclass(frozen=True)
class Selection:
    """How hyper-parameters are chosen.

    Parameters
    ----------
    rows : {"auto", "loo", "folds", "validation"}, default="auto"
        Rows to choose on: the validation set if `fit` gets one, otherwise folds of the shots
        (leave-one-out for regression in a space that does not depend on labels). "validation"
        refuses to fit without a validation set.
    criterion : {"nll", "accuracy", "marginal_likelihood"}, default="nll"
        Criterion to optimise.
    strategy : {"adaptive", "grid"}, default="adaptive"
        Search from the default values, pulled towards them while shots are few, or search the
        whole grid (regression).
    n_folds : int, default=8
        Number of folds of the shots; half as many choose hyper-parameters.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import Selection
    >>> GPCacheClassifier(selection=Selection(criterion="accuracy")).selection.criterion
    'accuracy'
    """

    rows: SelectionRows = "auto"
    criterion: Criterion = "nll"
    strategy: Literal["adaptive", "grid"] = "adaptive"
    n_folds: int = 8


@dataclass(frozen=True)
class Training:
    """How a cache is trained, by AdamW with a cosine schedule.

    Parameters
    ----------
    epochs : int, default=20
        Number of epochs.
    batch_size : int, default=256
        Number of queries in a step.
    learning_rate : float, default=3e-4
        Initial learning rate.
    weight_decay : float, default=1e-2
        Weight decay of AdamW.
    epsilon : float, default=1e-8
        Epsilon of AdamW.
    stopping : {"held_out", "last"}, default="held_out"
        Stop at the epoch that is best on held-out folds (or the validation set), or after the last
        epoch.
    calibrate : bool, default=True
        Train in folds of the shots as well: for the stop, the temperature and `loo_`.
    trains : {"keys", "metric", "classes"}, default="keys"
        What is trained: every key (the paper), a low-rank metric of keys and queries, or one
        residual for each class that its keys and its text share. GPCache-F only.
    loss : {"plain", "leave_one_out"}, default="plain"
        Whether a query sees its own key (the paper) or is predicted without it, in closed form. The
        latter needs the exact posterior. GPCache-F only.
    rank : int, default=32
        Rank of the metric.
    pull : float, default=0.0
        Penalty on the mean squared distance that the parameters have moved, per shot.
    precision_gradient : bool, default=True
        Whether (K + noise·I)⁻¹ is differentiated; False is *nograd* in the paper.

    Examples
    --------
    >>> from gpcache import GPCacheFClassifier
    >>> from gpcache.methods import Training
    >>> GPCacheFClassifier(training=Training(epochs=5)).training.epochs
    5
    """

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 3e-4
    weight_decay: float = 1e-2
    epsilon: float = 1e-8
    stopping: Literal["held_out", "last"] = "held_out"
    calibrate: bool = True
    trains: Literal["keys", "metric", "classes"] = "keys"
    loss: Literal["plain", "leave_one_out"] = "plain"
    rank: int = 32
    pull: float = 0.0
    precision_gradient: bool = True


@dataclass(frozen=True)
class CacheOptions:
    """Every option of a cache method by its flat name, as files and specs hold them."""

    likelihood: Likelihood = "gaussian"
    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    gain: float | Auto = "auto"
    discriminant: float | Auto = "auto"
    tau: float | Auto = "auto"
    noise: float | Auto = "auto"
    eta: float | Auto = "auto"
    prior: Literal["residual", "zero_shot"] = "residual"
    precision_weighting: bool = True
    confidence_scaling: bool = False
    kernel_space: Space = "whitened"
    shrinkage: float | Auto = "auto"
    precision: PrecisionName = "exact"
    n_groups: int = 8
    n_landmarks: int | None = None
    n_features: int = 1024
    cross: Cross = "exact"
    selection: SelectionRows = "auto"
    criterion: Criterion = "nll"
    strategy: Literal["adaptive", "grid"] = "adaptive"
    n_folds: int = 8


OPTION_NAMES = tuple(field.name for field in fields(CacheOptions))
TRAINING_NAMES = tuple(field.name for field in fields(Training))


class _Group(NamedTuple):
    """The constructor argument that takes a group, what it implies, and flat names of members."""

    argument: str
    implied: Mapping[str, str] = MappingProxyType({})
    renamed: Mapping[str, str] = MappingProxyType({})


_GROUPS: dict[type, _Group] = {
    Regression: _Group("likelihood", {"likelihood": "gaussian"}),
    Explicit: _Group("approximation", {"precision": "explicit"}),
    Fourier: _Group("approximation", {"precision": "fourier"}),
    ClassMean: _Group("approximation", {"precision": "class_mean"}),
    Grouped: _Group("approximation", {"precision": "grouped"}),
    Nystrom: _Group("approximation", {"precision": "nystrom"}),
    Whitened: _Group("kernel_space", {"kernel_space": "whitened"}),
    Weights: _Group("weights", renamed={"cache": "alpha", "text": "gain"}),
    Selection: _Group("selection", renamed={"rows": "selection"}),
    Training: _Group("training"),
}


def _flat_names(kind: type) -> dict[str, str]:
    """The flat name of each member of a group."""
    renamed = _GROUPS[kind].renamed
    return {field.name: renamed.get(field.name, field.name) for field in fields(kind)}


# The constructor argument that holds each flat option.
GROUPS = {"precision": "approximation=…"} | {
    flat: f"{group.argument}={kind.__name__}({name}=…)"
    for kind, group in _GROUPS.items()
    for name, flat in _flat_names(kind).items()
}


def flattened(options: dict[str, Any]) -> dict[str, Any]:
    """The same options with every group replaced by its members under their flat names.

    A member that is also given by its own name keeps that value.
    """
    flat: dict[str, Any] = {}
    members: dict[str, Any] = {}
    for name, value in options.items():
        group = _GROUPS.get(type(value))
        if group is not None and group.argument == name:
            names = _flat_names(type(value))
            members |= {names[one]: part for one, part in vars(value).items()}
            members |= group.implied
        elif name == "weights":
            if value != "auto":
                raise DataError(f"weights must be 'auto' or a Weights(…), got {value!r}.")
        elif name == "approximation":
            if value is not None:
                members["precision"] = value
        elif name != "training":
            flat[name] = value
    return members | flat


def grouped(options: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Constructor parameters from options of either form; the rest is as in `defaults`.

    `defaults` are the constructor parameters of the estimator. An option that it does not have is
    ignored if it has its default value: saved models list more options than a method has.
    """
    given = flattened(options)
    every = asdict(CacheOptions())
    flat = every | flattened(defaults) | given
    if flat["likelihood"] != "gaussian":
        for option in fields(Regression):
            if option.name in given and not _same(given[option.name], option.default):
                raise ProtocolError(
                    f"{option.name}={given[option.name]!r} belongs to regression on the labels: "
                    "add likelihood='gaussian'."
                )
    groups: dict[str, Any] = {"approximation": flat["precision"]}
    for kind, (argument, implied, _) in _GROUPS.items():
        is_meant = all(flat[name] == value for name, value in implied.items())
        if kind is Whitened and flat["shrinkage"] == "auto":
            is_meant = False  # the name of the space says it all
        if is_meant and argument in defaults:
            names = _flat_names(kind)
            groups[argument] = kind(**{name: flat[one] for name, one in names.items()})
    arguments = {name: groups.get(name, flat.get(name)) for name in defaults}
    for name, value in given.items():
        in_group = GROUPS.get(name, "").split("=")[0] in defaults
        if name not in arguments and not in_group and not _same(value, every.get(name, arguments)):
            arguments[name] = value  # the constructor will refuse it
    return arguments


def _same(one: Any, other: Any) -> bool:
    """Whether two options are equal; arrays never are."""
    return type(one) is type(other) and bool(one == other)
