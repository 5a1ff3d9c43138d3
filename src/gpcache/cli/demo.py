"""`gpcache demo`: train and test a model on images that come with the installation."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from gpcache.cli import options, output

PHOTOS = "Your own folder of class folders."
PhotosArgument = Annotated[Path | None, Argument(help=PHOTOS, show_default="handwritten digits")]
OutputOption = Annotated[Path, Option("--output", "-o", help="Where to write model and report.")]


def demo(
    photos: PhotosArgument = None,
    folder: OutputOption = Path("gpcache-demo"),
    shots: Annotated[int, Option(min=1, metavar="K", help="Learn K images a class.")] = 8,
    seed: Annotated[int, Option(min=0, help="Seed of the draw.")] = 0,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Train and test a model on images at hand, and write a report.

    It learns a few images of each class and tests on the others. Nothing is downloaded.

    **Examples**

    - `gpcache demo`
    - `gpcache demo my/photos --shots 5`
    """
    from gpcache.cli.answers import lines
    from gpcache.cli.figures import evaluation_figures, held_out_figures, model_as_json
    from gpcache.model.demo import demonstrate

    done = demonstrate(folder, photos, shots=shots, seed=seed)
    classifier = done.classifier
    output.print_notes(classifier.training.refused, classifier.training.notices)
    if json:
        held_out = model_as_json(classifier, done.model)["held_out"]
        found = {"model": str(done.model), "report": str(done.report), "held_out": held_out}
        output.print_json(found | {"test": done.test.summary()})
        return
    count = f"{len(classifier.examples)} images of {len(classifier.classes)} classes"
    echo(f"Learned {count} with the encoder lite. Figures of these images, each held out:\n")
    output.print_rows(held_out_figures(classifier))
    echo("\nFigures of images that were not learned:\n")
    output.print_rows(evaluation_figures(done.test))
    echo("\nThe two hardest of them, with the training images behind the answer:\n")
    for answer in done.answers:
        echo(lines(answer, 3))
    echo(f"\nThe report, for any browser:  {done.report}")
    echo(f"The model, for new images:    gpcache predict {done.model} YOUR_IMAGES --why")
