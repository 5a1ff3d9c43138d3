"""`gpcache add`, `remove` and `relabel`: exact updates of a model in its place."""

from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import (
    DeviceOption,
    FollowOption,
    ImagesArgument,
    JsonOption,
    ModelArgument,
    print_json,
    print_rows,
)


def add(
    model: ModelArgument,
    images: ImagesArgument,
    follow: FollowOption = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Learn further labelled images without a refit; new classes are welcome.

    **Example**

    - `gpcache add pets.gpc more_photos/`
    """
    from gpcache.classifier import ImageClassifier
    from gpcache.images.sources import open_source

    classifier = ImageClassifier.load(model, device=device)
    before = len(classifier.training.refused)
    classifier.add(open_source(images.resolve(), follow=follow))
    _finish(classifier, model, json, before)


def remove(
    model: ModelArgument,
    class_name: Annotated[
        str | None, typer.Option("--class", help="Forget this class and its images.")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(help="Forget this training image, by its name in the model; repeatable."),
    ] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Forget images or a class, as if the model had never seen them.

    **Examples**

    - `gpcache remove pets.gpc --class hamster`

    - `gpcache remove pets.gpc --image cat/blurred.jpg`
    """
    from gpcache.classifier import ImageClassifier
    from gpcache.errors import DataError

    if class_name is None and not image:
        raise DataError("Say what to forget: --class NAME or --image NAME.")
    classifier = ImageClassifier.load(model, device=device)
    classifier.remove(names=image or (), label=class_name)
    _finish(classifier, model, json)


def relabel(
    model: ModelArgument,
    image: Annotated[str, typer.Argument(help="A training image, by its name in the model.")],
    label: Annotated[str, typer.Argument(help="The class it belongs to.")],
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Give a training image another label.

    **Example**

    - `gpcache relabel pets.gpc cat/dog.jpg dog`
    """
    from gpcache.classifier import ImageClassifier

    classifier = ImageClassifier.load(model, device=device)
    classifier.relabel({image: label})
    _finish(classifier, model, json)


def _finish(classifier: object, model: Path, json: bool, refused_before: int = 0) -> None:
    """Save in place and say what the model is now."""
    from gpcache.classifier import ImageClassifier
    from gpcache.cli.tables import figures, print_refused

    assert isinstance(classifier, ImageClassifier)
    classifier.save(model)
    print_refused(classifier.training.refused[refused_before:])
    held_out = classifier.held_out()
    if json:
        print_json(
            {
                "model": str(model),
                "classes": classifier.classes,
                "images": len(classifier.examples),
                "held_out": None if held_out is None else held_out.summary(),
            }
        )
        return
    count = f"{len(classifier.classes)} classes, {len(classifier.examples)} images"
    print_rows({"model": f"{model}: {count}"} | (figures(held_out) if held_out else {}))
