"""The methods by name: what each is, where it comes from, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from gpcache.errors import DataError
from gpcache.methods.ape import APEClassifier
from gpcache.methods.ape_t import APETClassifier
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.calip import CALIPClassifier
from gpcache.methods.clap import CLAPClassifier
from gpcache.methods.clip_adapter import CLIPAdapterClassifier
from gpcache.methods.coop import CoOpClassifier
from gpcache.methods.gda import GDAClassifier
from gpcache.methods.gp_cache import (
    GPCacheClassifier,
    GPCacheFClassifier,
    PaperGPCacheClassifier,
)
from gpcache.methods.linear_probe import LinearProbeClassifier
from gpcache.methods.lp_plus_plus import LPPlusPlusClassifier
from gpcache.methods.proker import ProKeRClassifier
from gpcache.methods.task_res import TaskResClassifier
from gpcache.methods.timo import TIMOClassifier
from gpcache.methods.tip_adapter import TipAdapterClassifier, TipAdapterFClassifier
from gpcache.methods.tip_x import TipXClassifier
from gpcache.methods.zero_shot import ZeroShotClassifier


@dataclass(frozen=True)
class Method:
    """A method: its name on the command line, its paper, and its estimator.

    `needs` lists what it cannot do without: "text", "shots", "prompts" (a vector for each sentence
    of a class), "spatial features", "encoder".
    """

    name: str
    paper: str
    trains: bool
    needs: tuple[str, ...]
    constructor: type[FeatureClassifier]

    @property
    def beyond_features(self) -> tuple[str, ...]:
        """What it needs beside features of the shots and one text vector a class."""
        return tuple(need for need in self.needs if need not in ("text", "shots"))


_GPCACHE = "Ding et al., 2024, Calibrated Cache Model for Few-Shot Vision-Language Model Adaptation"
_TIP = "Zhang et al., 2022, Tip-Adapter: Training-free Adaption of CLIP"
_TIP_X = "Udandarao et al., 2023, SuS-X: Training-Free Name-Only Transfer of Vision-Language Models"
_APE = "Zhu et al., 2023, Not All Features Matter: Enhancing Few-shot CLIP with Adaptive Prior"
_GDA = "Wang et al., 2024, A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation"
_PROKER = "Bendou et al., 2025, ProKeR: A Kernel Perspective on Few-Shot Adaptation"
_TASK_RES = "Yu et al., 2023, Task Residual for Tuning Vision-Language Models"
_CLIP_ADAPTER = "Gao et al., 2023, CLIP-Adapter: Better VLMs with Feature Adapters"
_CALIP = "Guo et al., 2023, CALIP: Zero-Shot Enhancement of CLIP with Parameter-free Attention"
_COOP = "Zhou et al., 2022, Learning to Prompt for Vision-Language Models"
_LP = "Huang et al., 2024, LP++: A Surprisingly Strong Linear Probe for Few-Shot CLIP"
_TIMO = "Li et al., 2025, Text and Image Are Mutually Beneficial (TIMO)"
_CLAP = "Silva-Rodríguez et al., 2024, A Closer Look at the Few-Shot Adaptation of Large VLMs"
_CLIP = "Radford et al., 2021, Learning Transferable Visual Models From Language Supervision"

_METHODS = (
    Method("gpcache", _GPCACHE, False, ("shots",), GPCacheClassifier),
    Method("gpcache-paper", _GPCACHE, False, ("shots",), PaperGPCacheClassifier),
    Method("gpcache-f", _GPCACHE, True, ("shots",), GPCacheFClassifier),
    Method("tip-adapter", _TIP, False, ("shots",), TipAdapterClassifier),
    Method("tip-adapter-f", _TIP, True, ("shots",), TipAdapterFClassifier),
    Method("tip-x", _TIP_X, False, ("text", "shots"), TipXClassifier),
    Method("ape", _APE, False, ("text", "shots"), APEClassifier),
    Method("ape-t", _APE, True, ("text", "shots"), APETClassifier),
    Method("gda", _GDA, False, ("shots",), GDAClassifier),
    Method("timo", _TIMO, False, ("text", "shots", "prompts"), TIMOClassifier),
    Method("proker", _PROKER, False, ("text", "shots"), ProKeRClassifier),
    Method("task-res", _TASK_RES, True, ("text", "shots"), TaskResClassifier),
    Method("clip-adapter", _CLIP_ADAPTER, True, ("text", "shots"), CLIPAdapterClassifier),
    Method("clap", _CLAP, True, ("text", "shots"), CLAPClassifier),
    Method("coop", _COOP, True, ("text", "shots", "encoder"), CoOpClassifier),
    Method("lp++", _LP, True, ("text", "shots"), LPPlusPlusClassifier),
    Method("linear-probe", _CLIP, True, ("shots",), LinearProbeClassifier),
    Method("calip", _CALIP, False, ("text", "spatial features"), CALIPClassifier),
    Method("zero-shot", _CLIP, False, ("text",), ZeroShotClassifier),
)


def registry() -> dict[str, Method]:
    """All methods by name."""
    return {method.name: method for method in _METHODS}


def find_method(name: str, *, on_features: bool = False) -> Method:
    """The method of this name; an unknown one is an error that lists them.

    With `on_features`, one that is content with features and one text vector a class.
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
    for method in _METHODS:
        if type(model) is method.constructor:
            return method.name
    raise DataError(f"{type(model).__name__} is not among the registered methods.")
