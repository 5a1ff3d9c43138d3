"""What encoders of several libraries need of a tokenizer and a text model's embedding layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Case, accents, punctuation, entities, spaces and more tokens than any context holds.
PROBES = ("a photo of a cat.", "Été & CASE, isn't 42!", "  two   spaces &amp; <b>", "long " * 300)


@contextmanager
def embedded_as(layer: torch.nn.Module, embeddings: torch.Tensor) -> Iterator[None]:
    """Lets a text model read `embeddings` in place of those of its own embedding layer.

    Positions, mask and pooling stay the library's. One thread at a time: the layer is shared.
    """
    handle = layer.register_forward_hook(lambda *_: embeddings)
    try:
        yield
    finally:
        handle.remove()


def tokenizer_identity(
    words: object, tokenize: Callable[[list[str]], torch.Tensor]
) -> Iterator[bytes]:
    """What a fingerprint must know of a tokenizer: its `words`, and its ids of a few texts.

    Those ids tell cleaning, special tokens, padding and context, whatever the library calls them.
    """
    yield json.dumps(words, sort_keys=True).encode()
    yield json.dumps(tokenize(list(PROBES)).tolist()).encode()


def words_of(tokenizer: Any) -> object:
    """Vocabulary and merges of a tokenizer of transformers, as JSON holds them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    # The rest of the backend's description changes with how it was called last.
    return [json.loads(backend.to_str())["model"], tokenizer.get_added_vocab()]
