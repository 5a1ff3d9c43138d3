"""Which images are contrasted: the nearest by cosine, or a uniform draw."""

import numpy as np
import pytest
import torch

from gpcache.errors import DataError
from gpcache.similarity.mining import nearest_sets, random_sets


def test_nearest_sets_are_those_of_a_full_sort():
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = np.argsort(-(unit @ unit.T), axis=1)[:, :7]
    found = nearest_sets(torch.from_numpy(rows), 7)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(found[:, 0].numpy(), np.arange(60))  # itself comes first


def test_random_sets_hold_the_anchor_once_and_others_alike():
    generator = np.random.default_rng(0)
    anchors = torch.arange(11)
    counts = np.zeros((11, 11))
    for _ in range(600):
        sets = random_sets(anchors, 11, 4, generator).numpy()
        assert (sets[:, 0] == np.arange(11)).all()
        for anchor, members in enumerate(sets):
            assert len(set(members)) == 4
            counts[anchor, members] += 1
    others = counts[~np.eye(11, dtype=bool)]
    # 600 draws of 3 out of 10: 180 times each, with a deviation of 11.
    assert others.min() > 125
    assert others.max() < 235


def test_too_few_images_are_one_sentence():
    with pytest.raises(DataError, match=r"neighbours=5 needs as many images, but there are 3"):
        nearest_sets(torch.eye(3), 5)
    with pytest.raises(DataError, match=r"lower neighbours"):
        random_sets(torch.arange(3), 3, 5, np.random.default_rng(0))
