"""Few-shot image classifiers with calibrated probabilities, which can answer "I don't know".

The public names are loaded on first use: importing gpcache imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gpcache.errors import (
    DataError,
    DiskFullError,
    EncoderError,
    GPCacheError,
    ImageRefusedError,
    MissingExtraError,
    ModelFileError,
    NumericalError,
    ProtocolError,
    StoreError,
)
from gpcache.support.telemetry import disable_telemetry

# Before any package with telemetry can be imported.
disable_telemetry()

__version__ = "0.2.0"

__all__ = [
    "DataError",
    "DiskFullError",
    "EncoderError",
    "FeatureStore",
    "GPCacheClassifier",
    "GPCacheError",
    "GPCacheFClassifier",
    "ImageClassifier",
    "ImageRefusedError",
    "MissingExtraError",
    "ModelFileError",
    "NumericalError",
    "PaperGPCacheClassifier",
    "Prompts",
    "ProtocolError",
    "StoreError",
    "TextPrior",
    "__version__",
    "load_encoder",
    "text_weights",
]

# Public name → the module that defines it.
_LAZY = {
    "FeatureStore": "gpcache.features.store",
    "GPCacheClassifier": "gpcache.methods",
    "GPCacheFClassifier": "gpcache.methods",
    "ImageClassifier": "gpcache.model.classifier",
    "PaperGPCacheClassifier": "gpcache.methods",
    "Prompts": "gpcache.encoders.prompts",
    "TextPrior": "gpcache.methods",
    "load_encoder": "gpcache.encoders",
    "text_weights": "gpcache.encoders.prompts",
}

if TYPE_CHECKING:
    from gpcache.encoders import load_encoder
    from gpcache.encoders.prompts import Prompts, text_weights
    from gpcache.features.store import FeatureStore
    from gpcache.methods import (
        GPCacheClassifier,
        GPCacheFClassifier,
        PaperGPCacheClassifier,
        TextPrior,
    )
    from gpcache.model.classifier import ImageClassifier
else:
    # Hidden from type checkers, which would otherwise accept any misspelt name.
    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            if name.endswith("Classifier") and hasattr(import_module("gpcache.methods"), name):
                # `from gpcache import …` replaces the sentence of an AttributeError by its own.
                raise ImportError(
                    f"{name} is in gpcache.methods: from gpcache.methods import {name}"
                )
            if name == "GroupedCache":
                raise ImportError(
                    "GroupedCache was removed: GPCacheClassifier now fits any number of shots, "
                    "from a mapped file as well (approximation='explicit')."
                )
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value  # the next look-up finds it without calling this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
