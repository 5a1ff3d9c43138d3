"""`gpcache suggest`: which unlabelled images to label next."""

from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import (
    DeviceOption,
    EncoderOption,
    JsonOption,
    VerboseOption,
    print_json,
    printable,
)


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
    _verbose: VerboseOption = False,
) -> None:
    """Say which unlabelled images to label next, the best first.

    They are those that tell most about all the others. Without a model, which images to label first
    of all; `--encoder` counts only then.

    **Examples**

    - `gpcache suggest pool/ -n 20`

    - `gpcache suggest pets.gpc pool/ -n 10`
    """
    from gpcache.cli.tables import print_refused
    from gpcache.encoders import load_encoder
    from gpcache.errors import DataError
    from gpcache.features.extract import gather
    from gpcache.images.sources import open_source
    from gpcache.methods.cache.estimator import CacheClassifier
    from gpcache.model.classifier import ImageClassifier
    from gpcache.model.suggest import suggest as choose

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
    pool = gather(open_source(places[-1].resolve()), network)
    if not pool.records:
        raise DataError(f"There is no image that can be read in {str(places[-1])!r}.")
    found = choose(pool.features, min(count, len(pool.records)), model=model)
    print_refused(pool.refused)
    if json:
        rows = zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        print_json([{"image": pool.records[row].name, "score": score} for row, score in rows])
        return
    for row in found.rows:
        typer.echo(printable(pool.records[row].name))
