"""Rows that show the same image: duplicates, near-duplicates, leaks to other classes or groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gpcache.features.neighbors import nearest
from gpcache.model.audit.findings import Finding, Kind, LabelledRows
from gpcache.model.audit.fingerprints import picture_distances
from gpcache.model.training_images import Example
from gpcache.support.checks import shown

# Two rows are nearly the same image within this share of the distance (1 − cosine) of any two rows
# of the set, so that the encoder's own scale does not matter. In seven sets of real features no two
# images of different classes are closer than 0.08 of that median (docs/results/photos.md);
# copies that were saved again, mirrored or cropped a little are mostly within.
NEAR = 0.05
# And within this share of the distance to the nearest row: images of a narrow class are not copies.
NEARER = 0.2
# Further apart than these, up to this share of the median, two rows are copies if their pictures
# are nearly alike. Copies that were resized, cropped by 4 %, mirrored or saved again are within
# 0.28 of the median, and 99 % of their pictures within 0.011. The pictures of different photos are
# at least 0.068 apart, of one burst 0.021 (docs/results/photos.md).
LOOSE = 0.3
ALIKE = 0.015
NEIGHBOURS = 8
# The typical distance is estimated from the pairs of this many rows.
SAMPLE = 1000
# Closer rows are equal, up to the rounding of float32.
ROUNDING = 1e-6


class Copy(NamedTuple):
    """A row that shows the same image as an earlier row; `exact` if the contents are the same."""

    row: int
    other: int
    cosine: float
    exact: bool


def find_copies(rows: LabelledRows) -> list[Copy]:
    """Pairs of rows with the same content hash, or with nearly equal features."""
    # Hashes first, so that each content is compared once.
    content = [example.hash for example in rows.examples]
    copies_of: dict[str, list[int]] = {}
    pairs: dict[tuple[int, int], float] = {}
    for row, key in enumerate(content):
        # The first and the last of the earlier copies link them all.
        known = copies_of.setdefault(key, [])
        pairs.update({(row, other): 1.0 for other in known[:1] + known[-1:]})
        known.append(row)
    for one, other, cosine in _near_pairs(rows, rows.first_of_content()):
        pairs[max(one, other), min(one, other)] = min(cosine, 1.0)
    return [
        Copy(row, other, cosine, content[row] == content[other])
        for (row, other), cosine in pairs.items()
    ]


def _near_pairs(rows: LabelledRows, candidates: list[int]) -> Iterator[tuple[int, int, float]]:
    """Pairs among the `candidates` that are nearly the same image, and their cosines."""
    features = rows.features[candidates]
    neighbours, cosines = nearest(features, k=NEIGHBOURS, device="cpu", exclude_self=True)
    median, near = _scale(features, 1 - cosines[:, :1])
    places = np.argwhere(cosines >= 1 - max(near, LOOSE * median, ROUNDING))
    cosine = cosines[places[:, 0], places[:, 1]]
    pairs = np.stack([places[:, 0], neighbours[places[:, 0], places[:, 1]]], 1)
    close = cosine >= 1 - max(near, ROUNDING)
    if rows.pictures is not None:
        pictures = torch.from_numpy(np.stack([rows.pictures[row] for row in candidates]))
        unsure = np.flatnonzero(~close)
        distance = picture_distances(pictures, torch.from_numpy(pairs[unsure]))
        close[unsure[distance.numpy() < ALIKE]] = True
    for (one, other), value in zip(pairs[close].tolist(), cosine[close].tolist(), strict=True):
        yield candidates[one], candidates[other], value


def _scale(features: Tensor, to_nearest: NDArray[np.float32]) -> tuple[float, float]:
    """The median distance of two rows, and the largest feature distance of near-duplicates.

    `to_nearest` is the distance of each row to its nearest.
    """
    distances = to_nearest[to_nearest > ROUNDING]  # exact copies do not show how images differ
    if not len(distances):
        return 0.0, 0.0
    sample = features[torch.linspace(0, len(features) - 1, min(len(features), SAMPLE)).long()]
    first, second = torch.tril_indices(len(sample), len(sample), offset=-1)
    median = float((1 - (sample @ sample.mT)[first, second]).median())
    return median, min(NEAR * median, NEARER * float(np.median(distances)))


def left_out_together(examples: Sequence[Example], copies: Sequence[Copy]) -> Tensor:
    """The set (n,) of each row: rows of one group, and copies, are in one set."""
    first: dict[str, int] = {}
    groups = [(row, one.group) for row, one in enumerate(examples) if one.group is not None]
    links = [(row, first.setdefault(group, row)) for row, group in groups]
    links += [(copy.row, copy.other) for copy in copies]
    ends = np.array(links, dtype=np.int64).reshape(-1, 2).T
    linked = coo_matrix((np.ones(len(links)), ends), shape=(len(examples), len(examples)))
    _, sets = connected_components(linked, directed=False)
    return torch.from_numpy(sets).long()


def copy_findings(rows: LabelledRows, copies: Sequence[Copy]) -> list[Finding]:
    """The most serious finding for each row that repeats an earlier one."""
    worst: dict[int, tuple[tuple[bool, bool, float], Finding]] = {}
    for copy in copies:
        row, other = copy.row, copy.other
        how = "the same image" if copy.exact else f"nearly the same image ({copy.cosine:.3f})"
        example, other_example = rows.examples[row], rows.examples[other]
        clash = _clash(example, other_example)
        kind: Kind = "leak" if clash else "duplicate" if copy.exact else "near-duplicate"
        sentence = f"{example.name} is {how} as {other_example.name}{clash}."
        numbers = rows.numbers[row], rows.numbers[other]
        finding = Finding(kind, numbers[0], copy.cosine, None, numbers[1], sentence)
        rank = (bool(clash), copy.exact, copy.cosine)
        if row not in worst or rank > worst[row][0]:
            worst[row] = rank, finding
    return [finding for _, finding in worst.values()]


def _clash(one: Example, other: Example) -> str:
    """How two copies contradict each other or leak, as the end of a sentence; else nothing."""
    if one.label != other.label:
        return f", but one is labelled {shown(one.label)} and the other {shown(other.label)}"
    if None not in (one.group, other.group) and one.group != other.group:
        return f", but one is in group {shown(one.group)} and the other in {shown(other.group)}"
    return ""
