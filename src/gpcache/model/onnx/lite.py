"""The encoder `lite` as a graph: bytes of images to its feature vectors."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from gpcache.encoders.efficientnet import write_layer
from gpcache.encoders.lite import LiteEncoder
from gpcache.model.onnx.head import write_unit
from gpcache.support.onnx_graph import Graph


def write_lite(graph: Graph, encoder: LiteEncoder, pixels: str) -> str:
    """Features (batch, 1664) of `pixels` (batch, size, size, 3): what `encode_pixels` gives."""
    maps = write_layer(graph, encoder._vision._layers, _write_normalised(graph, encoder, pixels))
    features = graph.node("ReduceMean", maps, axes=[2, 3], keepdims=0)
    conse = _write_conse(graph, encoder, features)
    if encoder.recipe.square_root:
        features = graph.node("Sqrt", features)
    mixing = encoder.recipe.mixing
    parts = ((sqrt(mixing), conse), (sqrt(1 - mixing), features))
    scaled = [
        graph.node("Mul", write_unit(graph, part), graph.constant(scale)) for scale, part in parts
    ]
    return graph.node("Concat", *scaled, axis=1)


def _write_normalised(graph: Graph, encoder: LiteEncoder, pixels: str) -> str:
    """The arithmetic of `Preprocess.normalised`, step by step."""

    def channels(values: tuple[float, float, float]) -> Tensor:
        return torch.tensor(values)[:, None, None]

    planes = graph.node("Transpose", pixels, perm=[0, 3, 1, 2])
    values = graph.node("Cast", planes, to=graph.float32)
    values = graph.node("Div", values, graph.constant(255.0))
    values = graph.node("Sub", values, graph.weight(channels(encoder.preprocess.mean)))
    return graph.node("Div", values, graph.weight(channels(encoder.preprocess.std)))


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
