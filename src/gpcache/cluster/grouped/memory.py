"""Estimates the memory of a grouped cache before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpcache.cluster.grouped.groups import Group, Keys
from gpcache.gp.factored import MATRICES
from gpcache.support.devices import ensure_memory, free_memory

# Kernel rows of the queries at a group's keys: similarities, their kernel, one solve.
CROSSES = 3
# Copies of sampled logits while weights are fitted, in the cache's dtype for each η, and while the
# calibration is fitted, in float64.
FUSION, CALIBRATION = 6, 12


def require_memory(
    groups: Sequence[Group],
    keys: Keys,
    *,
    n_classes: int,
    sample: int,
    n_etas: int,
    copied_rows: int,
    tasks: int,
) -> None:
    """Refuse what does not fit: tasks at once, solved values, logits of a sample (k, c).

    `copied_rows` are those that Ray copies into its own memory.
    """
    width, size = keys.rows.shape[1], keys.dtype.itemsize
    sizes = [len(group.rows) for group in groups]
    n, s = sum(sizes), max(sizes)
    of_task = (MATRICES * s * s + CROSSES * s * sample + (2 * s + sample) * width) * size
    solved = sum(len(group.rows) * len(group.classes) for group in groups) * size
    of_sample = sample * n_classes * (size * (2 + FUSION * n_etas) + 8 * CALIBRATION)
    copied = copied_rows * width * size
    remedy = "Use fewer loo_rows."
    if tasks * of_task > of_sample + copied:
        # A group of half the keys needs a quarter of the memory.
        free = max(1, free_memory(keys.device))
        enough = math.ceil(len(groups) * math.sqrt(2 * tasks * of_task / free))
        remedy = f"Use n_groups={enough:,} or more."
        if enough > n_classes:
            remedy = "Use fewer keys per class: a class cannot be split."
    elif copied > of_sample:
        remedy = "Keep X in a file and pass np.load(file, mmap_mode='r')."
    ensure_memory(
        tasks * of_task + solved + of_sample + copied,
        keys.device,
        what=f"A cache of {n:,} keys in {len(groups):,} group(s) of up to {s:,} keys",
        remedy=remedy,
    )
