"""Text vectors of classes, made once per store."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.features.store import FeatureStore


def stored_text_weights(
    store: FeatureStore, encoder: Encoder, prompts: Prompts
) -> NDArray[np.float32]:
    """One unit vector per class (c, dim), from the store or, the first time, from the encoder."""
    store.require_encoder(encoder)
    known = store.text(prompts.digest)
    if known is None:
        known = text_weights(encoder, prompts)
        store.cache_text(prompts.digest, known)
    return known
