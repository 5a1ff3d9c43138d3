"""Learns a projection with a checkpoint: `killed.py CHECKPOINT`, to be killed on its way."""

import sys

import numpy as np
import torch

from gpcache.similarity import ProjectionOptions, learn_projection
from gpcache.similarity.checkpoint import Checkpoint

OPTIONS = ProjectionOptions(neighbours=32, batch_size=32, epochs=12, bottleneck=2)


def features():
    generator = np.random.default_rng(0)
    original = generator.normal(size=(1500, 64))
    return original, original[:, None] + 0.5 * generator.normal(size=(1500, 2, 64))


if __name__ == "__main__":
    torch.set_num_threads(1)
    learn_projection(*features(), options=OPTIONS, checkpoint=Checkpoint(sys.argv[1]), device="cpu")
