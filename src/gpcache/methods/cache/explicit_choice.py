"""Which rows of many choose the hyper-parameters of a model, and which are held out of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import KernelSpace, Moments
from gpcache.methods.cache.memory import softmax_bytes
from gpcache.methods.cache.passes import MomentsPass
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.row_stream import RowStream, stratified
from gpcache.methods.cache.search import SearchOptions
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.softmax_search import DIAGONALS, SoftmaxSearch, choose
from gpcache.metrics import fit_scales
from gpcache.support.devices import free_memory

# Rows that the exact search takes at most, and how many of a class it takes before it leaves out
# classes: fewer would say little about the scatter within classes.
PART_ROWS, PART_PER_CLASS = 4_000, 20
# Held-out rows: at most a quarter of all, and within these numbers of logits and of rows.
HELD_SHARE, HELD_LOGITS, LEAST_HELD, MOST_HELD = 4, 2**22, 1_000, 5_000
# Shrinkages that are tried on all rows.
SHRINKAGES = tuple(4.0**power for power in range(-1, 8))


def held_out_rows(rows: RowStream, seed: int, validation: Shots | None) -> Tensor:
    """Numbers of the rows that are held out; none where the search can see all rows itself."""
    few = len(rows) <= part_rows(rows) or not rows.labels_alone().can_be_held_out
    if few or validation is not None:
        return rows.labels.new_empty(0)
    company = torch.nonzero(rows.labels_alone().with_company()).flatten()
    count = most_held(len(rows), rows.n_classes)
    return company[stratified(rows.labels[company], count, seed)]


def most_held(n: int, n_classes: int) -> int:
    """How many of n rows are held out at most."""
    return min(MOST_HELD, max(LEAST_HELD, HELD_LOGITS // n_classes), n // HELD_SHARE)


def choose_for_all(
    rows: RowStream,
    rest: Tensor,
    moments: Moments,
    recipe: Recipe,
    settings: SearchOptions,
    validation: Shots | None,
    *,
    name: str,
) -> tuple[SoftmaxSearch, Tensor]:
    """The choice for the rows `rest` (k,), whose moments these are, and the rows that made it.

    Where the search cannot see all rows, the space comes first. The discriminant then has the
    weight 1, to be weighed by rows that the model has not seen.
    """
    if len(rest) <= part_rows(rows):
        return choose_on_part(rows, rest, recipe, settings, validation, name)
    space = space_of_all(rows, rest, moments, recipe, settings)
    dtype = rows.labels_alone().features.dtype
    fixed = replace(recipe, space=KernelSpace(projection=space.fit_moments(moments, dtype)))
    chosen, part = choose_on_part(rows, rest, fixed, settings, validation, name)
    absent = bool((moments.counts == 0).any())
    scores = space.name == "whitened" and settings.discriminant != 0 and not absent
    choice = replace(
        chosen.choice,
        shrinkage=space.shrinkage,
        diagonal=space.diagonal,
        discriminant=float(scores),
    )
    for column in ("shrinkage", "diagonal"):
        chosen.search[column][:] = getattr(choice, column)
    return replace(chosen, choice=choice), part


def choose_on_part(
    rows: RowStream,
    rest: Tensor,
    recipe: Recipe,
    settings: SearchOptions,
    validation: Shots | None,
    name: str,
) -> tuple[SoftmaxSearch, Tensor]:
    """The search on a stratified part of the rows `rest` (k,), and the numbers of its rows.

    If there are too many classes for the part, a random sample of the classes is used.
    """
    labels, most = rows.labels[rest], part_rows(rows)
    classes, counts = torch.unique(labels, return_counts=True)
    usual = max(1, min(PART_PER_CLASS, int(counts.double().mean())))
    if len(classes) > most // usual:
        generator = torch.Generator().manual_seed(recipe.seed)
        drawn = torch.randperm(len(classes), generator=generator)[: most // usual]
        classes = classes[drawn.to(classes.device)].sort().values
        rest = rest[torch.isin(labels, classes)]
    rest = rest[stratified(rows.labels[rest], most, recipe.seed)]
    # A class that is known by its text alone takes part where all classes do.
    some = classes if len(classes) < len(counts) else None
    if validation is not None and some is not None:
        asked = torch.nonzero(torch.isin(validation.labels, some)).flatten()
        text = validation.zero_shot
        validation = replace(
            validation[asked],
            labels=torch.searchsorted(some, validation.labels[asked]),
            n_classes=len(some),
            zero_shot=None if text is None else text[asked][:, some],
        )
    chosen = choose(recipe, rows.shots(rest, some), settings, validation, name=name)
    return chosen, rest


def space_of_all(
    rows: RowStream, rest: Tensor, moments: Moments, recipe: Recipe, settings: SearchOptions
) -> KernelSpace:
    """The space of the kernel for rows whose moments these are, of the numbers `rest` (k,).

    Shrinkage and diagonal are those whose discriminant answers best about some of these rows,
    without having seen them. A part of the rows would ask for another shrinkage than all of them.
    """
    if recipe.space.name != "whitened" or settings.shrinkage != "auto":
        return recipe.space
    size = min(len(rest) // HELD_SHARE, max(LEAST_HELD, HELD_LOGITS // rows.n_classes))
    tested = rows.shots(rest[stratified(rows.labels[rest], size, recipe.seed)])
    own = MomentsPass(recipe.space.projection, rows.n_classes)
    moments = moments.without(own.total([(tested.features, tested.labels)]))
    dtype = tested.features.dtype
    counts, means = moments.counts.to(dtype), moments.class_means.to(dtype)

    def loss(space: KernelSpace) -> float:
        feature_map = space.fit_moments(moments, dtype)
        discriminant = Discriminant.of_means(means, counts, feature_map)
        scores = discriminant.scores(feature_map.unscaled(tested.features))
        scores = scores - scores.mean(1, keepdim=True)
        scale, _ = fit_scales(scores[None, None], tested.labels)
        return float(torch.nn.functional.cross_entropy(float(scale) * scores, tested.labels))

    best = min((replace(recipe.space, shrinkage=one) for one in SHRINKAGES), key=loss)
    return min((replace(best, diagonal=one) for one in DIAGONALS), key=loss)


def part_rows(rows: RowStream) -> int:
    """Rows that the exact search takes: fewer than `PART_ROWS` where memory is short."""
    count, free = PART_ROWS, free_memory(rows.labels.device)
    while count > 500 and softmax_bytes(count, rows.width, min(rows.n_classes, count)) > free // 2:
        count //= 2
    return count
