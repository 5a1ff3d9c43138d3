"""`gpcache check`, `suggest`, `add`, `remove` and `relabel`: better with every photo."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

import gpcache
from gpcache.cli import options, output
from gpcache.errors import DataError

HEADINGS = {
    "leak": "Copies in two classes or groups",
    "label": "Labels that are almost certainly wrong",
    "duplicate": "Copies",
    "near-duplicate": "Near copies",
    "look": "Labels worth a look: the image is hard, or its label is wrong",
    "harmful": "Images that make the others worse",
    "outlier": "Unlike all other images",
}
GROUPS = (
    "Which photos are one burst: those with the same group in a list ('list'), those in the same "
    "innermost folder ('folder'), or none ('none')."
)
TOP = "Show K findings of each kind."
PLACES = "A folder of unlabelled images, with a model folder before it if you have one."
PlacesArgument = Annotated[list[Path], Argument(metavar="[MODEL] POOL", help=PLACES)]
CountOption = Annotated[int, Option("--count", "-n", min=1, metavar="K", help="Suggest K images.")]
IMAGE = "Remove this training image, by its file's name or path; repeatable."
ClassOption = Annotated[
    str | None, Option("--class", metavar="NAME", help="Remove this class and its images.")
]


def check(
    images: options.ImagesArgument,
    encoder: options.EncoderOption = "lite",
    groups: Annotated[str, Option(metavar="GROUPS", help=GROUPS)] = "list",
    top: Annotated[int, Option(min=1, metavar="K", help=TOP)] = 10,
    text: Annotated[bool, Option(help="Use the class names.")] = True,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Find wrong labels, copies, outliers and harmful images.

    Every image is predicted by a model that has not seen it. The exit code is 1 if a label is
    almost certainly wrong or an image is there twice, and 0 if images are only worth a look.

    **Examples**

    - `gpcache check photos/`
    - `gpcache check list.csv --top 30 --json`
    """
    from gpcache.images.records import plural
    from gpcache.images.sources import open_source
    from gpcache.model.audit import FAULTS
    from gpcache.model.audit.images import check_images

    source = open_source(images.resolve(), follow=follow)
    network = gpcache.load_encoder(encoder, device=device)
    checked = check_images(source, network, groups=groups, text=text)
    notices, findings = [*checked.notices, *checked.audit.notices], checked.audit.findings
    output.print_notes(checked.refused, notices)
    names = dict(enumerate(checked.names)) | {None: None}
    content = {
        "images": len(checked.names),
        "classes": checked.classes,
        "findings": [
            asdict(one) | {"image": names[one.row], "other_image": names[one.other]}
            for one in findings
        ],
        "refused": output.refused_as_json(checked.refused),
        "notices": notices,
        "advice": [asdict(one) for one in checked.advice],
    }
    faults = sum(finding.kind in FAULTS for finding in findings)
    counts = [plural(faults, "fault"), f"{len(findings) - faults:,} worth a look"]
    summary = ", ".join(counts) if findings else "nothing found"
    size = f"{plural(len(checked.names), 'image')} of {plural(checked.classes, 'class')}"
    lines = [f"{size}: {summary}."]
    for kind, count in Counter(finding.kind for finding in findings).items():
        sentences = [finding.sentence for finding in checked.audit.of(kind)]
        lines += ["", f"{HEADINGS[kind]} ({count:,})"]
        lines += [f"  {one}" for one in output.shortened(sentences, top, " (--top).")]
    if checked.advice:
        lines += ["", "Advice", *(f"  {advice.sentence}" for advice in checked.advice)]
    output.show(json, content, lines)
    raise Exit(1 if faults else 0)


def suggest(
    places: PlacesArgument,
    count: CountOption = 10,
    encoder: options.EncoderOption = "lite",
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Suggest which unlabelled images to label next, the best first.

    It suggests the images that help the model most. Without a model it suggests the images to
    label first, and uses `--encoder`.

    **Examples**

    - `gpcache suggest pool/ -n 20`
    - `gpcache suggest pets.gpc pool/ -n 10`
    """
    from gpcache.images.sources import open_source
    from gpcache.model.suggest import suggest_images

    *models, pool = places
    if len(models) > 1:
        raise DataError("Give a pool of images, or a model and a pool.")
    if models:
        classifier = gpcache.ImageClassifier.load(models[0], device=device)
        network, fitted = classifier.encoder_, classifier.model
    else:
        network, fitted = gpcache.load_encoder(encoder, device=device), None
    source = open_source(pool.resolve(), labelled=False, follow=follow)
    suggested = suggest_images(source, count, network, fitted)
    output.print_notes(suggested.refused)
    images = zip(suggested.names, suggested.scores, strict=True)
    scored = [{"image": name, "score": score} for name, score in images]
    output.show(json, scored, suggested.names)


def add(
    model: options.ModelArgument,
    images: options.ImagesOrStoreArgument,
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
    from gpcache.model.training_images import open_training

    source = open_training(images, follow=follow)
    _update(model, device, json, lambda fitted: fitted.add(source))


def remove(
    model: options.ModelArgument,
    class_name: ClassOption = None,
    image: Annotated[list[str] | None, Option(metavar="NAME", help=IMAGE)] = None,
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
    image: Annotated[
        str, Argument(metavar="IMAGE", help="A training image, by its file's name or path.")
    ],
    label: Annotated[str, Argument(metavar="CLASS", help="The class it belongs to.")],
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
