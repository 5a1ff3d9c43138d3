"""`gpcache suggest`: choose the unlabelled images to label next."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from gpcache.cli import options, output
from gpcache.errors import DataError

PLACES = "A folder of unlabelled images, with a model folder before it if you have one."
PlacesArgument = Annotated[list[Path], Argument(metavar="[MODEL] POOL", help=PLACES)]
CountOption = Annotated[int, Option("--count", "-n", min=1, metavar="K", help="Suggest K images.")]


def suggest(
    places: PlacesArgument,
    count: CountOption = 10,
    encoder: options.EncoderOption = "lite",
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
    from gpcache.model.suggest import suggest_images

    if len(places) > 2:
        raise DataError("Give a pool of images, or a model and a pool.")
    model = places[0] if len(places) == 2 else None
    suggested = suggest_images(places[-1], count, model=model, encoder=encoder, device=device)
    output.print_notes(suggested.refused)
    if json:
        images = zip(suggested.names, suggested.scores, strict=True)
        output.print_json([{"image": name, "score": score} for name, score in images])
    for name in suggested.names if not json else ():
        echo(output.printable(name))
