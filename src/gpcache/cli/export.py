"""`gpcache export`: write a model as one file for other runtimes."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

import gpcache
from gpcache.cli import options
from gpcache.cli.output import show

FILE = "The file to write."
IMAGES = "Take pixels, not features; for the encoders lite and lite0."
VARIANCE = "Also return variance and refusal; without them the file needs less memory."

FileOption = Annotated[Path | None, Option("--output", "-o", help=FILE, show_default="MODEL.onnx")]


def export(
    model: options.ModelArgument,
    output: FileOption = None,
    format: Annotated[Literal["onnx"], Option("--format", "-f", help="The format.")] = "onnx",
    images: Annotated[bool, Option("--images", help=IMAGES)] = False,
    variance: Annotated[bool, Option(help=VARIANCE)] = True,
    reject: options.RejectOption = 0.05,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Write a model as one ONNX file for other runtimes.

    It takes features, or with `--images` the pixels of an image.

    **Examples**

    - `gpcache export pets.gpc -o pets.onnx`
    - `gpcache export pets.gpc -o pets.onnx --images`
    """
    from gpcache.model.onnx import export_image_onnx, export_onnx
    from gpcache.support.devices import format_bytes
    from gpcache.support.files import write_atomic
    from gpcache.support.onnx_graph import OPSET

    target = output or model.with_name(f"{model.name.removesuffix('.gpc')}.onnx")
    options.check_file(target)
    classifier = gpcache.ImageClassifier.load(model, device="cpu")
    fitted, encoder = classifier.model, classifier.encoder_
    if images:
        data = export_image_onnx(fitted, encoder, variance=variance, reject=reject)
    else:
        fingerprint = encoder.fingerprint
        data = export_onnx(
            fitted, variance=variance, reject=reject, encoder_fingerprint=fingerprint
        )
    write_atomic(target, data)
    content = {"file": str(target), "bytes": len(data), "format": format}
    show(json, content, f"{target}: {format_bytes(len(data))}, opset {OPSET}.")
