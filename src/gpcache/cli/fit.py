"""`gpcache fit`: labelled images in, a model folder out."""

import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import (
    DeviceOption,
    EncoderOption,
    FollowOption,
    ImagesArgument,
    JsonOption,
    VerboseOption,
    print_json,
    print_rows,
)
from gpcache.errors import DataError

logger = logging.getLogger(__name__)

SHOWN = 5


def fit(
    images: ImagesArgument,
    model: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="The model folder to write.")
    ],
    encoder: EncoderOption = "lite",
    method: Annotated[
        str,
        typer.Option(
            help="gpcache, gpcache-paper, gpcache-f, tip-adapter, tip-adapter-f, tip-x, ape, "
            "ape-t, gda, proker, task-res, clip-adapter, clap, lp++, linear-probe or zero-shot."
        ),
    ] = "gpcache",
    shots: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Draw K images of each class.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="A sentence with {} for the class name; repeat for several.",
            show_default="a photo of a {}.",
        ),
    ] = None,
    text: Annotated[bool, typer.Option(help="Whether class names count.")] = True,
    class_name: Annotated[
        list[str] | None,
        typer.Option("--class", help="A further class, known by its name alone; repeatable."),
    ] = None,
    views: Annotated[
        int, typer.Option(min=0, help="Random views whose mean is an image's key.")
    ] = 0,
    projection: Annotated[
        Path | None,
        typer.Option(metavar="PROJ", help="A similarity projection, made by gpcache project."),
    ] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Keep small pictures in the model.")
    ] = False,
    follow: FollowOption = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Learn from a few labelled images per class, in seconds.

    No validation set is needed: what is printed comes from held-out training images. A class folder
    without an image, or `--class NAME`, is known by its name alone.

    **Examples**

    - `gpcache fit photos/ -o pets.gpc`

    - `gpcache fit photos/ -o pets.gpc --prompt "a photo of a {}, a type of pet."`

    - `gpcache fit photos/ -o pets.gpc --shots 5 --encoder clip-vit-b-16`
    """
    from gpcache.cli.tables import (
        counts,
        held_out_figures,
        listed,
        print_notices,
        print_refused,
    )
    from gpcache.encoders.prompts import DEFAULT_TEMPLATES
    from gpcache.images.sources import open_source
    from gpcache.model.classifier import ImageClassifier
    from gpcache.model.files import check_model_place
    from gpcache.similarity.projection import origin

    if not text and (class_name or prompt):
        raise DataError("--no-text lets no class name count: leave out --class and --prompt.")
    check_model_place(model)
    start = time.perf_counter()
    source = open_source(images.resolve(), follow=follow)
    logger.info("%r: %s images, %d classes", source.name, source.total, len(source.classes))
    classifier = ImageClassifier(
        encoder,
        method=method,
        prompt=(prompt or DEFAULT_TEMPLATES) if text else None,
        views=views,
        projection=projection,
        device=device,
    )
    classifier.fit(source, shots=shots, seed=seed, classes=class_name or ())
    logger.info("fitted %s on %s", method, classifier.encoder_name)
    classifier.save(model, thumbnails=thumbnails)
    logger.info("saved %r", str(model))
    print_refused(classifier.training.refused)
    print_notices(classifier.training.notices)
    held_out, suspects = classifier.held_out(), classifier.suspects()
    seconds = time.perf_counter() - start
    if json:
        print_json(
            {
                "model": str(model),
                "classes": classifier.classes,
                "images": len(classifier.examples),
                "projection": None if projection is None else str(projection),
                "held_out": None if held_out is None else held_out.summary(),
                "suspicious": [asdict(finding) for finding in suspects],
                "refused": listed(classifier.training.refused),
                "notices": classifier.training.notices,
                "seconds": seconds,
            }
        )
        return
    sentences = [finding.sentence for finding in suspects]
    further = [f"… and {len(sentences) - SHOWN} more: run gpcache check"]
    used = classifier.projection
    projected = {} if used is None else {"projection": origin(used.facts)}
    rows: dict[str, str | list[str]] = {
        "model": f"{model}: {counts(classifier)}, encoder {classifier.encoder_name}, "
        f"method {method}",
        **projected,
        **held_out_figures(classifier),
        "suspicious": sentences[:SHOWN] + further[: len(sentences) > SHOWN] or "none",
        "seconds": f"{seconds:.1f}",
    }
    print_rows(rows)
