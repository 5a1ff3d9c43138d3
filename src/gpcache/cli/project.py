"""`gpcache project`: learn a similarity projection from features of unlabelled images."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from gpcache.cli import options, output

StoreArgument = Annotated[Path, Argument(metavar="STORE", help="A store of unlabelled images.")]
OutputOption = Annotated[Path, Option("--output", "-o", metavar="PROJ", help="Folder to write.")]
ViewsOption = Annotated[Path, Option(metavar="STORE", help="Views of the same images, kept apart.")]
KindOption = Annotated[
    Literal["contrastive", "whitening"], Option(help="Train it, or compute a whitening.")
]
TransductiveOption = Annotated[bool, Option("--transductive", help="These are the test images.")]
NeighboursOption = Annotated[
    int, Option("--neighbours", "-r", min=2, help="Number of images to contrast.")
]
MiningOption = Annotated[bool, Option(help="Contrast nearest neighbours instead of random images.")]
BottleneckOption = Annotated[int, Option(min=1, help="Divide the inner dimension by this.")]
ReductionOption = Annotated[
    Literal["sum", "mean"], Option(help="Sum or mean over the images of an anchor.")
]


def project(
    store: StoreArgument,
    folder: OutputOption,
    views: ViewsOption,
    kind: KindOption = "contrastive",
    split: Annotated[str | None, Option(help="Use only the images of this split.")] = None,
    transductive: TransductiveOption = False,
    neighbours: NeighboursOption = 128,
    hard_mining: MiningOption = True,
    bottleneck: BottleneckOption = 1,
    residual: Annotated[bool, Option(help="Add the feature itself.")] = True,
    temperature: Annotated[float, Option(help="Temperature that divides the cosines.")] = 0.07,
    reduction: ReductionOption = "sum",
    epochs: Annotated[int, Option(min=1, help="Passes over all images.")] = 10,
    batch_size: Annotated[int, Option(min=1, help="Anchors in a step.")] = 256,
    learning_rate: Annotated[float, Option(help="Initial learning rate of SGD.")] = 0.01,
    weight_decay: Annotated[float, Option(help="Weight decay of SGD.")] = 0.05,
    seed: Annotated[int, Option(min=0, help="Seed of order, views and draws.")] = 0,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Learn a similarity projection from unlabelled images.

    A run that was stopped continues after its last complete epoch, from a file next to the output.
    A whitening has a closed form and ignores the options from `--neighbours` to `--seed`.

    **Examples**

    - `gpcache extract pool/ -o pool.store`
    - `gpcache extract pool/ -o views.store --views 2 --keep-views`
    - `gpcache project pool.store --views views.store -o proj.gpp`
    - `gpcache fit photos/ -o pets.gpc --projection proj.gpp`
    """
    from gpcache.similarity import ProjectionOptions
    from gpcache.similarity.from_stores import project_stores

    start = time.perf_counter()
    chosen = ProjectionOptions(
        bottleneck=bottleneck, residual=residual, hard_mining=hard_mining, neighbours=neighbours,
        temperature=temperature, reduction=reduction, epochs=epochs, batch_size=batch_size,
        learning_rate=learning_rate, weight_decay=weight_decay, seed=seed,
    )  # fmt: skip
    facts = project_stores(
        store, views, folder, kind=kind, options=chosen, split=split, transductive=transductive,
        device=device,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    loss, note = "none, closed form", ", transductive" if transductive else ""
    if facts.history:
        loss = f"{facts.history[0]:.4f} → {facts.history[-1]:.4f} an image"
    rows = {
        "projection": f"{folder}: {kind}, encoder {facts.encoder}{note}",
        "learned from": f"{facts.images:,} images, {facts.views} views each",
        "loss": loss,
        "change": f"{facts.change:.3f} (the mean sine between features before and after)",
        "seconds": f"{seconds:.1f}",
    }
    output.show(json, {"projection": str(folder), "seconds": seconds, **asdict(facts)}, rows)
