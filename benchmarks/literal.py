"""Synthetic rows, and the formulas read literally on them, which our times are compared with.

A naive posterior inverts K + noise·I, group after group, and autograd differentiates the inverse.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from gpcache import GPCacheClassifier, TextPrior
from gpcache.gp import PRECISIONS, ExactPrecision
from gpcache.gp.fusion import fuse
from gpcache.gp.kernels import unit_rows
from gpcache.support.devices import resolve_dtype

WIDTH = {"cpu": 512, "cuda": 1024}
BETA, NOISE, ALPHA, ETA, BLOCK = 2.0, 0.1, 10.0, 0.5, 8192
# β, noise, η and α of the plain grid that a default fit replaces.
PLAIN = ((0.25, 0.5, 1, 2, 4, 8, 16), (1e-4, 1e-3, 1e-2, 1e-1, 1.0), (0.0, 0.5, 1.0, 2.0))
PLAIN += (tuple(0.3 * 10 ** (step / 4) for step in range(13)),)
Logits = Callable[..., Tensor]  # of keys, queries, values and text


class Rows:
    """Synthetic unit rows (n, d) around class centres, so times and never accuracies.

    They lie so wide that classes overlap, and a gradient has something to say.
    """

    def __init__(self, n: int, device: torch.device, shots: int = 16, spread: float = 9) -> None:
        self.n, self.c, self.d = n, -(-n // shots), WIDTH[device.type]
        self.device, self.dtype, self.spread = device, resolve_dtype("auto", device), spread
        self.labels = torch.arange(n, device=device) // shots
        self.text = unit_rows(self.drawn(self.c, 0))  # the centres, as a text encoder knows them
        self.keys = self.near(self.labels, 1)

    def drawn(self, rows: int, seed: int) -> Tensor:
        """Standard normal rows."""
        drawn = torch.randn(rows, self.d, generator=torch.Generator().manual_seed(seed))
        return drawn.to(self.device, self.dtype)

    def near(self, labels: Tensor, seed: int) -> Tensor:
        """Rows (m, d) of these classes."""
        noise = self.spread * self.drawn(len(labels), seed)
        return unit_rows(self.text[labels] * self.d**0.5 + noise)

    def queries(self, count: int) -> Tensor:
        """Other rows (m, d)."""
        return self.near(torch.arange(count, device=self.device) % self.c, 2)

    @cached_property
    def values(self) -> Tensor:
        """One-hot labels (n, c)."""
        return one_hot(self.labels, self.c).to(self.dtype)

    def zero_shot(self, rows: Tensor) -> Tensor:
        """The logits of rows by the text (m, c)."""
        return 100 * rows @ self.text.mT

    def fit(self, **options: Any) -> Callable[[], GPCacheClassifier]:
        """A fit of the estimator to the shots, as a user calls it."""
        names = np.array([f"class {i:04}" for i in range(self.c)])
        prior = TextPrior(list(names), self.text.float().cpu().numpy())
        model = GPCacheClassifier(text_prior=prior, device=self.device, **options)
        return partial(model.fit, self.keys.float().cpu().numpy(), names[self.labels.cpu().numpy()])

    def posterior(self, kept: Any = slice(None), beta: float = BETA, noise: float = NOISE) -> Any:
        """The exact posterior of some rows, nothing computed yet."""
        return ExactPrecision(None, self.keys[kept], self.values[kept], beta=beta, noise=noise)

    def batch(self, count: int) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Views (n, d) of the shots; keys, queries, values and text of a training step; labels."""
        # As an augmentation would move them, and far enough that there is something to learn.
        views = unit_rows(self.keys + 1.6 * unit_rows(self.drawn(self.n, 3)))
        chosen = torch.randperm(self.n, generator=torch.Generator().manual_seed(0))[:count]
        chosen = chosen.to(self.device)
        given = (self.keys, views[chosen], self.values, self.zero_shot(views[chosen]))
        return views, given, self.labels[chosen]


def eye_of(rows: Tensor) -> Tensor:
    """The identity of as many rows, like them."""
    return torch.eye(len(rows), device=rows.device, dtype=rows.dtype)


def naive_kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(−β(1 − x yᵀ))."""
    return torch.exp(-BETA * (1 - x @ y.T))


def naive_posterior(
    keys: Tensor, queries: Tensor, values: Tensor, precision: Tensor
) -> tuple[Tensor, Tensor]:
    """k P Y (m, c) and 1 − k P kᵀ (m, 1) as they stand."""
    cross = naive_kernel(queries, keys)
    weights = cross @ precision
    return weights @ values, 1 - (weights * cross).sum(1, keepdim=True)


def naive_logits(groups: Iterable[tuple[Tensor, Tensor]], n_keys: int, *given: Tensor) -> Tensor:
    """The paper's equations as they stand; each key is the mean of rows that lie together."""
    keys, queries, values, text = given
    keys = normalize(keys.view(n_keys, -1, keys.shape[1]).mean(1), dim=1)
    values, cache = values[:: len(values) // n_keys], torch.zeros_like(text)
    for rows, classes in groups:
        mine = keys[rows]
        precision = torch.linalg.inv(naive_kernel(mine, mine) + NOISE * eye_of(mine))
        mean, variance = naive_posterior(mine, queries, values[rows][:, classes], precision)
        cache[:, classes] = mean / variance.clamp(min=1e-6) ** ETA
    return text + ALPHA * cache


def naive_low_rank(plan: Any, *given: Tensor) -> Tensor:
    """Woodbury with explicit inverses and the whole n × n precision, in float64 as ours."""
    keys, queries, values, text = (one.double() for one in given)
    keys = normalize(keys, dim=1)
    if hasattr(plan, "rows"):
        landmarks = keys[plan.rows]
        u, near, core = (naive_kernel(x, landmarks) for x in (keys, queries, landmarks))
        core = core + 1e-8 * eye_of(core)
    else:
        phases = [x @ (BETA**0.5 * plan.draws) for x in (keys, queries)]
        u, near = (torch.cat([x.cos(), x.sin()], 1) / x.shape[1] ** 0.5 for x in phases)
        core = eye_of(u.T)
    inverse = torch.linalg.inv(NOISE * core + u.T @ u)
    precision = (eye_of(keys) - u @ inverse @ u.T) / NOISE
    mean = naive_kernel(queries, keys) @ precision @ values
    explained = (near @ torch.linalg.inv(core) * near).sum(1, keepdim=True)
    variance = 1 - explained + NOISE * (near @ inverse * near).sum(1, keepdim=True)
    return (text + ALPHA * mean / variance.clamp(min=1e-6) ** ETA).to(given[0])


def our_logits(make: Callable[..., Any], *given: Tensor) -> Tensor:
    """The same through the library; `make` gives the precision of keys and values."""
    keys, queries, values, text = given
    precision, found = make(unit_rows(keys), values, beta=BETA, noise=NOISE), []
    for some, zero_shot in zip(queries.split(BLOCK), text.split(BLOCK), strict=True):
        mean, variance = precision.posterior(some)
        spread = precision.variance_of_classes(variance)
        found.append(fuse(zero_shot, mean, spread, alpha=ALPHA, eta=ETA))
    return torch.cat(found)


def maker(kind: str, rows: Rows, **options: int) -> partial[Any]:
    """What makes a precision of the library from keys and values: its class, with a plan."""
    facts: dict[str, Any] = {"width": rows.d, "dtype": rows.dtype} | options
    return partial(PRECISIONS[kind], PRECISIONS[kind].plan(rows.labels, rows.c, **facts))


def naive_way(kind: str, rows: Rows, plan: Any) -> Logits:
    """The naive logits of an approximation."""
    if kind in ("nystrom", "fourier"):
        return partial(naive_low_rank, plan)
    classes = torch.arange(rows.c, device=rows.device)
    labels = classes if kind == "class_mean" else rows.labels
    group = plan.class_group if kind == "grouped" else 0 * classes
    inside = [group == number for number in range(int(group.max()) + 1)]
    groups = [(one[labels].nonzero().flatten(), one.nonzero().flatten()) for one in inside]
    return partial(naive_logits, groups, len(labels))


def gradient(logits_of: Logits, dtype: torch.dtype, targets: Tensor, *given: Tensor) -> Tensor:
    """The gradient of a step by the keys; given are keys, queries, values and text."""
    keys, *others = (one.to(dtype) for one in given)
    keys = keys.detach().clone().requires_grad_()
    return torch.autograd.grad(cross_entropy(logits_of(keys, *others), targets), keys)[0]


def naive_grid(
    keys: Tensor, values: Tensor, text: Tensor, criterion: str, grid: Sequence[Sequence[float]]
) -> Tensor:
    """The highest leave-one-out score of each (β, noise), found by loops; text is logits (n, c)."""
    labels, similarity, found = values.argmax(1), keys @ keys.mT, []

    def score(logits: Tensor) -> float:
        if criterion == "accuracy":
            return float((logits.argmax(1) == labels).double().mean())
        return -float(cross_entropy(logits, labels))

    for beta, noise in product(*grid[:2]):
        inverse = torch.linalg.inv(torch.exp(-beta * (1 - similarity)) + noise * eye_of(keys))
        diagonal = inverse.diagonal()[:, None]
        mean = (1 + noise) * (values - (inverse @ values) / diagonal)
        variance = (1 / diagonal - noise).clamp(1e-6, 1)
        scaled = (mean / variance**eta for eta in grid[2])
        found.append(max(score(text + alpha * one) for one in scaled for alpha in grid[3]))
    return torch.tensor(found)


def lbfgs(features: Tensor, precision: Tensor, targets: Tensor) -> Tensor:
    """Coefficients (k, c) of features (n, k) at the mode under a prior (k, k), by L-BFGS."""
    a = features.new_zeros(features.shape[1], targets.shape[1], requires_grad=True)
    stop = {"max_iter": 300, "tolerance_grad": 1e-6, "tolerance_change": 0}
    solver = torch.optim.LBFGS([a], line_search_fn="strong_wolfe", **stop)

    def closure() -> Tensor:
        solver.zero_grad()
        loss = -(targets * (features @ a).log_softmax(1)).sum() + (a * (precision @ a)).sum() / 2
        loss.backward()
        return loss

    solver.step(closure)
    return a.detach()
