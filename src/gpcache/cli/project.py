"""`gpcache project`: features of unlabelled images in, a similarity projection out."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import DeviceOption, JsonOption, VerboseOption, print_json, print_rows


class Kind(StrEnum):
    """How a projection is found."""

    CONTRASTIVE = "contrastive"
    WHITENING = "whitening"


class Reduction(StrEnum):
    """What becomes of the losses of an anchor's images."""

    SUM = "sum"
    MEAN = "mean"


def project(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="A feature store of unlabelled images.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PROJ", help="The folder, as proj.gpp.")
    ],
    views: Annotated[
        Path,
        typer.Option(metavar="STORE", help="A store of the same images' views, kept apart."),
    ],
    kind: Annotated[Kind, typer.Option(help="How it is found.")] = Kind.CONTRASTIVE,
    split: Annotated[str | None, typer.Option(help="Only the images of this split.")] = None,
    transductive: Annotated[
        bool, typer.Option("--transductive", help="Note that these images are to be judged.")
    ] = False,
    neighbours: Annotated[
        int, typer.Option("--neighbours", "-r", min=2, help="Images contrasted with each other.")
    ] = 128,
    hard_mining: Annotated[
        bool, typer.Option(help="Whether they are an anchor's nearest, or random.")
    ] = True,
    bottleneck: Annotated[
        int, typer.Option(min=1, help="Go through so many times fewer columns.")
    ] = 1,
    residual: Annotated[bool, typer.Option(help="Whether the feature itself is added.")] = True,
    temperature: Annotated[float, typer.Option(help="What cosines are divided by.")] = 0.07,
    reduction: Annotated[
        Reduction, typer.Option(help="Of the losses of an anchor's images.")
    ] = Reduction.SUM,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all images.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Anchors a step.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Falls to zero along a cosine.")] = 0.01,
    weight_decay: Annotated[float, typer.Option(help="The pull towards no change.")] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Seed of order, views and draws.")] = 0,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Learn from unlabelled images when two images are alike.

    A run that is stopped goes on after its last whole epoch, from a file beside the output. The
    whitening has a closed form: the options from `--neighbours` to `--seed` do not count for it.

    **Examples**

    - `gpcache extract pool/ -o pool.store`

    - `gpcache extract pool/ -o views.store --views 2 --keep-views`

    - `gpcache project pool.store --views views.store -o proj.gpp`

    - `gpcache fit photos/ -o pets.gpc --projection proj.gpp`
    """
    from dataclasses import asdict

    import torch

    from gpcache.features.store import FeatureStore
    from gpcache.similarity import (
        ProjectionFacts,
        ProjectionOptions,
        learn_projection,
        whitening_projection,
    )
    from gpcache.similarity.checkpoint import Checkpoint
    from gpcache.similarity.folder import check_projection_place, save_projection
    from gpcache.similarity.pairs import paired_features
    from gpcache.similarity.projection import change

    options = ProjectionOptions(
        bottleneck=bottleneck,
        residual=residual,
        hard_mining=hard_mining,
        neighbours=neighbours,
        temperature=temperature,
        reduction=reduction.value,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        seed=seed,
    )
    check_projection_place(output)
    start = time.perf_counter()
    opened = FeatureStore.open(store)
    found = paired_features(opened, FeatureStore.open(views), split=split)
    history: list[float] = []
    checkpoint = Checkpoint(output.with_name(f"{output.name}.checkpoint"))
    if kind is Kind.CONTRASTIVE:
        projection, history = learn_projection(
            *found, options=options, checkpoint=checkpoint, device=device
        )
    else:
        projection = whitening_projection(*found, device=device)
    facts = ProjectionFacts(
        source=kind.value,
        encoder=opened.manifest.encoder,
        fingerprint=opened.manifest.fingerprint,
        images=len(found.original),
        views=found.views.shape[1],
        change=change(projection, torch.from_numpy(found.original)),
        transductive=transductive,
        options=asdict(options) if kind is Kind.CONTRASTIVE else {},
        history=history,
    )
    save_projection(output, projection, facts)
    checkpoint.remove()
    seconds = time.perf_counter() - start
    if json:
        print_json({"projection": str(output), "seconds": seconds, **asdict(facts)})
        return
    losses = f"{history[0]:.4f} → {history[-1]:.4f} an image" if history else "none, closed form"
    print_rows(
        {
            "projection": f"{output}: {kind.value}, encoder {facts.encoder}"
            + (", transductive" if transductive else ""),
            "learned from": f"{facts.images:,} images, {facts.views} views each",
            "loss": losses,
            "change": f"{facts.change:.3f} (the mean sine between features before and after)",
            "seconds": f"{seconds:.1f}",
        }
    )
