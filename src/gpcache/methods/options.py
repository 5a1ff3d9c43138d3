"""Options of the GPCache family, grouped by what belongs together, and the flat list of all.

Constructors take the groups, so that a reader sees a dozen parameters. Files and specs hold flat
names; `CacheOptions` is that flat list, and the one form that the rest of the code reads.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from gpcache.errors import DataError, ProtocolError
from gpcache.gp.low_rank import Cross
from gpcache.methods.cache.recipe import Likelihood
from gpcache.methods.cache.search import Auto, Criterion

Space = Literal["raw", "centred", "whitened"]
SelectionRows = Literal["auto", "loo", "folds", "validation"]


@dataclass(frozen=True)
class Regression:
    """The Gaussian likelihood: regression on the labels, as the paper has it.

    Parameters
    ----------
    noise, eta : float or "auto"
        Noise variance, and exponent of the variance that divides the mean. `eta` acts only with
        `confidence_scaling`.
    prior : {"residual", "zero_shot"}
        Regress on what the text leaves unexplained, or on the labels (the paper).
    precision_weighting, confidence_scaling : bool
        The paper's weight calibration and confidence calibration.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import Regression
    >>> classifier = GPCacheClassifier(likelihood=Regression(noise=0.1))
    """

    noise: float | Auto = "auto"
    eta: float | Auto = "auto"
    prior: Literal["residual", "zero_shot"] = "residual"
    precision_weighting: bool = True
    confidence_scaling: bool = False


@dataclass(frozen=True)
class Grouped:
    """One posterior for each group of classes, instead of one for all (the paper)."""

    n_groups: int = 8


@dataclass(frozen=True)
class Nystrom:
    """A posterior through landmarks; None takes a number that suits the shots.

    `cross` says whether a query's kernel row is taken as it is ("exact") or approximated, too.
    """

    n_landmarks: int | None = None
    cross: Cross = "exact"


@dataclass(frozen=True)
class Fourier:
    """A posterior through random Fourier features of the kernel; `cross` as in `Nystrom`."""

    n_features: int = 1024
    cross: Cross = "exact"


@dataclass(frozen=True)
class ClassMean:
    """A posterior through the class means (the paper); `cross` as in `Nystrom`."""

    cross: Cross = "exact"


Approximation = (
    Literal["exact", "grouped", "nystrom", "fourier", "class_mean"]
    | Grouped
    | Nystrom
    | Fourier
    | ClassMean
)


@dataclass(frozen=True)
class Weights:
    """Weights of cache, text and discriminant; "auto" fits them on held-out shots."""

    cache: float | Auto = "auto"
    text: float | Auto = "auto"
    discriminant: float | Auto = "auto"


@dataclass(frozen=True)
class Whitened:
    """The whitened space of the kernel with a given shrinkage."""

    shrinkage: float | Auto = "auto"


@dataclass(frozen=True)
class Selection:
    """How hyper-parameters are chosen.

    Parameters
    ----------
    rows : {"auto", "loo", "folds", "validation"}
        Rows to choose on: the validation set if one is given to `fit`, else folds of the shots
        (leave-one-out for regression in a space that no label shaped). "validation" refuses to fit
        without one.
    criterion : {"nll", "accuracy", "marginal_likelihood"}
        What the choice minimises or maximises.
    strategy : {"adaptive", "grid"}
        Search from the shipped values, pulled towards them while shots are few, or the whole grid
        (regression).
    n_folds : int
        Folds of the shots; half as many choose hyper-parameters.
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
    epochs, batch_size, learning_rate, weight_decay, epsilon
        Of the optimiser.
    stopping : {"held_out", "last"}
        Whether held-out folds of the shots (or the validation set) decide when to stop, or the last
        epoch counts.
    calibrate : bool
        Whether to train in folds of the shots as well: for the stop, the temperature and `loo_`.
    trains : {"keys", "metric", "classes"}
        What moves: every key (the paper), a low-rank metric of keys and queries
        normalise(z + z A B) of `rank`, or one residual for each class, shared by its keys and text.
        GPCache-F alone.
    loss : {"plain", "leave_one_out"}
        Whether a query sees its own key (the paper) or is answered without it, in closed form; the
        latter needs the exact posterior. GPCache-F alone.
    rank : int
        Rank of the metric.
    pull : float
        Weight of the mean squared distance that the parameters have moved, per shot.
    precision_gradient : bool
        Whether (K + noise·I)⁻¹ is differentiated; False is the paper's *nograd*.
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
    precision: Literal["exact", "grouped", "nystrom", "fourier", "class_mean"] = "exact"
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
_APPROXIMATIONS: dict[str, type] = {
    "grouped": Grouped,
    "nystrom": Nystrom,
    "fourier": Fourier,
    "class_mean": ClassMean,
}
# Where a flat option is found in the constructors that group it.
GROUPS = {
    "alpha": "weights=Weights(cache=…)",
    "gain": "weights=Weights(text=…)",
    "discriminant": "weights=Weights(discriminant=…)",
    "shrinkage": "kernel_space=Whitened(shrinkage=…)",
    "precision": "approximation=…",
    "n_groups": "approximation=Grouped(…)",
    "n_landmarks": "approximation=Nystrom(…)",
    "n_features": "approximation=Fourier(…)",
    "cross": "approximation=Nystrom(cross=…)",
}
GROUPS |= {field.name: f"likelihood=Regression({field.name}=…)" for field in fields(Regression)}
GROUPS |= {name: f"selection=Selection({name}=…)" for name in ("criterion", "strategy", "n_folds")}
GROUPS |= {field.name: f"training=Training({field.name}=…)" for field in fields(Training)}


def flattened(options: dict[str, Any]) -> dict[str, Any]:
    """The same options with every group replaced by its members under their flat names.

    A member that is also given by its own name keeps that value.
    """
    flat = dict(options)
    members: dict[str, Any] = {}
    if isinstance(regression := flat.get("likelihood"), Regression):
        flat["likelihood"] = "gaussian"
        members |= vars(regression)
    approximation: Any = flat.pop("approximation", None)
    for name, kind in _APPROXIMATIONS.items():
        if isinstance(approximation, kind):
            members |= vars(approximation)
            approximation = name
    if approximation is not None:
        members["precision"] = approximation
    if isinstance(space := flat.get("kernel_space"), Whitened):
        flat["kernel_space"] = "whitened"
        members |= vars(space)
    weights = flat.pop("weights", "auto")
    if isinstance(weights, Weights):
        members |= {
            "alpha": weights.cache,
            "gain": weights.text,
            "discriminant": weights.discriminant,
        }
    elif weights != "auto":
        raise DataError(f"weights must be 'auto' or a Weights(…), got {weights!r}.")
    if isinstance(selection := flat.get("selection"), Selection):
        flat["selection"] = selection.rows
        members |= {name: one for name, one in vars(selection).items() if name != "rows"}
    if isinstance(training := flat.pop("training", None), Training):
        members |= vars(training)
    return members | flat


def grouped(options: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Constructor parameters from options of either form; the rest is as in `defaults`.

    `defaults` are the constructor parameters of the estimator. An option that it does not have is
    passed over where it has its default value, as saved models list more than a method has.
    """
    given = flattened(options)
    every = asdict(CacheOptions())
    flat = every | flattened(defaults) | given
    found: dict[str, Any] = {}

    def group(kind: type, **renamed: str) -> Any:
        return kind(**{one.name: flat[renamed.get(one.name, one.name)] for one in fields(kind)})

    if flat["likelihood"] == "gaussian":
        found["likelihood"] = group(Regression)
    else:
        for one in fields(Regression):
            if one.name in given and not _same(given[one.name], one.default):
                raise ProtocolError(
                    f"{one.name}={given[one.name]!r} belongs to regression on the labels: "
                    "add likelihood='gaussian'."
                )
    approximation = _APPROXIMATIONS.get(flat["precision"])
    found["approximation"] = group(approximation) if approximation else flat["precision"]
    if flat["kernel_space"] == "whitened" and flat["shrinkage"] != "auto":
        found["kernel_space"] = group(Whitened)
    found["weights"] = group(Weights, cache="alpha", text="gain")
    found["selection"] = group(Selection, rows="selection")
    if "training" in defaults:
        found["training"] = group(Training)
    made = {name: found.get(name, flat.get(name)) for name in defaults}
    for name, value in given.items():
        in_group = GROUPS.get(name, "").split("=")[0] in defaults
        if name not in made and not in_group and not _same(value, every.get(name, made)):
            made[name] = value  # the constructor says what is wrong with it
    return made


def _same(one: Any, other: Any) -> bool:
    """Whether two options are equal; arrays never are."""
    return type(one) is type(other) and bool(one == other)
