"""TokenEncoder: the base class of encoders whose text model reads token ids."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import normalize

from gpcache.encoders.base import Encoder, TokenText, weights_identity

# Case, accents, punctuation, entities, spaces and more tokens than any context holds.
PROBES = ("a photo of a cat.", "Été & CASE, isn't 42!", "  two   spaces &amp; <b>", "long " * 300)


class TokenEncoder(Encoder):
    """An encoder whose text model reads token ids and lets their embeddings be replaced.

    Features come from `_model`; positions, mask and pooling are those of the library.
    """

    has_spatial: bool = True
    has_tokens: bool = True
    _model: Any

    @abstractmethod
    def _tokenize(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (n, length), cut to the context, and where there are tokens (n, length)."""

    @abstractmethod
    def _embed_ids(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Features (n, dim) of any length."""

    @abstractmethod
    def _embedding_layer(self) -> torch.nn.Module:
        """The layer that turns token ids into vectors."""

    def _embed_texts(self, texts: list[str]) -> torch.Tensor:
        return self._embed_ids(*self._tokenize(texts))

    def embed_tokens(self, texts: Sequence[str]) -> TokenText:
        """Return the token embeddings of texts, to be changed and passed to `encode_tokens`."""
        ids, mask = self._tokenize(list(texts))
        with torch.no_grad():
            return TokenText(self._embedding_layer()(ids), ids, mask)

    def encode_tokens(self, tokens: TokenText) -> torch.Tensor:
        """Unit vectors (n, dim) of token embeddings; gradients flow back into them.

        Only one thread at a time, because the embedding layer is replaced meanwhile.
        """
        handle = self._embedding_layer().register_forward_hook(lambda *_: tokens.embeddings)
        try:
            return normalize(self._embed_ids(tokens.ids, tokens.mask), dim=-1)
        finally:
            handle.remove()

    def _parts_identity(self, settings: Sequence[object], words: object) -> Iterator[bytes]:
        """Bytes for a fingerprint: weights, `settings`, the tokenizer's `words` and its ids.

        The ids of a few texts show cleaning, special tokens, padding and context, whatever the
        library calls them.
        """
        yield from weights_identity(self._model)  # the logit scale is one of them
        for part in settings:
            yield json.dumps(part, sort_keys=True).encode()
        yield json.dumps(words, sort_keys=True).encode()
        yield json.dumps(self._tokenize(list(PROBES))[0].tolist()).encode()


def words_of(tokenizer: Any) -> object:
    """Vocabulary and merges of a tokenizer of transformers, as JSON holds them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    # The rest of the backend's description depends on its last call.
    return [json.loads(backend.to_str())["model"], tokenizer.get_added_vocab()]
