"""Images through an encoder for an audit: features, names, bursts and what was refused."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from gpcache.audit import Audit, audit
from gpcache.encoders import Encoder
from gpcache.errors import DataError
from gpcache.features.stream import encoded
from gpcache.images.records import Record, Refused, Source
from gpcache.methods import TextPrior
from gpcache.progress import progress_bar
from gpcache.prompts import Prompts, text_weights

GROUPS = ("list", "folder", "none")


@dataclass(frozen=True)
class Checked:
    """An audit, the names of its rows, and what could not be looked at."""

    audit: Audit
    names: list[str]
    classes: int
    refused: list[Refused]


def check_images(
    source: Source, encoder: Encoder, *, groups: str = "list", text: bool = True
) -> Checked:
    """Look for what is suspicious among the labelled images of `source`."""
    if groups not in GROUPS:
        raise DataError(f"groups must be one of {', '.join(GROUPS)}, got {groups!r}.")
    records, hashes, rows, refused = encode_all(source, encoder)
    labels = [record.label for record in records]
    classes = sorted({label for label in labels if label is not None})
    if not classes:
        raise DataError(f"There is no labelled image in {source.name!r}.")
    prior = None
    if text:
        prompts = Prompts.from_templates(classes)
        prior = TextPrior(classes, text_weights(encoder, prompts), encoder.logit_scale)
    found = audit(
        rows,
        labels,
        hashes=hashes,
        groups=[_group(record, groups) for record in records],
        text_prior=prior,
        names=[record.name for record in records],
    )
    return Checked(found, [record.name for record in records], len(classes), refused)


def encode_all(
    source: Source, encoder: Encoder
) -> tuple[list[Record], list[str], np.ndarray[Any, np.dtype[np.float32]], list[Refused]]:
    """Records, hashes and features (n, dim) of all images that can be read, and the others."""
    records: list[Record] = []
    hashes: list[str] = []
    rows = []
    refused: list[Refused] = []
    known: dict[str, Any] = {}
    stream = encoded(source, encoder)
    with closing(stream), progress_bar("encode", total=source.total, unit="image") as bar:
        for found in stream:
            bar.update()
            if isinstance(found, Refused):
                refused.append(found)
                continue
            if found.features is not None:
                known[found.hash] = found.features
            records.append(found.record)
            hashes.append(found.hash)
            rows.append(known[found.hash])
    refused += source.refused
    if not rows:
        raise DataError(f"There is no image that can be read in {source.name!r}.")
    return records, hashes, np.stack(rows), refused


def _group(record: Record, groups: str) -> str | None:
    if groups == "list":
        return record.group
    parent = str(PurePosixPath(record.name).parent)
    # The class folder itself is no burst.
    return parent if groups == "folder" and "/" in parent else None
