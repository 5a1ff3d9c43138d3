"""MiniLM, which reads the text of `lite`: the layers of BERT on the packaged weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

HEADS, LAYERS = 12, 6
EPSILON = 1e-12

_ATTENTION = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class MiniLM:
    """The weights by name; gradients flow through to the embeddings of the tokens."""

    weights: dict[str, Tensor]

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> MiniLM:
        """Read model.safetensors of the package."""
        # Weights that are born in inference mode would never let a gradient through.
        with torch.inference_mode(False):
            return cls(load_file(folder / "model.safetensors", device=str(device)))

    def embedded(self, ids: Tensor) -> Tensor:
        """The embeddings (n, length, width) of tokens (n, length), without positions."""
        return functional.embedding(ids, self.weights["embeddings.word_embeddings.weight"])

    def sentences(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """Unit vectors (n, width): the mean of the last layer over the tokens of `mask`."""
        positions = self.weights["embeddings.position_embeddings.weight"][: embeddings.shape[1]]
        rows = embeddings + positions + self.weights["embeddings.token_type_embeddings.weight"][0]
        rows = self._normed(rows, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            rows = self._layer(rows, mask, f"encoder.layer.{layer}.")
        kept = mask.unsqueeze(-1)
        return functional.normalize((rows * kept).sum(1) / kept.sum(1), dim=-1)

    def _layer(self, rows: Tensor, mask: Tensor, layer: str) -> Tensor:
        parts = (self._dense(rows, f"{layer}attention.self.{part}") for part in _ATTENTION)
        shape = (*rows.shape[:2], HEADS, -1)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        heads = functional.scaled_dot_product_attention(query, key, value, mask[:, None, None, :])
        heads = self._dense(heads.transpose(1, 2).flatten(2), f"{layer}attention.output.dense")
        rows = self._normed(rows + heads, f"{layer}attention.output.LayerNorm")
        inner = functional.gelu(self._dense(rows, f"{layer}intermediate.dense"))
        inner = self._dense(inner, f"{layer}output.dense")
        return self._normed(rows + inner, f"{layer}output.LayerNorm")

    def _dense(self, rows: Tensor, name: str) -> Tensor:
        return functional.linear(rows, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _normed(self, rows: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(rows, weight.shape, weight, bias, EPSILON)
