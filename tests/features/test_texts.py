"""Text vectors: encoded once per store and set of prompts."""

import numpy as np
import pytest

from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.errors import GPCacheError
from gpcache.features.extract import stored_text_weights
from gpcache.features.store import FeatureStore

PROMPTS = Prompts.from_templates(["oak", "ash"], ["a photo of a {}.", "art of the {}."])


@pytest.fixture
def store(tmp_path, encoder):
    return FeatureStore.create(tmp_path / "store", encoder)


def test_the_vectors_are_the_encoders(store, encoder):
    found = stored_text_weights(store, encoder, PROMPTS)
    np.testing.assert_array_equal(found, text_weights(encoder, PROMPTS))


def test_a_second_time_nothing_is_encoded_also_by_another_process(store, encoder, monkeypatch):
    first = stored_text_weights(store, encoder, PROMPTS)

    def embed(texts):
        raise AssertionError(f"{texts} were encoded again")

    monkeypatch.setattr(encoder, "_embed_texts", embed)
    again = stored_text_weights(FeatureStore.open(store.folder), encoder, PROMPTS)
    np.testing.assert_array_equal(again, first)
    with pytest.raises(AssertionError, match="encoded again"):
        stored_text_weights(store, encoder, Prompts.from_templates(["oak", "elm"]))


def test_each_set_of_prompts_has_its_own(store, encoder):
    other = Prompts.from_templates(["oak", "ash"], "a {}.")
    first = stored_text_weights(store, encoder, PROMPTS)
    second = stored_text_weights(store, encoder, other)
    assert np.abs(first - second).max() > 0.01
    np.testing.assert_array_equal(stored_text_weights(store, encoder, PROMPTS), first)


def test_another_encoder_is_refused(store, other_encoder):
    with pytest.raises(GPCacheError, match="encoder") as caught:
        stored_text_weights(store, other_encoder, PROMPTS)
    assert "\n" not in str(caught.value)
