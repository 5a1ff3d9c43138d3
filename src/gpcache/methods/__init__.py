"""Methods of the comparison, each a scikit-learn classifier on features."""

from gpcache.methods.ape import APEClassifier
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.clap import CLAPClassifier
from gpcache.methods.clip_adapter import CLIPAdapterClassifier
from gpcache.methods.gda import GDAClassifier
from gpcache.methods.gp_cache import GPCacheClassifier, GPCacheFClassifier
from gpcache.methods.linear_probe import LinearProbeClassifier
from gpcache.methods.model import Explanation, HeldOutReport
from gpcache.methods.proker import ProKeRClassifier
from gpcache.methods.registry import Method, find_method, registry
from gpcache.methods.state import State, restore, state_of
from gpcache.methods.task_res import TaskResClassifier
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.tip_adapter import TipAdapterClassifier, TipAdapterFClassifier
from gpcache.methods.tip_x import TipXClassifier
from gpcache.methods.zero_shot import ZeroShotClassifier

__all__ = [
    "APEClassifier",
    "CLAPClassifier",
    "CLIPAdapterClassifier",
    "Explanation",
    "FeatureClassifier",
    "GDAClassifier",
    "GPCacheClassifier",
    "GPCacheFClassifier",
    "HeldOutReport",
    "LinearProbeClassifier",
    "Method",
    "ProKeRClassifier",
    "State",
    "TaskResClassifier",
    "TextPrior",
    "TipAdapterClassifier",
    "TipAdapterFClassifier",
    "TipXClassifier",
    "ZeroShotClassifier",
    "find_method",
    "registry",
    "restore",
    "state_of",
]
