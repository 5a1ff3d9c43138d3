"""`gpcache add`, `remove` and `relabel`: exact updates of a model in its place."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpcache.cli.options import (
    DeviceOption,
    FollowOption,
    ImagesArgument,
    JsonOption,
    ModelArgument,
    VerboseOption,
    print_json,
    print_rows,
)

if TYPE_CHECKING:
    from gpcache.model.classifier import ImageClassifier


def add(
    model: ModelArgument,
    images: ImagesArgument,
    follow: FollowOption = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Learn further labelled images or classes without a refit.

    **Example**

    - `gpcache add pets.gpc more_photos/`
    """
    from gpcache.cli.tables import print_notices, print_refused
    from gpcache.images.sources import open_source
    from gpcache.model.classifier import ImageClassifier

    classifier = ImageClassifier.load(model, device=device)
    refused, notices = len(classifier.training.refused), len(classifier.training.notices)
    classifier.add(open_source(images.resolve(), follow=follow))
    print_refused(classifier.training.refused[refused:])
    print_notices(classifier.training.notices[notices:])
    _finish(classifier, model, json)


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
    _verbose: VerboseOption = False,
) -> None:
    """Forget images or a class without a refit.

    Their shots are gone as if never seen. What all shots taught together, the space of the features
    and the chosen numbers, stays until the next `gpcache fit`.

    **Examples**

    - `gpcache remove pets.gpc --class hamster`

    - `gpcache remove pets.gpc --image cat/blurred.jpg`
    """
    from gpcache.errors import DataError
    from gpcache.model.classifier import ImageClassifier

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
    _verbose: VerboseOption = False,
) -> None:
    """Give a training image another label.

    **Example**

    - `gpcache relabel pets.gpc cat/dog.jpg dog`
    """
    from gpcache.cli.tables import print_notices
    from gpcache.model.classifier import ImageClassifier

    classifier = ImageClassifier.load(model, device=device)
    notices = len(classifier.training.notices)
    classifier.relabel({image: label})
    print_notices(classifier.training.notices[notices:])
    _finish(classifier, model, json)


def _finish(classifier: "ImageClassifier", model: Path, json: bool) -> None:
    """Save in place and say what the model is now."""
    from gpcache.cli.tables import counts, held_out_figures

    classifier.save(model)
    if json:
        held_out = classifier.held_out()
        print_json(
            {
                "model": str(model),
                "classes": classifier.classes,
                "images": len(classifier.examples),
                "held_out": None if held_out is None else held_out.summary(),
            }
        )
        return
    print_rows({"model": f"{model}: {counts(classifier)}", **held_out_figures(classifier)})
