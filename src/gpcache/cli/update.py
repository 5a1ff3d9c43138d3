"""`gpcache add`, `remove` and `relabel`: update a saved model."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import gpcache
from gpcache.cli import options, output
from gpcache.errors import DataError

IMAGE = "Remove this training image, by its file's name or path; repeatable."
ClassOption = Annotated[str | None, Option("--class", help="Remove this class and its images.")]


def add(
    model: options.ModelArgument,
    images: options.ImagesArgument,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Add labelled images or classes to a model.

    Only the new images are encoded.

    Hyper-parameters and temperature are chosen again; beyond 2,000 images, once a twentieth of them
    has changed. `remove` and `relabel` do the same.

    **Example**

    - `gpcache add pets.gpc more_photos/`
    """
    from gpcache.images.sources import open_source

    source = open_source(images.resolve(), follow=follow)
    _update(model, device, json, lambda fitted: fitted.add(source))


def remove(
    model: options.ModelArgument,
    class_name: ClassOption = None,
    image: Annotated[list[str] | None, Option(help=IMAGE)] = None,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Remove images or a class from a model.

    **Examples**

    - `gpcache remove pets.gpc --class hamster`
    - `gpcache remove pets.gpc --image cat/blurred.jpg`
    """
    if class_name is None and not image:
        raise DataError("Give the class or the image to remove: --class NAME or --image NAME.")
    _update(model, device, json, lambda fitted: fitted.remove(names=image or (), label=class_name))


def relabel(
    model: options.ModelArgument,
    image: Annotated[str, Argument(help="A training image, by its file's name or path.")],
    label: Annotated[str, Argument(help="The class it belongs to.")],
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Change the label of a training image.

    **Example**

    - `gpcache relabel pets.gpc cat/dog.jpg dog`
    - `gpcache relabel pets.gpc dog.jpg dog`
    """
    _update(model, device, json, lambda fitted: fitted.relabel({image: label}))


def _update(
    model: Path, device: str, json: bool, change: "Callable[[gpcache.ImageClassifier], object]"
) -> None:
    """Load a model, change it, save it in its place and print its figures."""
    from gpcache.cli.figures import model_as_json, model_rows
    from gpcache.support.locks import locked_folder

    with locked_folder(model):
        classifier = gpcache.ImageClassifier.load(model, device=device)
        training = classifier.training
        refused, notices = len(training.refused), len(training.notices)
        change(classifier)
        output.print_notes(training.refused[refused:], training.notices[notices:])
        classifier.save(model)
    output.show(json, model_as_json(classifier, model), model_rows(classifier, model))
