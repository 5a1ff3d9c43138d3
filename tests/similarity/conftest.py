"""Problems whose answer is known, a small encoder, and feature stores of it."""

import hashlib

import numpy as np
import pytest
import torch

from gpcache.encoders import Encoder
from gpcache.features.store import FeatureStore, Item
from gpcache.images import Preprocess
from gpcache.images.augment import Views


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def noisy_directions():
    """20 classes that differ in 8 columns; in the other 24 two views of an image share nothing.

    Originals (p, 32), two views of each (p, 2, 32), and classes (p,).
    """
    generator = np.random.default_rng(0)
    classes = np.arange(1200) % 20
    kept = generator.normal(size=(20, 8))[classes] + 0.5 * generator.normal(size=(1200, 8))

    def seen():
        return unit(np.hstack([kept, 1.15 * generator.normal(size=(1200, 24))]))

    return seen(), np.stack([seen(), seen()], 1), classes


@pytest.fixture
def nearest_accuracy():
    """How often the nearest of the first half of rows has the class of a row of the second."""

    def accuracy(rows, classes):
        half = len(rows) // 2
        found = np.asarray(rows[half:] @ rows[:half].T).argmax(1)
        return float(np.mean(classes[:half][found] == classes[half:]))

    return accuracy


class SumsEncoder(Encoder):
    """Random sums of the pixels of an 8 × 8 image."""

    name = "sums"
    dim = 16
    logit_scale = 10.0
    preprocess = Preprocess(size=8)

    def __init__(self, seed=0):
        super().__init__("cpu")
        generator = torch.Generator().manual_seed(seed)
        self._matrix = torch.randn(3 * 64, self.dim, generator=generator)

    def _embed_images(self, batch):
        return batch.flatten(1) @ self._matrix

    def _embed_texts(self, texts):
        return torch.tensor([[float(len(text))] * self.dim for text in texts])

    def _identity(self):
        yield self._matrix.numpy().tobytes()


@pytest.fixture(scope="session")
def encoder():
    return SumsEncoder()


@pytest.fixture(scope="session")
def other_encoder():
    return SumsEncoder(seed=1)


@pytest.fixture
def write_store(tmp_path, encoder):
    """A function that writes a store of named images; a content's features depend on its name."""

    def write(name, contents, *, views=None, made_by=encoder, splits=None):
        store = FeatureStore.create(tmp_path / name, made_by, views)
        items, rows = [], {}
        for number, content in enumerate(contents):
            code = hashlib.sha256(content.encode())
            generator = np.random.default_rng(list(code.digest()))
            count = 0 if views is None or views.average else views.count
            drawn = generator.normal(size=(count, made_by.dim) if count else made_by.dim)
            rows[code.hexdigest()] = unit(drawn).astype(np.float32)
            split = splits[number] if splits else None
            items.append(Item("photos", f"{number} {content}", code.hexdigest(), split=split))
        store.append(list(rows), np.stack(list(rows.values())))
        store.record("photos", items, [])
        return store

    return write


@pytest.fixture
def two_views():
    return Views(2, average=False)
