"""Encodes images for an audit: features, names, bursts and refused files."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.errors import DataError
from gpcache.features.extract import gather
from gpcache.images.records import Record, Refused, Source
from gpcache.methods import TextPrior
from gpcache.model.advice import Advice, TrainingRows, advise
from gpcache.model.audit import Audit, audit
from gpcache.model.audit.audit_model import AuditModel
from gpcache.model.audit.fingerprints import fingerprint
from gpcache.model.evaluation import Evaluation
from gpcache.model.training_images import Example

GROUPS = ("list", "folder", "none")


class Checked(NamedTuple):
    """An audit, the names of its rows, and the images that could not be checked."""

    audit: Audit
    names: list[str]
    classes: int
    refused: list[Refused]
    notices: list[str]
    advice: list[Advice]


def check_images(
    source: Source, encoder: Encoder, *, groups: str = "list", text: bool = True
) -> Checked:
    """Look for suspicious images among the labelled images of `source`."""
    if groups not in GROUPS:
        raise DataError(f"groups must be one of {', '.join(GROUPS)}, got {groups!r}.")
    gathered = gather(source, encoder, picture=fingerprint)
    records = gathered.records
    examples = [
        None
        if record.label is None
        else Example(record.name, record.label, image_hash, _group(record, groups))
        for record, image_hash in zip(records, gathered.hashes, strict=True)
    ]
    classes = sorted({example.label for example in examples if example is not None})
    if not classes:
        raise DataError(
            f"There is no labelled image in {source.name!r}: give a folder for each class, or a "
            "list with the column label."
        )
    prior = None
    if text:
        prompts = Prompts.from_templates(classes)
        prior = TextPrior(classes, text_weights(encoder, prompts), encoder.logit_scale)
    audited = audit(gathered.features, examples, text_prior=prior, pictures=gathered.pictures)
    model = audited.model
    rows = TrainingRows(model.features, model.labels, model.zero_shot)
    advice = advise(_held_out(model, source.name), rows, [str(name) for name in model.classes])
    names = [record.name for record in records]
    return Checked(audited, names, len(classes), gathered.refused, gathered.notices, advice)


def _held_out(model: AuditModel, source: str) -> Evaluation | None:
    """Predictions of the audit's model for held-out images; None if none could be held out."""
    rows = model.counted.nonzero().flatten()
    if not len(rows) or len(model.classes) < 2:
        return None
    return Evaluation(
        data=source,
        protocol="leave-one-out in closed form, copies and bursts left out together",
        class_names=[str(name) for name in model.classes],
        names=[str(row) for row in rows.tolist()],
        labels=model.labels[rows].numpy(),
        probabilities=model.logits[rows].softmax(1).numpy(),
        uncertainty=model.variance[rows].numpy(),
        rejected=np.zeros(len(rows), dtype=bool),
    )


def _group(record: Record, groups: str) -> str | None:
    if groups == "list":
        return record.group
    parent = str(PurePosixPath(record.name).parent)
    # The class folder itself is not a burst.
    return parent if groups == "folder" and "/" in parent else None
