"""Learns a similarity projection from two feature stores and saves it in a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch

from gpcache.features.store import FeatureStore
from gpcache.similarity.checkpoint import Checkpoint
from gpcache.similarity.folder import check_projection_place, save_projection
from gpcache.similarity.options import ProjectionOptions
from gpcache.similarity.pairs import paired_features
from gpcache.similarity.projection import ProjectionFacts, change
from gpcache.similarity.train import learn_projection
from gpcache.similarity.whitening import whitening_projection


def project_stores(
    store: Path,
    views: Path,
    folder: Path,
    *,
    kind: Literal["contrastive", "whitening"],
    options: ProjectionOptions,
    split: str | None = None,
    transductive: bool = False,
    device: str = "auto",
) -> ProjectionFacts:
    """Learn a projection from the images of `store` and their `views`, and save it in `folder`.

    A contrastive run that is stopped continues after its last complete epoch: until the projection
    is saved, a checkpoint is kept next to `folder`. A whitening does not use the `options`.
    """
    check_projection_place(folder)
    opened = FeatureStore.open(store)
    pairs = paired_features(opened, FeatureStore.open(views), split=split)
    checkpoint = Checkpoint(folder.with_name(f"{folder.name}.checkpoint"))
    history: list[float] = []
    if kind == "contrastive":
        projection, history = learn_projection(
            *pairs, options=options, checkpoint=checkpoint, device=device
        )
    else:
        projection = whitening_projection(*pairs, device=device)
    facts = ProjectionFacts(
        source=kind,
        encoder=opened.manifest.encoder,
        fingerprint=opened.manifest.fingerprint,
        images=len(pairs.original),
        views=pairs.views.shape[1],
        change=change(projection, torch.from_numpy(pairs.original)),
        transductive=transductive,
        options=asdict(options) if kind == "contrastive" else {},
        history=history,
    )
    save_projection(folder, projection, facts)
    checkpoint.remove()
    return facts
