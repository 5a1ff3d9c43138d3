"""`gpcache export`: a model as one file for other runtimes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import (
    JsonOption,
    ModelArgument,
    VerboseOption,
    check_file,
    print_json,
    printable,
)


class Target(StrEnum):
    """What to export to."""

    ONNX = "onnx"


def export(
    model: ModelArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file.", show_default="MODEL.onnx")
    ] = None,
    format: Annotated[Target, typer.Option("--format", "-f", help="Which format.")] = Target.ONNX,
    images: Annotated[
        bool,
        typer.Option("--images", help="Pixels in, not features: for the encoders lite and lite0."),
    ] = False,
    variance: Annotated[
        bool, typer.Option(help="Whether the variance comes out too; without it, less memory.")
    ] = True,
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Write a model as one ONNX file for other runtimes.

    It takes features, or with `--images` the pixels of an image.

    **Examples**

    - `gpcache export pets.gpc -o pets.onnx`

    - `gpcache export pets.gpc -o pets.onnx --images`
    """
    from gpcache.model.classifier import ImageClassifier
    from gpcache.model.onnx import export_image_onnx, export_onnx
    from gpcache.support.devices import format_bytes
    from gpcache.support.files import write_atomic
    from gpcache.support.onnx_graph import OPSET

    target = output or model.with_name(f"{model.name.removesuffix('.gpc')}.onnx")
    check_file(target)
    classifier = ImageClassifier.load(model, device="cpu")
    if images:
        data = export_image_onnx(classifier.model, classifier.encoder, variance=variance)
    else:
        data = export_onnx(
            classifier.model,
            variance=variance,
            encoder_fingerprint=classifier.encoder.fingerprint,
        )
    write_atomic(target, data)
    if json:
        print_json({"file": str(target), "bytes": len(data), "format": format.value})
        return
    typer.echo(printable(f"{target}: {format_bytes(len(data))}, opset {OPSET}."))
