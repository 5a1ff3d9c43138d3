"""Methods of the comparison, each a scikit-learn classifier on features."""

from gpcache.methods.base import FeatureClassifier
from gpcache.methods.gp_cache import GPCacheClassifier, GPCacheFClassifier
from gpcache.methods.model import Explanation, HeldOutReport
from gpcache.methods.registry import Method, find_method, registry
from gpcache.methods.state import State, restore, state_of
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.tip_adapter import TipAdapterClassifier, TipAdapterFClassifier
from gpcache.methods.zero_shot import ZeroShotClassifier

__all__ = [
    "Explanation",
    "FeatureClassifier",
    "GPCacheClassifier",
    "GPCacheFClassifier",
    "HeldOutReport",
    "Method",
    "State",
    "TextPrior",
    "TipAdapterClassifier",
    "TipAdapterFClassifier",
    "ZeroShotClassifier",
    "find_method",
    "registry",
    "restore",
    "state_of",
]
