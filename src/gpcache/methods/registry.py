"""The methods by name. Each method's file says what it needs and which paper it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from gpcache.errors import DataError
from gpcache.methods.base import FeatureClassifier

# Name on the command line → module and class in this package.
_METHODS = {
    "gpcache": "gp_cache.GPCacheClassifier",
    "gpcache-paper": "gp_cache.PaperGPCacheClassifier",
    "gpcache-f": "gp_cache.GPCacheFClassifier",
    "tip-adapter": "tip_adapter.TipAdapterClassifier",
    "tip-adapter-f": "tip_adapter.TipAdapterFClassifier",
    "tip-x": "tip_x.TipXClassifier",
    "ape": "ape.APEClassifier",
    "ape-t": "ape.APETClassifier",
    "gda": "gda.GDAClassifier",
    "timo": "timo.TIMOClassifier",
    "proker": "proker.ProKeRClassifier",
    "task-res": "task_res.TaskResClassifier",
    "clip-adapter": "clip_adapter.CLIPAdapterClassifier",
    "clap": "clap.CLAPClassifier",
    "coop": "coop.CoOpClassifier",
    "lp++": "lp_plus_plus.LPPlusPlusClassifier",
    "linear-probe": "linear_probe.LinearProbeClassifier",
    "calip": "calip.CALIPClassifier",
    "zero-shot": "zero_shot.ZeroShotClassifier",
}


@dataclass(frozen=True)
class Method:
    """A method: its name on the command line and its estimator.

    Parameters
    ----------
    name : str
        Name on the command line.
    constructor : type
        The estimator class.

    Examples
    --------
    >>> from gpcache.methods import registry
    >>> registry()["gda"].trains
    False
    """

    name: str
    constructor: type[FeatureClassifier]

    @property
    def paper(self) -> str:
        """Publication of the method."""
        return self.constructor.publication

    @property
    def trains(self) -> bool:
        """Whether the method trains by gradient steps."""
        return self.constructor.trains

    @property
    def needs(self) -> tuple[str, ...]:
        """What the method requires, such as "text" or "shots"."""
        return self.constructor.needs

    @property
    def beyond_features(self) -> tuple[str, ...]:
        """What the method requires besides features of the shots and one text vector per class."""
        return tuple(need for need in self.needs if need not in ("text", "shots"))


def registry() -> dict[str, Method]:
    """List all methods.

    Returns
    -------
    dict of Method
        Methods by their name on the command line.

    Examples
    --------
    >>> from gpcache.methods import registry
    >>> "tip-adapter" in registry()
    True
    """
    return {name: Method(name, _constructor(place)) for name, place in _METHODS.items()}


def _constructor(place: str) -> type[FeatureClassifier]:
    module, _, name = place.partition(".")
    constructor: type[FeatureClassifier] = getattr(import_module(f"gpcache.methods.{module}"), name)
    return constructor


def find_method(name: str, *, on_features: bool = False) -> Method:
    """Find a method by its name.

    Parameters
    ----------
    name : str
        Name on the command line.
    on_features : bool, default=False
        Accept only a method that needs no more than features and one text vector per class.

    Returns
    -------
    Method
        The method.

    Raises
    ------
    DataError
        If there is no such method, or it needs more than features.

    Examples
    --------
    >>> from gpcache.methods import find_method
    >>> find_method("gda").constructor.__name__
    'GDAClassifier'
    """
    methods = registry()
    if on_features and name not in methods:
        methods = {key: one for key, one in methods.items() if not one.beyond_features}
    if name not in methods:
        raise DataError(f"There is no method {name!r}: use {', '.join(methods)}.")
    method = methods[name]
    if on_features and method.beyond_features:
        raise DataError(
            f"{name} needs {' and '.join(method.beyond_features)}: use "
            f"{method.constructor.__name__} itself, or another method here."
        )
    return method


def name_of(model: FeatureClassifier) -> str:
    """The name under which a model's method is registered."""
    for name, method in registry().items():
        if type(model) is method.constructor:
            return name
    raise DataError(f"{type(model).__name__} is not among the registered methods.")
