"""Methods of the comparison, each a scikit-learn classifier on features."""

from gpcache.methods.ape import APEClassifier, APETClassifier
from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.cache.held_out import HeldOutReport
from gpcache.methods.cache.model import Explanation
from gpcache.methods.calip import CALIPClassifier, image_and_places
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
from gpcache.methods.options import (
    ClassMean,
    Explicit,
    Fourier,
    Grouped,
    Nystrom,
    Regression,
    Selection,
    Training,
    Weights,
    Whitened,
)
from gpcache.methods.proker import ProKeRClassifier
from gpcache.methods.registry import Method, find_method, registry
from gpcache.methods.state import restore, state_of
from gpcache.methods.task_res import TaskResClassifier
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.timo import TIMOClassifier
from gpcache.methods.tip_adapter import TipAdapterClassifier, TipAdapterFClassifier
from gpcache.methods.tip_x import TipXClassifier
from gpcache.methods.zero_shot import ZeroShotClassifier

__all__ = [
    "APEClassifier",
    "APETClassifier",
    "CALIPClassifier",
    "CLAPClassifier",
    "CLIPAdapterClassifier",
    "ClassMean",
    "CoOpClassifier",
    "Explanation",
    "Explicit",
    "FeatureClassifier",
    "Fourier",
    "GDAClassifier",
    "GPCacheClassifier",
    "GPCacheFClassifier",
    "Grouped",
    "HeldOutReport",
    "LPPlusPlusClassifier",
    "LinearProbeClassifier",
    "Method",
    "Nystrom",
    "PaperGPCacheClassifier",
    "ProKeRClassifier",
    "Regression",
    "Selection",
    "State",
    "TIMOClassifier",
    "TaskResClassifier",
    "TextPrior",
    "TipAdapterClassifier",
    "TipAdapterFClassifier",
    "TipXClassifier",
    "Training",
    "Weights",
    "Whitened",
    "ZeroShotClassifier",
    "find_method",
    "image_and_places",
    "registry",
    "restore",
    "state_of",
]
