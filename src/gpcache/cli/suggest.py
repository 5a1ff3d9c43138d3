"""`gpcache suggest`: which unlabelled images to label next."""

from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import DeviceOption, EncoderOption, JsonOption, print_json, printable


def suggest(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="[MODEL] POOL",
            help="A folder of unlabelled images, after a model folder if there is one yet.",
        ),
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many images.")] = 10,
    encoder: EncoderOption = "lite",
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Say which images of a pool tell most about all the others, the best first.

    Without a model, which images to label first of all; `--encoder` counts only then.

    **Examples**

    - `gpcache suggest pool/ -n 20`

    - `gpcache suggest pets.gpc pool/ -n 10`
    """
    from gpcache.checking import encode_all
    from gpcache.classifier import ImageClassifier
    from gpcache.cli.tables import print_refused
    from gpcache.encoders import load_encoder
    from gpcache.errors import DataError
    from gpcache.images.sources import open_source
    from gpcache.methods.cache import CacheClassifier
    from gpcache.suggest import suggest as choose

    if len(places) > 2:
        raise DataError("Give a pool of images, or a model and a pool.")
    model = None
    if len(places) == 2:
        classifier = ImageClassifier.load(places[0], device=device)
        if not isinstance(classifier.model, CacheClassifier):
            raise DataError(
                f"The method of {str(places[0])!r} keeps no cache to suggest from: "
                "fit it with --method gpcache."
            )
        model, network = classifier.model, classifier.encoder
    else:
        network = load_encoder(encoder, device=device)
    records, _, features, refused = encode_all(open_source(places[-1].resolve()), network)
    found = choose(features, min(count, len(records)), model=model)
    print_refused(refused)
    if json:
        rows = zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        print_json([{"image": records[row].name, "score": score} for row, score in rows])
        return
    for row in found.rows:
        typer.echo(printable(records[row].name))
