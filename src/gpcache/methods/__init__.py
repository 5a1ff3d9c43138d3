"""Methods of the comparison, each a scikit-learn classifier on features."""

from gpcache.methods.base import FeatureClassifier
from gpcache.methods.gp_cache import GPCacheClassifier, GPCacheFClassifier
from gpcache.methods.model import Explanation, HeldOutReport
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.tip_adapter import TipAdapterClassifier, TipAdapterFClassifier
from gpcache.methods.zero_shot import ZeroShotClassifier

__all__ = [
    "Explanation",
    "FeatureClassifier",
    "GPCacheClassifier",
    "GPCacheFClassifier",
    "HeldOutReport",
    "TextPrior",
    "TipAdapterClassifier",
    "TipAdapterFClassifier",
    "ZeroShotClassifier",
]
