"""A fitted classifier as one ONNX file: the head on features, or `lite` and the head on pixels.

The graph computes in float32 and agrees with the classifier to 1e-4. Logits have fewer digits only
if confidence scaling divides by a variance below about 0.01, as at a shot itself with little noise.
The graph scales rows to length one but refuses none: a row of zeros, for which the classifier
raises an error, gets a meaningless answer.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache import __version__
from gpcache.encoders import Encoder
from gpcache.encoders.lite import LiteEncoder, write_features
from gpcache.errors import DataError
from gpcache.methods.base import FeatureClassifier
from gpcache.model.onnx.head import ensure_room, write_head, write_refusal
from gpcache.support.extras import require
from gpcache.support.onnx_graph import Graph, Port

# The share of good images that may be refused.
REJECT = 0.05

__all__ = ["export_image_onnx", "export_onnx"]


def export_onnx(
    model: FeatureClassifier,
    *,
    variance: bool = True,
    reject: float = REJECT,
    encoder_fingerprint: str | None = None,
) -> bytes:
    """The head as an ONNX file; its input is `features` (batch, d) of any length.

    The outputs are `logits` (batch, c) before the temperature, `probabilities` (batch, c) after it,
    and `variance` (batch, g), with a column for each group of classes, usually one; it is 1 if the
    method has none. `familiarity` and `rejected` (batch, 1) say which rows the model answers with
    "I don't know" at the rate `reject`. `variance=False` leaves out these three outputs and the
    largest matrix. Class names, temperature, rate, version and the encoder's fingerprint are in the
    file's metadata.
    """
    graph = _graph_for(model)
    source: Port = ("features", np.float32, ["batch", model.n_features_in_])
    outputs = _written(graph, model, "features", variance, reject)
    known = {} if encoder_fingerprint is None else {"encoder_fingerprint": encoder_fingerprint}
    return _file(graph, source, outputs, _metadata(model, variance, reject) | known)


def export_image_onnx(
    model: FeatureClassifier, encoder: Encoder, *, variance: bool = True, reject: float = REJECT
) -> bytes:
    """The encoder `lite` or `lite0` and the head as one ONNX file; its input is `pixels`.

    They are bytes (batch, size, size, 3), resized and cropped as `preprocess` in the metadata says.
    The outputs are those of `export_onnx`, and `label` (batch,), the index of the most probable
    class in the metadata's `classes`.
    """
    if not isinstance(encoder, LiteEncoder):
        raise DataError(
            "Only the encoders 'lite' and 'lite0' can be exported, got a "
            f"{type(encoder).__name__}: export_onnx exports the head for features of any encoder."
        )
    graph = _graph_for(model)
    if model.n_features_in_ != encoder.dim:
        raise DataError(
            f"The model was fitted on features of width {model.n_features_in_}, but the encoder "
            f"{encoder.name!r} gives {encoder.dim}: fit it on features of {encoder.name!r}."
        )
    features = write_features(graph, encoder, _write_normalised(graph, encoder, "pixels"))
    outputs = _written(graph, model, features, variance, reject)
    graph.node("ArgMax", "logits", output="label", axis=1, keepdims=0)
    outputs.append(("label", np.int64, ["batch"]))
    metadata = _metadata(model, variance, reject) | {
        "encoder": encoder.name,
        "encoder_fingerprint": encoder.fingerprint,
        "preprocess": json.dumps(encoder.preprocess.describe(), sort_keys=True),
    }
    size = encoder.preprocess.size
    return _file(graph, ("pixels", np.uint8, ["batch", size, size, 3]), outputs, metadata)


def _write_normalised(graph: Graph, encoder: LiteEncoder, pixels: str) -> str:
    """The arithmetic of `Preprocess.normalised`, step by step."""

    def channels(values: tuple[float, float, float]) -> Tensor:
        return torch.tensor(values)[:, None, None]

    planes = graph.node("Transpose", pixels, perm=[0, 3, 1, 2])
    values = graph.node("Cast", planes, to=graph.float32)
    values = graph.node("Div", values, graph.constant(255.0))
    values = graph.node("Sub", values, graph.weight(channels(encoder.preprocess.mean)))
    return graph.node("Div", values, graph.weight(channels(encoder.preprocess.std)))


def _graph_for(model: FeatureClassifier) -> Graph:
    if not model.exports_to_onnx:
        raise DataError(
            f"{type(model).__name__} cannot be exported to ONNX: the zero-shot, Tip-Adapter and "
            "GPCache classifiers can."
        )
    check_is_fitted(model)
    return Graph(require("onnx", "onnx", purpose="Export to ONNX"))


def _written(
    graph: Graph, model: FeatureClassifier, source: str, variance: bool, reject: float
) -> list[Port]:
    outputs = write_head(graph, model, source, variance=variance)
    return [*outputs, *write_refusal(graph, model, reject)] if variance else outputs


def _metadata(model: FeatureClassifier, variance: bool, reject: float) -> dict[str, str]:
    refusal = {"reject": repr(float(reject))} if variance else {}
    return refusal | {
        "classes": json.dumps(model.classes_.tolist()),
        "gpcache_version": __version__,
        "method": type(model).__name__,
        "temperature": repr(float(model.temperature_)),
        "entropy_slope": repr(float(model.entropy_slope_)),
    }


def _file(graph: Graph, source: Port, outputs: list[Port], metadata: dict[str, str]) -> bytes:
    ensure_room(graph.size, "fit it with fewer shots.")
    producer = {"producer_name": "gpcache", "producer_version": __version__}
    return graph.serialised("gpcache", [source], outputs, metadata, **producer)
