"""A small encoder for tests; as a program, `tiny.py FOLDER STORE SHARD_ROWS`, it extracts."""

import sys

import torch

from gpcache.encoders import Encoder
from gpcache.images import Preprocess


class ColourEncoder(Encoder):
    """Colours of an 8 × 8 image, turned by a random matrix; a text is the letters in it."""

    name = "colour"
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
        letters = torch.zeros(len(texts), 3 * 64)
        for row, text in enumerate(texts):
            for letter in text:
                letters[row, ord(letter) % (3 * 64)] += 1
        return letters @ self._matrix

    def _identity(self):
        yield self._matrix.numpy().tobytes()


if __name__ == "__main__":
    from gpcache.features.extract import extract
    from gpcache.images.sources import open_source

    folder, store, shard_rows = sys.argv[1:]
    print("start", flush=True)
    extract(
        open_source(folder),
        store,
        ColourEncoder(),
        shard_rows=int(shard_rows),
        batch_size=4,
        workers=1,
    )
