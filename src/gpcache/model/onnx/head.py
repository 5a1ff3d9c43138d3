"""The head as a graph: unit rows, the kernel's space, text and cache fused, temperature; rejection.

Rejection compares the familiarity of an image with that of held-out training images.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.gp.feature_maps import FeatureMap, ResidualProjection
from gpcache.gp.fusion import MIN_VARIANCE
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.cache.fitted import Fitted
from gpcache.methods.cache.model import CacheModel
from gpcache.metrics import Calibration
from gpcache.model.onnx.folding import folded
from gpcache.model.predictions import HeldOutScores
from gpcache.support.devices import format_bytes
from gpcache.support.onnx_graph import Graph, Port, write_unit

# A protobuf file ends at 2 GiB; the margin is for nodes and class names.
LARGEST = 2**31 - 2**24

_FLOAT32 = torch.finfo(torch.float32)


def ensure_room(size: int, remedy: str) -> None:
    """Raise an error if the weights need more bytes than a file can hold; it ends with `remedy`."""
    if size > LARGEST:
        raise DataError(
            f"This model would take {format_bytes(size)} as ONNX, and a protobuf file ends at "
            f"2 GB: {remedy}"
        )


@torch.no_grad()
def write_head(
    graph: Graph, model: FeatureClassifier, source: str, *, variance: bool
) -> list[Port]:
    """Add logits, probabilities and variance of the rows `source` (batch, d) to the graph."""
    unit = write_unit(graph, source)
    terms, columns = [], None
    fitted: Fitted | None = getattr(model, "fitted_", None)
    if fitted is None:
        text = model._text_vectors()
    else:
        cache = fitted.model
        text = None if cache.text is None else cache.choice.gain * cache.text
        term, columns = _write_cache(graph, cache, unit, variance=variance)
        terms.append(term)
    if text is not None:
        terms.append(graph.node("MatMul", unit, graph.weight(text.mT)))
    logits = graph.node("Sum", *terms, output="logits")
    classes = len(model.classes_)
    scaled = _write_calibration(graph, logits, model._calibration, classes)
    graph.node("Softmax", scaled, output="probabilities", axis=1)
    names = ("logits", "probabilities")
    outputs: list[Port] = [(name, np.float32, ["batch", classes]) for name in names]
    if variance:
        if columns is None:
            _write_filled(graph, unit, "variance", 1.0)
        outputs.append(("variance", np.float32, ["batch", columns or 1]))
    return outputs


def _write_calibration(graph: Graph, logits: str, calibration: Calibration, classes: int) -> str:
    """Scale logits like `Calibration.scaled`."""
    temperature = graph.weight(torch.tensor(calibration.temperature), "temperature")
    scaled = graph.node("Div", logits, temperature)
    if calibration.slope == 0 or classes == 1:
        return scaled
    logs = graph.node("LogSoftmax", scaled, axis=1)
    terms = graph.node("Mul", graph.node("Exp", logs), logs)
    axes = graph.weight(torch.tensor([1]))
    total = graph.node("ReduceSum", terms, axes, keepdims=1)
    power = graph.node("Mul", total, graph.constant(-calibration.slope / math.log(classes)))
    return graph.node("Mul", scaled, graph.node("Exp", power))


def _write_filled(graph: Graph, rows: str, output: str, value: float) -> None:
    """(batch, 1) of one value, for as many as there are `rows`."""
    count = graph.node("Shape", rows, end=1)
    shape = graph.node("Concat", count, graph.weight(torch.tensor([1])), axis=0)
    graph.node("Expand", graph.constant(value), shape, output=output)


def _write_map(graph: Graph, feature_map: FeatureMap, unit: str) -> tuple[str, str]:
    """Unit rows (batch, d) → rows in the kernel's space, before and after they are scaled."""
    projection = feature_map.projection
    if isinstance(projection, ResidualProjection):
        matrix = projection.matrix.mT
        eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        unit = write_unit(graph, graph.node("MatMul", unit, graph.weight(eye + matrix)))
    elif projection is not None:
        raise DataError(
            "The projection is a function, which cannot be exported to ONNX: "
            "fit with a projection that is a matrix (d, d)."
        )
    mapped = unit
    if feature_map.mean is not None:
        # Not folded into the product: the difference of two large numbers would lose digits.
        mapped = graph.node("Sub", mapped, graph.weight(feature_map.mean))
    if feature_map.matrix is not None:
        mapped = graph.node("MatMul", mapped, graph.weight(feature_map.matrix))
    return mapped, unit if mapped == unit else write_unit(graph, mapped)


def _write_cache(
    graph: Graph, cache: CacheModel, unit: str, *, variance: bool
) -> tuple[str, int | None]:
    """α · mean / variance^η (batch, c), with the discriminant of a softmax likelihood.

    Returns its name, and how many columns the variance has, if written.
    """
    parts, choice = folded(cache.precision, cache.coefficients), cache.choice
    unscaled, mapped = _write_map(graph, cache.feature_map, unit)
    row = parts.row.write(graph, mapped)
    term = graph.node("MatMul", row, graph.weight(choice.alpha * parts.weights))
    if cache.discriminant is not None:
        means, halves, n_modes = cache.discriminant
        modes = []
        for first in range(n_modes):
            weights = graph.weight(choice.discriminant * means[first::n_modes].mT)
            scores = graph.node("MatMul", unscaled, weights)
            lengths = graph.weight(choice.discriminant * halves[first::n_modes])
            modes.append(graph.node("Sub", scores, lengths))
        nearest = graph.node("Max", *modes) if n_modes > 1 else modes[0]
        term = graph.node("Sum", term, nearest)
    spread = parts.spread
    if spread is None or not (variance or choice.eta):
        return term, None
    ensure_room(graph.size, "fit it with fewer shots.")
    remedy = "pass variance=False, which leaves the variance out."
    if choice.eta:
        remedy = "fit it with fewer shots, or with approximation='grouped' or 'nystrom'."
    ensure_room(graph.size + spread.bytes, remedy)
    if spread.row is not parts.row:
        row = spread.row.write(graph, mapped)
    spread.write(graph, row, output="variance")
    if choice.eta:
        name, column = "variance", cache.precision.class_column
        if column is not None:
            name = graph.node("Gather", name, graph.weight(column), axis=1)
        term = graph.node("Mul", term, _write_power(graph, name, choice.eta))
    return term, spread.groups


def _write_power(graph: Graph, variance: str, eta: float) -> str:
    """1 / variance^η in log space and bounded, as `scaled_mean` has it in float32."""
    logarithm = graph.node("Log", graph.node("Max", variance, graph.constant(MIN_VARIANCE)))
    exponent = graph.node("Mul", logarithm, graph.constant(-eta))
    bound = graph.constant(0.5 * math.log(_FLOAT32.max))
    return graph.node("Exp", graph.node("Min", exponent, bound))


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
        _write_filled(graph, "logits", "familiarity", np.nan)
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
