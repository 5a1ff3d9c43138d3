"""`gpcache demo`: the main job from end to end, on image files that come with the installation."""

from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import JsonOption, VerboseOption, print_json, print_rows


def demo(
    photos: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of class folders, your own.", show_default="handwritten digits"
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where model and report go.")
    ] = Path("gpcache-demo"),
    shots: Annotated[int, typer.Option(min=1, metavar="K", help="Images learned a class.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Learn and test on images at hand, and write a report.

    A few images of each class are learned and the others tested; nothing is downloaded.

    **Examples**

    - `gpcache demo`

    - `gpcache demo my/photos --shots 5`
    """
    from gpcache.cli.answers import lines
    from gpcache.cli.tables import figures, print_notices, print_refused
    from gpcache.model.demo import demonstrate

    done = demonstrate(output, photos, shots=shots, seed=seed)
    classifier, held_out = done.classifier, done.classifier.held_out()
    print_refused(classifier.training.refused)
    print_notices(classifier.training.notices)
    if json:
        print_json(
            {
                "model": str(done.model),
                "report": str(done.report),
                "held_out": None if held_out is None else held_out.summary(),
                "test": done.test.summary(),
            }
        )
        return
    count = f"{len(classifier.examples)} images of {len(classifier.classes)} classes"
    typer.echo(f"Learned {count} through the encoder lite. What they say of themselves:\n")
    if held_out is not None:
        print_rows(figures(held_out))
    typer.echo("\nOn images that were not learned:\n")
    print_rows(figures(done.test))
    typer.echo("\nThe two hardest of them, with the training images that drove the answer:\n")
    for answer in done.answers:
        typer.echo(lines(answer, 3), nl=False)
    typer.echo(f"\nThe report, for any browser:  {done.report}")
    typer.echo(f"The model, for new images:    gpcache predict {done.model} YOUR_IMAGES --why")
