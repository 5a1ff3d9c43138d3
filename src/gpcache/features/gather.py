"""All images of a source as features in memory, with what was refused: for learning and checks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.features.stream import encoded
from gpcache.images.augment import Views
from gpcache.images.records import Record, Refused, Source
from gpcache.support.progress import progress_bar


@dataclass
class Gathered:
    """Features (n, dim) of `records` and the hashes of their content; the others, and notes."""

    features: NDArray[np.float32]
    records: list[Record] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def gather(
    source: Source, encoder: Encoder, *, views: Views | None = None, description: str = "encode"
) -> Gathered:
    """Encode every image that can be read; a copy shares the features of what it copies."""
    found = Gathered(np.zeros((0, encoder.dim), dtype=np.float32))
    rows: list[NDArray[np.float32]] = []
    known: dict[str, NDArray[np.float32]] = {}
    stream = encoded(source, encoder, views=views)
    with closing(stream), progress_bar(description, total=source.total, unit="image") as bar:
        for one in stream:
            bar.update()
            if isinstance(one, Refused):
                found.refused.append(one)
                continue
            if one.features is not None:
                known[one.hash] = one.features
            found.records.append(one.record)
            found.hashes.append(one.hash)
            found.notices += [f"{one.record.name}: {note}" for note in one.notes]
            rows.append(known[one.hash])
    # A stream's own refusals are complete only now.
    found.refused += source.refused
    found.notices += source.notices
    if rows:
        found.features = np.stack(rows)
    return found
