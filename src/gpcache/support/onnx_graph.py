"""ONNX graphs written node by node: no exporter, no further package, the same bytes every time."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

OPSET = 17
IR_VERSION = 8

#: Name, numpy type and shape of an input or output; None or a word stands for any length.
Port = tuple[str, type[np.generic], Sequence[int | str | None]]


class Graph:
    """Nodes and weights of a graph under construction; values are referred to by name.

    `onnx` is the module, which the caller imports from its extra.
    """

    def __init__(self, onnx: ModuleType) -> None:
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._constants: dict[float, str] = {}
        #: Bytes of all weights so far.
        self.size = 0
        #: What a "Cast" node calls float32.
        self.float32: int = onnx.TensorProto.FLOAT

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Append a node on these values; returns the name of its result, `output` if given."""
        name = output or f"value{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def nodes(self, kind: str, *inputs: str, results: int, **attributes: Any) -> list[str]:
        """Append a node that has several results; returns their names."""
        names = [f"value{len(self._nodes)}_{part}" for part in range(results)]
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, names, **attributes))
        return names

    def weight(self, tensor: Tensor, name: str | None = None) -> str:
        """Keep a tensor in the graph, floats in float32; returns its name."""
        if tensor.is_floating_point():
            tensor = tensor.to(torch.float32)
        name = name or f"weight{len(self._weights)}"
        array = tensor.detach().cpu().contiguous().numpy()
        self._weights.append(self._onnx.numpy_helper.from_array(array, name))
        self.size += array.nbytes
        return name

    def constant(self, value: float) -> str:
        """A float32 number as a weight; equal numbers share one."""
        if value not in self._constants:
            self._constants[value] = self.weight(torch.tensor(value))
        return self._constants[value]

    def serialised(
        self,
        name: str,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        metadata: Mapping[str, str] | None = None,
        **producer: str,
    ) -> bytes:
        """The graph as the bytes of an ONNX file."""
        helper = self._onnx.helper
        ends = ([self._value_info(port) for port in ports] for ports in (inputs, outputs))
        graph = helper.make_graph(self._nodes, name, *ends, self._weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, **producer)
        helper.set_model_props(model, dict(metadata or {}))
        serialised: bytes = model.SerializeToString(deterministic=True)
        return serialised

    def _value_info(self, port: Port) -> Any:
        name, kind, shape = port
        code = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return self._onnx.helper.make_tensor_value_info(name, code, shape)


def write_unit(graph: Graph, source: str) -> str:
    """Rows (batch, d) scaled to length one; as in `unit_rows`, by the largest entry first."""
    tiny = graph.constant(torch.finfo(torch.float32).tiny)  # for a row that has no direction
    largest = graph.node("ReduceMax", graph.node("Abs", source), axes=[1], keepdims=1)
    scaled = graph.node("Div", source, graph.node("Max", largest, tiny))
    length = graph.node("ReduceL2", scaled, axes=[1], keepdims=1)
    return graph.node("Div", scaled, graph.node("Max", length, tiny))
