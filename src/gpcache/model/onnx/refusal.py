"""Rejection as a graph: the familiarity of an image, compared with held-out training images."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.methods.base import FeatureClassifier
from gpcache.model.onnx.head import write_filled
from gpcache.model.predictions import HeldOutScores
from gpcache.support.onnx_graph import Graph, Port


def write_refusal(graph: Graph, model: FeatureClassifier, reject: float) -> list[Port]:
    """Write `familiarity` and `rejected` (batch, 1) from the outputs `logits` and `variance`.

    They equal `joint_familiarity`. The scores of held-out images and the threshold are weights of
    the graph. If no image could be held out, familiarity is NaN and nothing is rejected.
    """
    held_out = HeldOutScores.of(model).scores
    if held_out.shape[1]:
        scaled = graph.node("Div", "logits", "temperature")
        shares = graph.node("Softmax", scaled, axis=1)
        queries = [graph.node("ReduceMax", shares, axes=[1], keepdims=1)]
        if len(held_out) == 2:
            least = graph.node("ReduceMin", "variance", axes=[1], keepdims=1)
            queries.insert(0, graph.node("Sub", graph.constant(1.0), least))
        _write_familiarity(graph, held_out, queries)
    else:
        write_filled(graph, "logits", "familiarity", np.nan)
    threshold = graph.weight(torch.tensor(reject), "reject")
    graph.node("LessOrEqual", "familiarity", threshold, output="rejected")
    return [("familiarity", np.float32, ["batch", 1]), ("rejected", np.bool_, ["batch", 1])]


def _write_familiarity(graph: Graph, held_out: NDArray[np.float64], queries: list[str]) -> None:
    """Write the share of held-out rows (s, n), with the row itself, that look no more familiar."""
    n = held_out.shape[1]
    ranks = sum(np.searchsorted(np.sort(row), row, side="right") for row in held_out)
    terms, query_ranks = [graph.weight(torch.tensor(ranks)[None].float())], []
    axis = graph.weight(torch.tensor([1]))
    for row, new in zip(held_out, queries, strict=True):
        known = graph.weight(torch.tensor(row)[None])
        terms.append(_write_number(graph, graph.node("GreaterOrEqual", known, new)))
        no_more = _write_number(graph, graph.node("LessOrEqual", known, new))
        query_ranks.append(graph.node("ReduceSum", no_more, axis, keepdims=1))
    limit = graph.node("Sum", *query_ranks, graph.constant(float(len(queries))))
    below = graph.node("LessOrEqual", graph.node("Sum", *terms), limit)
    count = graph.node("ReduceSum", _write_number(graph, below), axis, keepdims=1)
    total = graph.node("Add", count, graph.constant(1.0))
    graph.node("Div", total, graph.constant(1.0 + n), output="familiarity")


def _write_number(graph: Graph, truth: str) -> str:
    return graph.node("Cast", truth, to=graph.float32)
