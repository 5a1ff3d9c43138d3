"""`gpcache inspect`, `export` and `fetch`: show a model, write it as ONNX, get its encoder."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

import gpcache
from gpcache.cli import options
from gpcache.cli.output import show

# The hyper-parameters that are shown, if the model has them.
HYPER_PARAMETERS = ("alpha", "beta", "tau", "shrinkage", "discriminant", "noise", "eta", "gain")
FILE = "The file to write."
IMAGES = "Take pixels, not features; for the encoders lite and lite0."
VARIANCE = "Also return variance and refusal; without them the file needs less memory."
ENCODER = "clip-rn50, clip-vit-b-16, open_clip:MODEL/WEIGHTS or hf:MODEL."
FileOption = Annotated[
    Path | None, Option("--output", "-o", metavar="FILE", help=FILE, show_default="MODEL.onnx")
]


def inspect(
    model: options.ModelArgument,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Show the training data, settings and accuracy of a model.

    **Example**

    - `gpcache inspect pets.gpc`
    """
    from gpcache.cli.figures import model_as_json, model_rows
    from gpcache.images.records import plural
    from gpcache.model.kept_shots import IndexedShots
    from gpcache.support.devices import format_bytes

    classifier = gpcache.ImageClassifier.load(model, device="cpu")
    fitted = classifier.model
    projection = getattr(fitted, "projection", None)
    counts = Counter(example.label for example in classifier.examples)
    cache = getattr(fitted, "fitted_", None)
    if cache is not None and cache.streamed is not None:
        class_counts = cache.streamed.class_counts.int().tolist()
        counts = Counter(dict(zip(classifier.classes, class_counts, strict=True)))
    names = [name for name in (*HYPER_PARAMETERS, "temperature") if hasattr(fitted, f"{name}_")]
    values = {name: getattr(fitted, f"{name}_") for name in names}
    shots = classifier.content.shots
    kept = shots.shots.n_bytes if isinstance(shots, IndexedShots) else None
    details = {} if cache is None else {"posterior": cache.approximation}
    if kept is not None:
        images = plural(classifier.n_images, "image")
        details["reasons"] = f"{images} kept for --why, {format_bytes(kept)}"
    content = {
        "encoder": classifier.encoder_name,
        "method": classifier.method_name,
        "images": classifier.n_images,
        "classes": {name: counts[name] for name in classifier.classes},
        "posterior": None if cache is None else cache.approximation,
        "hyper_parameters": values,
        "templates": classifier.content.templates,
        "views": classifier.content.views,
        "projection": projection and (asdict(projection.facts) if projection.facts else {}),
        "source": classifier.training.source,
        "kept_shots": kept and {"images": classifier.n_images, "bytes": kept},
        "held_out": model_as_json(classifier, model)["held_out"],
    }
    rows = model_rows(
        classifier,
        model,
        images=f"{classifier.n_images} from {classifier.training.source}",
        **details,
        classes=", ".join(f"{name} ({counts[name]})" for name in classifier.classes),
        settings=", ".join(f"{name} {value:.4g}" for name, value in values.items()),
    )
    show(json, content, rows)


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
        made_for = {"encoder_fingerprint": encoder.fingerprint}
        data = export_onnx(fitted, variance=variance, reject=reject, **made_for)
    write_atomic(target, data)
    content = {"file": str(target), "bytes": len(data), "format": format}
    show(json, content, f"{target}: {format_bytes(len(data))}, opset {OPSET}.")


def fetch(
    encoder: Annotated[str, Argument(metavar="ENCODER", help=ENCODER)],
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Download an encoder to this machine.

    A command that uses a saved model never downloads the encoder. Check who made the model, then
    fetch the encoder that it names.

    **Examples**

    - `gpcache fetch clip-vit-b-16`
    - `gpcache fetch hf:openai/clip-vit-base-patch32`
    """
    network = gpcache.load_encoder(encoder, device="cpu")
    content = {"encoder": encoder, "fingerprint": network.fingerprint, "dim": network.dim}
    show(json, content, f"{encoder}: on this machine, {network.dim} features per image.")
