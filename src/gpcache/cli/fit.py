"""`gpcache fit`: train a model on labelled images."""

import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import gpcache
from gpcache.cli import options, output
from gpcache.errors import DataError

if TYPE_CHECKING:
    from gpcache.model.estimate import FitEstimate

logger = logging.getLogger(__name__)

MOST_SUSPECTS = 5
METHODS = (
    "gpcache, gpcache-paper, gpcache-f, tip-adapter, tip-adapter-f, tip-x, ape, ape-t, gda, "
    "proker, task-res, clip-adapter, clap, lp++, linear-probe or zero-shot."
)
PROMPT = "A sentence with {} for the class name. Repeat the option for several sentences."
CLASS = "Add a class without images, known by its name only; repeatable."
VIEWS = "Average the features of N random views of each image; 0 takes the centre view."
DRY_RUN = "Measure how long the fit takes, its memory and its disk; write no model."
PROJECTION = "Use a similarity projection, made by gpcache project."
MODEL = "Folder to write the model to."
SHOTS = "Use only K images of each class, drawn at random."
KEEP_SHOTS = (
    "Keep the features of all images in the model, so that --why can name them. Models of up to "
    "8,000 images keep them anyway."
)
THUMBNAILS = "Keep small copies of the photos in the model."

ModelOption = Annotated[Path, Option("--output", "-o", metavar="MODEL", help=MODEL)]
PromptOption = Annotated[
    list[str] | None, Option(metavar="SENTENCE", help=PROMPT, show_default="a photo of a(n) {}.")
]


def fit(
    images: options.ImagesOrStoreArgument,
    model: ModelOption,
    encoder: options.EncoderOption = "lite",
    method: Annotated[str, Option(metavar="METHOD", help=METHODS)] = "gpcache",
    shots: Annotated[int | None, Option(min=1, metavar="K", help=SHOTS)] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of the draw.")] = 0,
    prompt: PromptOption = None,
    text: Annotated[bool, Option(help="Use the class names.")] = True,
    class_name: Annotated[list[str] | None, Option("--class", metavar="NAME", help=CLASS)] = None,
    views: Annotated[int, Option(min=0, metavar="N", help=VIEWS)] = 0,
    projection: Annotated[Path | None, Option(metavar="PROJ", help=PROJECTION)] = None,
    thumbnails: Annotated[bool, Option("--thumbnails", help=THUMBNAILS)] = False,
    keep_shots: Annotated[bool, Option("--keep-shots", help=KEEP_SHOTS)] = False,
    force: Annotated[bool, Option("--force", help="Replace an existing model.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help=DRY_RUN)] = False,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    engine: options.EngineOption = "local",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Train a model on a few labelled images per class, in seconds.

    No validation set is needed: the figures come from held-out training images. A class folder
    without an image, or `--class NAME`, is known by its name alone.

    **Examples**

    - `gpcache fit photos/ -o pets.gpc`
    - `gpcache fit photos/ -o pets.gpc --prompt "a photo of a {}, a type of pet."`
    - `gpcache fit photos/ -o pets.gpc --shots 5 --encoder clip-vit-b-16`
    - `gpcache fit photos/ -o pets.gpc --dry-run`
    - `gpcache fit photos.store -o pets.gpc --engine ray`
    - `gpcache fit photos.store -o pets.gpc --keep-shots`
    """
    from gpcache.encoders.prompts import DEFAULT_TEMPLATES
    from gpcache.model.early import read_early
    from gpcache.model.places import check_model_place
    from gpcache.model.training_images import open_training
    from gpcache.support.imports import quick_imports

    if not text and (class_name or prompt):
        raise DataError("--no-text ignores class names: leave out --class and --prompt.")
    templates = (prompt or DEFAULT_TEMPLATES) if text else None
    check_model_place(model, replace=force)
    start = time.perf_counter()
    source, classes = open_training(images, follow=follow), class_name or ()
    settings: dict[str, Any] = {
        "method": method, "prompt": templates, "views": views, "projection": projection,
        "device": device,
    }  # fmt: skip
    if dry_run:
        from gpcache.model.estimate import estimate_fit

        estimate = estimate_fit(
            gpcache.ImageClassifier(encoder, **settings),
            source, shots=shots, classes=classes, thumbnails=thumbnails, keep_shots=keep_shots,
        )  # fmt: skip
        _show_estimate(estimate, json)
        return
    with read_early(source, encoder, device, shots=shots, seed=seed, views=views) as take:
        with quick_imports():
            make_classifier = gpcache.ImageClassifier
        loaded, source = take()
        classifier = make_classifier(loaded, **settings).fit(
            source, shots=shots, seed=seed, classes=classes, engine=engine, keep_shots=keep_shots
        )
    classifier.save(model, thumbnails=thumbnails, replace=force)
    logger.info("saved %r", str(model))
    _show_model(classifier, model, start, json)


def _show_model(
    classifier: "gpcache.ImageClassifier", model: Path, start: float, json: bool
) -> None:
    """Print the figures of a new model, advice, and images that look wrong."""
    from gpcache.cli.figures import model_as_json, model_rows
    from gpcache.model.advice import model_advice

    suspects, seconds = classifier.suspects(), time.perf_counter() - start
    refused, notices = classifier.training.refused, classifier.training.notices
    output.print_notes(refused, notices)
    advice = model_advice(classifier.content, classifier.held_out())
    projection = classifier.projection
    facts = {
        "advice": [asdict(one) for one in advice],
        "projection": None if projection is None else str(projection),
        "suspicious": [asdict(finding) for finding in suspects],
        "refused": output.refused_as_json(refused),
        "notices": notices,
        "seconds": seconds,
    }
    sentences = [finding.sentence for finding in suspects]
    shown = output.shortened(sentences, MOST_SUSPECTS, ": run gpcache check")
    rows = model_rows(classifier, model) | {
        "suspicious": shown or "none",
        "advice": [one.sentence for one in advice],
        "seconds": f"{seconds:.1f}",
    }
    output.show(json, model_as_json(classifier, model) | facts, rows)


def _show_estimate(estimate: "FitEstimate", json: bool) -> None:
    """Print how long a fit would take, and how much memory and disk."""
    from gpcache.support.devices import format_bytes

    total = sum(estimate.seconds.values())
    steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in estimate.seconds.items())
    rows = {
        "images": f"{estimate.images:,} of {estimate.classes:,} classes",
        "seconds": f"about {total:.1f} ({steps})",
        "memory": f"about {format_bytes(estimate.memory)}",
        "disk": f"about {format_bytes(estimate.disk)}",
        "protocol": estimate.protocol,
    }
    output.show(json, estimate._asdict() | {"total_seconds": total}, rows)
