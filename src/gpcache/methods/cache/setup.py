"""Checks the options and makes the settings of the search, the recipe and the trainer.

`owner` is the estimator: errors name its class, and its seed is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpcache.errors import DataError, ProtocolError
from gpcache.gp import PRECISIONS, ExactPrecision, Precision, Unweighted
from gpcache.gp.feature_maps import KernelSpace, Projection
from gpcache.methods.cache import softmax_search
from gpcache.methods.cache.memory import softmax_bytes
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.search import Auto, SearchOptions
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.training import Trainer, stops_of
from gpcache.methods.options import CacheOptions, Training
from gpcache.methods.training import Schedule
from gpcache.support.checks import is_auto, one_of, positive, whole
from gpcache.support.devices import has_memory

# Up to this number of shots "auto" is exact. With 200 classes an exact fit of 4,000 shots took 40 s
# on two cores that other work shared, and the time grows with the square of their number. Beyond it
# explicit features are faster, on a GPU too.
EXACT_ROWS = 8_000
# The default shrinkage of regression.
SHRINKAGE = 4.0


def settings_of(options: CacheOptions, owner: Any) -> SearchOptions:
    """Check the options of the search and return them."""
    is_softmax = options.likelihood == "softmax"
    one_of("likelihood", options.likelihood, owner._likelihoods, owner=owner)
    criteria = ("nll", "accuracy", "marginal_likelihood")
    one_of("criterion", options.criterion, criteria, owner=owner)
    one_of("selection", options.selection, ("auto", "loo", "folds", "validation"), owner=owner)
    one_of("strategy", options.strategy, ("adaptive", "grid"), owner=owner)
    one_of("prior", options.prior, ("residual", "zero_shot"), owner=owner)
    whole("n_folds", options.n_folds, least=4)
    whole("random_state", owner.random_state, least=0)
    given: dict[str, float | Auto] = {}
    for name in ("alpha", "beta", "gain", "noise", "eta", "tau", "shrinkage", "discriminant"):
        value = getattr(options, name)
        zero = name in ("eta", "alpha", "gain", "discriminant")
        given[name] = (
            value if is_auto(value) else positive(name, value, owner=owner, allow_zero=zero)
        )
    if is_softmax:
        _refuse_regression(options)
    precision, _ = precision_of(options, owner)
    if options.criterion == "marginal_likelihood" and not precision.uses_noise:
        raise ProtocolError(
            "A plain kernel cache is not a probability model and has no marginal likelihood: "
            "use criterion='nll' or 'accuracy'."
        )
    if not options.confidence_scaling:
        given["eta"] = 0.0
    return SearchOptions(
        **given,
        criterion=options.criterion,
        strategy=options.strategy,
        defaults=owner._defaults,
        residual=options.prior == "residual" and not is_softmax,
    )


def _refuse_regression(options: CacheOptions) -> None:
    """Raise an error for an option that only regression has."""
    regression_only = {
        "selection='loo'": options.selection == "loo",
        "strategy='grid'": options.strategy == "grid",
        "criterion='marginal_likelihood'": options.criterion == "marginal_likelihood",
    }
    for option, requested in regression_only.items():
        if requested:
            raise ProtocolError(
                f"{option} belongs to regression on the labels: add likelihood='gaussian'."
            )


def precision_of(options: CacheOptions, owner: Any) -> tuple[type[Precision], dict[str, Any]]:
    """The precision and the options of its plan."""
    one_of("approximation", options.precision, ("auto", "explicit", *PRECISIONS), owner=owner)
    if options.precision == "explicit" and options.likelihood != "softmax":
        raise ProtocolError(
            "approximation='explicit' needs likelihood='softmax': for regression use "
            "'grouped' or 'nystrom'."
        )
    one_of("cross", options.cross, ("exact", "consistent"), owner=owner)
    whole("n_groups", options.n_groups, least=1)
    whole("n_features", options.n_features, least=1)
    if options.n_landmarks is not None:
        whole("n_landmarks", options.n_landmarks, least=1)
    if not options.precision_weighting:
        if options.confidence_scaling:
            raise DataError(
                "confidence_scaling needs precision_weighting: a plain kernel sum has no "
                "variance to divide by."
            )
        return Unweighted, {}
    plan = {
        "n_groups": options.n_groups,
        "n_landmarks": options.n_landmarks,
        "n_features": options.n_features,
        "cross": options.cross,
        "seed": int(owner.random_state),
    }
    # In explicit features, the hyper-parameters are chosen by exact models of a part of the rows.
    return PRECISIONS.get(options.precision, ExactPrecision), plan


def takes_explicit(options: CacheOptions, n: int, width: int, classes: int, device: Any) -> bool:
    """Whether rows (n, width) are fitted in explicit features: where asked for, or "auto"."""
    if options.precision != "auto" or options.likelihood != "softmax":
        return options.precision == "explicit"
    return n > EXACT_ROWS or not has_memory(softmax_bytes(n, width, classes), device)


def recipe_of(
    options: CacheOptions, shots: Shots, projection: Projection | None, owner: Any
) -> Recipe:
    """How these shots become a model; the owner has a seed."""
    return Recipe(
        _kernel_space(options, shots, projection, owner),
        *precision_of(options, owner),
        likelihood=options.likelihood,
        selection=options.selection,
        n_folds=int(options.n_folds),
        seed=int(owner.random_state),
    )


def _kernel_space(
    options: CacheOptions, shots: Shots, projection: Projection | None, owner: Any
) -> KernelSpace:
    one_of("kernel_space", options.kernel_space, ("raw", "centred", "whitened"), owner=owner)
    is_softmax = options.likelihood == "softmax"
    shrinkage = SHRINKAGE if options.shrinkage == "auto" else float(options.shrinkage)
    diagonal = softmax_search.DIAGONALS[0] if is_softmax else 0.0
    space = KernelSpace(options.kernel_space, shrinkage, projection, diagonal)
    if options.selection == "loo" and space.sees_labels:
        raise ProtocolError(
            "Leave-one-out would leak: a whitening has seen the label that is left out. "
            "Use selection='folds', which fits it again without the held-out shots."
        )
    if not space.sees_labels or shots.has_pairs:
        return space
    # One shot a class says nothing about the scatter within classes.
    if is_softmax:
        one_shot = softmax_search.ONE_SHOT_SHRINKAGE
        return replace(space, name="decorrelated", shrinkage=one_shot)
    # Without text nothing else sets the scale of the logits, and how alike the images of a
    # data set are should not: centring takes that out.
    return replace(space, name="centred" if shots.zero_shot is None else "raw")


def trainer_of(training: Training, owner: Any, **options: Any) -> Trainer:
    """The trainer of checked options."""
    whole("epochs", training.epochs, least=0)
    whole("batch_size", training.batch_size, least=1)
    positive("learning_rate", training.learning_rate, owner=owner, auto=False)
    positive("weight_decay", training.weight_decay, owner=owner, allow_zero=True, auto=False)
    positive("epsilon", training.epsilon, owner=owner, auto=False)
    one_of("stopping", training.stopping, ("held_out", "last"), owner=owner)
    schedule = Schedule(
        training.epochs,
        training.batch_size,
        training.learning_rate,
        training.weight_decay,
        training.epsilon,
        seed=int(owner.random_state),
    )
    return Trainer(
        schedule,
        stops=stops_of(training.epochs, training.stopping),
        calibrate=training.calibrate,
        name=type(owner).__name__,
        **options,
    )
