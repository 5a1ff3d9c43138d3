"""How logits should become probabilities: maps fitted on held-out shots, on the choosing data.

    python benchmarks/calibration_maps.py   # docs/results/calibration-maps.md

Also whether averaging over the settings that the search liked would do better than the best one.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from development_data import Task, caltech_with_text, photo_tasks, tasks
from pages import table, write_page
from torch import Tensor

from gpcache import GPCacheClassifier, metrics
from gpcache.metrics import Calibration, doubt_of

SHOTS = (2, 4, 8, 16)
DRAWS = 2
# The pull on everything but the temperature: as of so many rows.
PULL = 2.0
Map = Callable[..., Tensor]


def wanted() -> Iterator[Task]:
    """DTD with and without text, Caltech, its 39 classes with text, and training photos."""
    for task in tasks("dtd_vitb32", SHOTS):
        if task.draw < DRAWS:
            yield task
            yield replace(task, prior=None, name="dtd_vitb32, no text")
    yield from tasks("caltech101_vitb32", SHOTS)
    yield from (task for task in caltech_with_text() if task.shots > 1)
    yield from (task for task in photo_tasks(SHOTS[:3]) if task.draw < DRAWS)


def sloped(logits: Tensor, t: Tensor, by: Tensor) -> Tensor:
    """The temperature times an exponential of something that is known of the row."""
    return (logits * torch.exp(t + by[:, None])).log_softmax(1)


def with_lapse(logits: Tensor, t: Tensor, share: Tensor) -> Tensor:
    """Now and then the answer is any class at all."""
    lapse = torch.sigmoid(share - 3)
    sure = sloped(logits, t, torch.zeros(len(logits))) + torch.log1p(-lapse)
    return torch.logaddexp(sure, torch.log(lapse) - math.log(logits.shape[1]) + 0 * logits)


# Each takes logits, the two things known of a row (entropy, log variance), and its parameters.
MAPS: dict[str, tuple[int, Map]] = {
    "temperature alone": (1, lambda z, x, t: sloped(z, t, 0 * x[0])),
    "**and a slope by the entropy**": (2, lambda z, x, t, s: sloped(z, t, s * x[0])),
    "and a slope by the log variance": (2, lambda z, x, t, s: sloped(z, t, s * x[1])),
    "and both slopes": (3, lambda z, x, t, s, u: sloped(z, t, s * x[0] + u * x[1])),
    "and a lapse": (2, lambda z, _, t, s: with_lapse(z, t, s)),
}


def fitted(form: Map, count: int, logits: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """Parameters of the least smoothed NLL."""
    n, c = logits.shape
    doubt = doubt_of(n, c)
    targets = torch.full((n, c), doubt / (c - 1), dtype=torch.float64)
    targets[torch.arange(n), labels] = 1 - doubt
    parameters = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([parameters], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = -(targets * form(logits, known, *parameters)).sum(1).mean()
        total = total + PULL * parameters[1:].square().sum() / n
        total.backward()
        return total

    optimiser.step(loss)
    return parameters.detach()


def entropy(logits: Tensor) -> Tensor:
    """As a share of that of a uniform answer."""
    logs = logits.log_softmax(1)
    return -(logs.exp() * logs).sum(1) / math.log(logits.shape[1])


def averaged(model: GPCacheClassifier, queries: Tensor, spread: float) -> Tensor:
    """Probabilities averaged over the twelve best settings, weighed by exp(−loss / spread)."""
    columns = [model.search_[name][1:] for name in ("score", "beta", "noise", "alpha", "gain")]
    best = sorted(zip(*columns, strict=True))[:12]
    keys, mapped = (
        model.fitted_.model.feature_map(rows) for rows in (model.fitted_.shots.features, queries)
    )
    total, weights = torch.zeros(()), 0.0
    for score, beta, noise, alpha, gain in best:
        shots = model.fitted_.shots.at_gain(gain)
        plan = model.fitted_.recipe.plan(shots)
        precision = model.fitted_.recipe.precision(plan, keys, shots.values, beta=beta, noise=noise)
        logits = alpha * precision.mean(mapped)
        if model.fitted_.text is not None:
            logits = logits + gain * queries @ model.fitted_.text.mT
        weight = math.exp(-(score - best[0][0]) / spread)
        total, weights = total + weight * logits.softmax(1), weights + weight
    return total / weights


def one_shot() -> list[list[object]]:
    """Mean NLL and ECE at one shot of temperatures and slopes that could be shipped."""
    logits: dict[bool, dict[str, list[tuple[Tensor, Any]]]]
    logits = {text: defaultdict(list) for text in (True, False)}
    found = [*tasks("dtd_vitb32", (1,)), *photo_tasks((1,)), *tasks("caltech101_vitb32", (1,))]
    found += [task for task in caltech_with_text() if task.shots == 1]
    for task in found:
        for text in (True, False):
            if text and task.prior is None:
                continue
            prior = task.prior if text else None
            model = GPCacheClassifier.from_options(text_prior=prior, device="cpu").fit(
                task.X, task.y
            )
            truth = np.searchsorted(model.classes_, task.y_test)
            logits[text][task.name].append((torch.tensor(model.logits(task.X_test)), truth))
    body: list[list[object]] = [["text", "temperature", "slope", "NLL", "ECE"]]
    for text, sets in logits.items():
        tried = []
        for temperature in (0.8, 0.9, 1.0, 1.1, 1.2, 1.4):
            for slope in (0.0, 0.2, 0.3, 0.4, 0.6, 0.8):
                form = Calibration(temperature, slope)
                figures = [
                    np.mean([_figures(form.probabilities(z).numpy(), y) for z, y in rows], 0)
                    for rows in sets.values()
                ]
                tried.append((*np.mean(figures, 0), temperature, slope))
        plain = next(one for one in tried if one[2:] == (1.0, 0.0))
        for nll, error, temperature, slope in [*sorted(tried)[:3], plain]:
            shown = [f"{temperature:g}", f"{slope:g}", f"{nll:.4f}", f"{error:.2f}"]
            body.append(["yes" if text else "no", *shown])
    return body


def _figures(probabilities: Any, labels: Any) -> tuple[float, float]:
    return metrics.nll(probabilities, labels), 100 * metrics.ece(probabilities, labels)


def main() -> None:
    """Fit every map on every task's held-out logits, and score it on the test rows."""
    found: dict[str, dict[tuple[str, int], list[tuple[float, ...]]]]
    found = defaultdict(lambda: defaultdict(list))

    def note(name: str, task: Task, probabilities: Tensor, labels: Any) -> None:
        p = probabilities.double().numpy()
        p = p / p.sum(1, keepdims=True)
        figures = 100 * metrics.accuracy(p, labels), metrics.nll(p, labels)
        found[name][task.name, task.shots].append((*figures, 100 * metrics.ece(p, labels)))

    for task in wanted():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = GPCacheClassifier.from_options(text_prior=task.prior, device="cpu").fit(
                task.X, task.y
            )
        rows = model.loo_.counted
        held = torch.tensor(model.loo_.logits[rows])
        labels = torch.tensor(np.searchsorted(model.classes_, task.y)[rows])
        centre = np.log(model.held_out_novelty_[rows]).mean()
        unlike = torch.tensor(np.log(model.held_out_novelty_[rows]) - centre)
        tested, truth = model.logits(task.X_test), np.searchsorted(model.classes_, task.y_test)
        asked = torch.tensor(np.log(model.novelty(task.X_test)) - centre)
        logits = torch.tensor(tested)
        for name, (count, form) in MAPS.items():
            known = torch.stack([entropy(held), unlike])
            parameters = fitted(form, count, held, known, labels)
            known = torch.stack([entropy(logits), asked])
            note(name, task, form(logits, known, *parameters).exp(), truth)
        queries = model._read_queries(task.X_test)
        for spread in (0.003, 0.03):
            name = f"average of good settings, spread {spread:g} nats"
            note(name, task, averaged(model, queries, spread), truth)
        print(task.name, task.shots, task.draw, flush=True)
    cells = list(found["temperature alone"])
    body: list[list[object]] = [
        ["map", "accuracy", "NLL", "ECE"] + [f"{name}, {shots}" for name, shots in cells]
    ]
    for name, row in found.items():
        means = np.array([np.mean(row[cell], 0) for cell in cells])
        body.append(
            [name, *(f"{value:.{d}f}" for value, d in zip(means.mean(0), (2, 4, 2), strict=True))]
            + [f"{one[2]:.1f}" for one in means]
        )
    write_page(
        "calibration-maps",
        "From logits to probabilities",
        "Maps with one to three numbers, fitted by NLL on held-out shots of the default estimator "
        "and scored on the test rows of the choosing data (photos: undrawn training photos); two "
        "draws where draws are possible. Means over the cells, then the ECE of each. Both slopes "
        "together gain little over that by the entropy, which every method has; so that is the "
        "default. The slope by the variance is positive: far from all shots the posterior mean, "
        "and with it the logits, shrink too much, the opposite of what a probit correction would "
        "mend. Averaging over settings instead of taking the best one changes next to nothing.",
        table(body),
        "## One shot",
        "Where nothing can be held out, temperature and slope are shipped with α. Means beside "
        "that α over DTD (five draws), the training photos (five), Caltech and its 39 classes "
        "with text: the three best by NLL, and what would be without.",
        table(one_shot()),
    )


if __name__ == "__main__":
    main()
