"""The tasks of the roofline: what is timed, the obvious way to do it, and the least that it needs.

In the formulas: n keys of width d in c classes, m queries. `least` are the operations, and the
numbers to read or write, that any way needs: an addition and a multiplication are two operations, a
symmetric matrix is computed and read by half, what is used twice is read once.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import literal
import numpy as np
import torch
from literal import BETA, NOISE, PLAIN, Rows
from torch import Tensor
from torch.nn.functional import normalize

from gpcache.features.neighbors import nearest
from gpcache.gp.explicit import Batch, Prior, core_of, explicit_map, loss_of, products_of
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import gram, kernel, unit_rows
from gpcache.gp.softmax import softmax_map
from gpcache.gp.sweep import Sweep
from gpcache.methods.cache import search, softmax, softmax_search
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.training import Schedule, train
from gpcache.similarity import ProjectionOptions, contrastive_loss
from gpcache.similarity.checkpoint import Progress
from gpcache.similarity.pairs import paired_rows
from gpcache.similarity.projection import identity_weights
from gpcache.similarity.train import _Learner

SOFTMAX_BETA, TAU, LANDMARKS = 0.5, 6.0, 1024
LEFT_OUT, PLACES = 20, 2  # refits of leave-one-out and places of a grid that are timed, naively
# The exact search, over the ranges of the library's own grid.
RANGES = (0.25, 32, 20), (1e-3, 10, 11), (0.1, 1e3, 25)
BETAS, NOISES, ALPHAS = (tuple(np.geomspace(*one).tolist()) for one in RANGES)
GRID = {"β": BETAS, "noise": NOISES, "η": search.ETAS, "α": ALPHAS}


class Task(NamedTuple):
    """One thing to time, beside the obvious way to do it, which text/roofline.md describes.

    `naive` may do one part of `naive_parts`; its time is multiplied. Answers are compared if both
    are tensors: with each other, or both with what `exact` gives.
    """

    name: str
    size: str
    ours: Callable[[], object]
    naive: Callable[[], object]
    least: tuple[float, float]
    dtype: str
    naive_parts: float = 1.0
    exact: Callable[[], Tensor] | None = None


def task(
    rows: Rows, name: str, *ways: Any, more: str = "", dtype: str = "", **options: Any
) -> Task:
    """A task on rows: ours, naive and least; in the precision of the rows unless given."""
    size = f"n = {rows.n:,}, c = {rows.c:,}, d = {rows.d:,}{more}"
    return Task(name, size, *ways, dtype or str(rows.dtype).removeprefix("torch."), **options)


def walk_operations(rows: Rows, looked: int) -> tuple[float, float]:
    """Operations, and numbers of kernel rows, of a search in four folds over so many settings."""
    kept, held = rows.n * 3 / 4, rows.n / 4
    # Similarities once; then two products with the kernel at each setting, of the start and of one
    # step, and the logits of the held-out rows.
    once = kept**2 * rows.d + 2 * kept * held * rows.d
    step = 4 * kept**2 * rows.c + 2 * kept * held * rows.c
    return 4 * (once + looked * step), 4 * looked * kept * (kept + held)


def default_fit(rows: Rows) -> Iterator[Task]:
    """The default fit with text: whitening, search, temperature and held-out report in folds."""
    n, c, d, fit = rows.n, rows.c, rows.d, rows.fit()
    looked = len(fit().search_["beta"])
    # Besides the walk, in the folds and in the last model: scatter or Gram matrix and its factor.
    maps = (m * d * min(m, d) + min(m, d) ** 3 / 3 for m in (*[n * 3 / 4] * 4, n))
    operations = walk_operations(rows, looked)[0] + sum(maps) + n**2 * d + 4 * n**2 * c
    # Half a similarity matrix is read and half a kernel matrix written, setting by setting.
    least = operations, 4 * looked * (n * 3 / 4) ** 2 + n**2
    given = rows.keys, rows.values, rows.zero_shot(rows.keys), "nll"
    naive = partial(literal.naive_grid, *given, ([1.0], PLAIN[1][-PLACES:], *PLAIN[2:]))
    parts = len(PLAIN[0]) * len(PLAIN[1]) / PLACES
    yield task(rows, "default fit with search", fit, naive, least, naive_parts=parts)


def solver(rows: Rows) -> Iterator[Task]:
    """The posterior mode of one model, beside L-BFGS on the same coefficients."""
    n, c, prior = rows.n, rows.c, gram(rows.keys, SOFTMAX_BETA)
    solve = partial(softmax_map, prior.matmul, 0 * rows.values, rows.values, TAU)
    # One product with the kernel an iteration; nothing else is of that order.
    products = solve().iterations + 2
    least = products * 2 * n**2 * c, products * (n**2 / 2 + 2 * n * c)
    naive = partial(literal.lbfgs, prior, prior / TAU, rows.values)
    yield task(rows, "softmax solver", lambda: solve().products, lambda: prior @ naive(), least)


def explicit(rows: Rows) -> Iterator[Task]:
    """The posterior mode in explicit features, beside L-BFGS without their metric."""
    n, c, d = rows.n, rows.c, rows.d
    landmarks = torch.cat([torch.eye(d).to(rows.keys), rows.keys[:: max(1, n // LANDMARKS)]])
    size, zero = len(landmarks), landmarks.new_zeros(len(landmarks), c)
    products = products_of([rows.keys], landmarks, SOFTMAX_BETA)
    prior = Prior.of(core_of(landmarks, SOFTMAX_BETA), TAU, zero)
    loss = partial(loss_of, [Batch(rows.keys, zero[:1], rows.labels)], landmarks, SOFTMAX_BETA)

    def ours() -> Any:
        found = explicit_map(loss, prior, products, n_rows=n, start=zero, tolerance=1e-5)
        return found, kernel(rows.keys, landmarks, SOFTMAX_BETA) @ found.values

    def naive() -> Tensor:
        features = kernel(rows.keys, landmarks, SOFTMAX_BETA)
        return features @ literal.lbfgs(features, prior.precision.to(features), rows.values)

    passes, name = ours()[0].passes, "softmax solver, explicit features"
    # A pass: kernel rows, logits and gradient.
    least = passes * 2 * n * size * (d + 2 * c), passes * (n * d + size * d + 2 * size * c)
    yield task(rows, name, ours, naive, least, more=f"; {size:,} features")


def walk(rows: Rows) -> Iterator[Task]:
    """The walk over the settings, beside a fit of every fold from nothing at each of them."""
    fitted = rows.fit(approximation="exact")().fitted_
    recipe, shots, looked = fitted.recipe, fitted.shots, len(fitted.search["beta"])

    def naive() -> None:
        for kept, held in recipe.folds(shots, recipe.n_folds // 2):
            model = softmax.build(recipe, shots[kept], fitted.text, fitted.choice)
            model.logits(shots.features[held])

    ours = partial(softmax_search.choose, recipe, shots, fitted.settings, None, name="search")
    options = {"more": f"; {looked} settings", "dtype": "float32", "naive_parts": looked}
    yield task(rows, "softmax search", ours, naive, walk_operations(rows, looked), **options)


def query(rows: Rows) -> Iterator[Task]:
    """One row through the estimator, beside the bare products of its answer."""
    n, c, d, model, row = rows.n, rows.c, rows.d, rows.fit()(), rows.queries(1)
    cache, choice = model.fitted_.model, model.fitted_.choice

    def naive() -> Tensor:
        unscaled = (row - cache.feature_map.mean) @ cache.feature_map.matrix
        near = kernel(unit_rows(unscaled), cache.precision.keys, choice.beta)
        logits = choice.alpha * near @ cache.coefficients + choice.gain * row @ cache.text.mT
        if cache.discriminant is not None:
            logits = logits + choice.discriminant * cache.discriminant.scores(unscaled)
        return logits.argmax(1)

    ours, numbers = partial(model.predict, row.cpu().numpy()), d**2 + n * d + 2 * c * d + n * c
    yield task(rows, "one query, `predict`", ours, naive, (2 * numbers, numbers))


def prediction(rows: Rows) -> Iterator[Task]:
    """Mean and variance of one query and of many, from a factor that is there."""
    n, c, d, posterior = rows.n, rows.c, rows.d, rows.posterior()
    posterior.posterior(rows.queries(1))  # factor and solved values are made on first use
    inverse = torch.cholesky_inverse(posterior._factor)
    model = CacheModel(FeatureMap(), posterior, None, search.Choice(BETA, NOISE, 1.0, 1.0, 1.0))

    def ours(queries: Tensor) -> Tensor:
        return torch.cat(model.posterior(queries), 1)

    def naive(queries: Tensor) -> Tensor:
        way = partial(literal.naive_posterior, rows.keys, values=rows.values, precision=inverse)
        return torch.cat([torch.cat(way(queries=part), 1) for part in queries.split(literal.BLOCK)])

    for m in (1, 256, 50_000)[: 2 + (rows.device.type == "cuda")]:
        # Kernel rows, the mean, and one triangular solve a query for the variance. Keys, solved
        # values, half a matrix and the queries are read, means written.
        least = m * (2 * n * d + 2 * n * c + n**2), n * d + n * c + n**2 / 2 + m * (d + c)
        ways = (partial(way, rows.queries(m)) for way in (ours, naive))
        more = f"; {m:,} {'query' if m == 1 else 'queries'}"
        yield task(rows, "prediction with variance", *ways, least, more=more)


def variance(rows: Rows) -> Iterator[Task]:
    """The variance alone, by leading directions, at β = noise = 1 where the default walk starts."""
    n, d, m, posterior = rows.n, rows.d, 256, rows.posterior(beta=1.0, noise=1.0)
    ours = partial(posterior.variance, rows.queries(m), quick=True)
    ours()  # the directions are found on first use
    if posterior._quick is None:  # few directions do not carry this kernel
        return
    rank, naive = posterior._quick.basis.shape[1], partial(posterior.variance, rows.queries(m))
    # Kernel rows, and their coordinates.
    least = m * (2 * n * d + 2 * n * rank), n * d + n * rank + m * d
    more = f"; {m:,} queries, {rank:,} directions"
    yield task(rows, "variance within 1 %", ours, naive, least, more=more)


def training(rows: Rows) -> Iterator[Task]:
    """Steps of GPCache-F, exact and in groups of classes, and on a GPU a whole exact training."""
    n, c, d, on_gpu = rows.n, rows.c, rows.d, rows.device.type == "cuda"
    m, epochs = (256, 20) if on_gpu else (128, 0)
    views, given, targets = rows.batch(m)
    dtype = "tf32" if on_gpu else ""  # the precision of the fastest products that a step may use
    for g in (8, 16, 32, 64, 1):
        kind = "grouped" if g > 1 else "exact"
        make = literal.maker(kind, rows, n_groups=g)
        way = literal.naive_way(kind, rows, *make.args)
        ways = (
            (partial(literal.our_logits, make), rows.dtype),
            (way, rows.dtype),
            (way, torch.double),
        )
        ours, naive, exact = (partial(literal.gradient, *one, targets, *given) for one in ways)
        # In each group: half a Gram matrix and the product of its gradient with the keys, the
        # factor, two solves for the queries and the gradient of the covariance. Then kernel rows
        # and their gradient by the keys; the mean and what returns through it.
        operations = 3 * n**2 * d / g + n**3 / g**2 / 3 + 6 * n**2 * m / g
        # Keys and their gradient, and half a covariance and its gradient in each group.
        least = operations + 4 * n * m * d + 4 * n * m * c / g, 2 * n * d + n**2 / g
        name = f"GPCache-F step, {f'{g} groups' if g > 1 else 'exact'}"
        options = {"more": f"; batch {m}", "dtype": dtype, "exact": exact}
        yield task(rows, name, ours, naive, least, **options)
    if not epochs:
        return
    text, steps = rows.zero_shot(views), epochs * -(-n // Schedule().batch_size)

    def whole() -> object:
        keys = rows.keys.clone().requires_grad_()

        def logits(some: Tensor) -> Tensor:
            return literal.our_logits(make, keys, views[some], rows.values, text[some])

        return train([keys], logits, rows.labels, Schedule(epochs=epochs))

    name, least = (
        f"GPCache-F training, exact, {epochs} epochs",
        (steps * least[0], steps * least[1]),
    )
    options = {"more": f"; {steps:,} steps", "dtype": dtype, "naive_parts": steps}
    yield task(rows, name, whole, naive, least, **options)


def leave_one_out(rows: Rows) -> Iterator[Task]:
    """All rows left out in turn, from the keys alone."""
    n, c, d, every = rows.n, rows.c, rows.d, torch.arange(rows.n, device=rows.device)

    def naive() -> Tensor:
        return torch.cat([rows.posterior(every != i).mean(rows.keys[[i]]) for i in range(LEFT_OUT)])

    # Half a Gram matrix, its factor, the factor's inverse (its columns' lengths are the diagonal
    # that is needed), and solved values.
    least = n**2 * d + 2 / 3 * n**3 + 2 * n**2 * c, n * d + n**2 / 2 + 2 * n * c
    ours = lambda: rows.posterior().leave_one_out().mean  # noqa: E731
    yield task(rows, "leave-one-out", ours, naive, least, naive_parts=n / LEFT_OUT)


def neighbours(rows: Rows) -> Iterator[Task]:
    """Every row looks for its neighbours among all."""
    n, d, k, keys = rows.n, rows.d, 128, rows.keys.float()

    def ours() -> Tensor:
        return torch.from_numpy(nearest(keys, k=k, device=rows.device)[1])

    def naive() -> Tensor:
        parts = keys.split(max(1, 2**28 // n))  # similarities of 1 GB
        return torch.cat([(part @ keys.mT).topk(k).values.cpu() for part in parts])

    # Half a matrix of similarities; the rows, positions of 8 bytes, and similarities.
    least = n**2 * d, n * d + 3 * n * k
    size = f"{n:,} rows among themselves, d = {d:,}, k = {k}"
    yield Task("neighbours", size, ours, naive, least, "float32")


def similarity(rows: Rows) -> Iterator[Task]:
    """An epoch of a projection, once the images to contrast are known; naive is one step."""
    # More images of a kind than an anchor has neighbours.
    n, d, images = rows.n, rows.d, Rows(rows.n, rows.device, shots=200, spread=1).keys
    original, views = paired_rows(images, images + 0.5 * rows.drawn(n, 3) / d**0.5, rows.device)
    options, start = (
        ProjectionOptions(epochs=1),
        identity_weights(d, bottleneck=1, residual=True, seed=0),
    )
    learner = _Learner(original, views, options, Progress(start))
    steps, anchors, size = learner.steps, options.batch_size, options.neighbours
    batch = learner.sets[torch.arange(anchors, device=rows.device) * (n // anchors)]

    def naive() -> Tensor:
        matrix = original.new_zeros(d, d, requires_grad=True)
        pair = (x[batch] for x in (views[:, 0], original))
        first, second = (normalize(x @ matrix.mT + x, dim=-1) for x in pair)
        loss = contrastive_loss(first @ second.mT, temperature=options.temperature)
        return torch.autograd.grad(loss, matrix)[0]

    # Projections of the distinct images of a step, cosines, and the gradients of both.
    distinct = len(torch.unique(batch))
    cosines = min(anchors * size**2, distinct**2)  # sets overlap
    least = steps * (8 * distinct * d**2 + 6 * cosines * d), steps * 2 * (distinct * d + cosines)
    ours, name = partial(learner.epoch, 0, lambda: None), "similarity training, an epoch"
    about = f"{n:,} images, d = {d:,}; {steps} steps of {anchors} anchors with {size} images"
    yield Task(name, about, ours, naive, least, "float32", steps)


def grid_search(rows: Rows) -> Iterator[Task]:
    """The exact search of four parameters over the whole grid, α by a grid or by Newton."""
    # The library's own grid has fewer α; the size that was promised has 25.
    search.ALPHAS = ALPHAS
    n, c, d, text = rows.n, rows.c, rows.d, rows.zero_shot(rows.keys)
    places, fusions = len(BETAS) * len(NOISES), len(search.ETAS) * len(ALPHAS)

    def walked(criterion: search.Criterion) -> object:
        sweep, found = Sweep(rows.keys), []
        settings = search.SearchOptions(gain=1.0, criterion=criterion)
        for beta in BETAS:
            for noise, point in zip(NOISES, sweep.at(rows.values, beta, NOISES), strict=True):
                held_out = search.CacheOutputs(point.mean, point.variance, text, rows.labels)
                found.append(search.weigh(held_out, settings, (beta, noise, 1.0)).accuracy)
        return torch.tensor(found) if criterion == "accuracy" else found

    # Similarities; then factor, its inverse and solved values; then every logit.
    operations = places * (2 / 3 * n**3 + 2 * n**2 * c + 2 * n * c * fusions)
    least = n**2 * d + operations, places * (n**2 / 2 + 2 * n * c)
    more = "; " + " × ".join(f"{len(one)} {name}" for name, one in GRID.items())
    naive = partial(literal.naive_grid, rows.keys, rows.values, text)
    part = BETAS[:1], NOISES[:PLACES], search.ETAS, ALPHAS
    for by, how in (("accuracy", "on a grid, by accuracy"), ("nll", "by Newton on the NLL")):
        name = f"exact four-parameter search, leave-one-out, α {how}"
        ways, parts = (partial(walked, by), partial(naive, by, part)), places / PLACES
        yield task(rows, name, *ways, least, more=more, naive_parts=parts)


# Tasks of a group, and how many rows they have on a CPU and on a GPU; the longest comes last.
FITS = (160, 480, 1600), (160, 480, 1600, 4800, 16000)
GROUPS: dict[str, tuple[Any, ...]] = {
    "fit": ((default_fit,), *FITS),
    "softmax": ((solver, explicit, walk, query), *FITS),
    "prediction": ((prediction,), *[(160, 1600, 16000)] * 2),
    "variance": ((variance,), (6400,), (16000,)),
    "training": ((training,), (1024,), (16000,)),
    "leave_one_out": ((leave_one_out,), (1600,), (16000,)),
    "similarity": ((similarity,), (2000, 10_000), (50_000, 500_000)),
    "neighbours": ((neighbours,), (5000, 50_000), (20_000, 500_000)),
    "search": ((grid_search,), (800,), (16000,)),
}
