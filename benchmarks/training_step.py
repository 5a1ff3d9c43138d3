"""One GPCache-F training step at ImageNet 16-shot size, against the formulas read literally.

*naive* inverts K + noise·I and lets autograd differentiate the inverse, group after group.
Run on a GPU: ``python benchmarks/training_step.py`` (torch alone is needed);
on a CPU it takes a small problem, to show that it runs. ``--epochs 20`` adds a whole training.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from measuring import milliseconds
from torch import Tensor

from gpcache.gp import ExactPrecision, GroupedPrecision, Precision
from gpcache.gp.fusion import fuse
from gpcache.gp.kernels import unit_rows

BETA, NOISE, ALPHA, ETA = 2.0, 0.1, 10.0, 0.5
Logits = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of keys, queries, values and text


def naive_logits(
    keys: Tensor, queries: Tensor, values: Tensor, text: Tensor, groups: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """The paper's equations as they stand."""
    keys = keys / keys.norm(dim=1, keepdim=True)
    cache = torch.zeros(len(queries), values.shape[1], device=keys.device, dtype=keys.dtype)
    for rows, classes in groups:
        mine = keys[rows]
        matrix = torch.exp(-BETA * (1 - mine @ mine.T))
        eye = torch.eye(len(rows), device=keys.device, dtype=keys.dtype)
        precision = torch.linalg.inv(matrix + NOISE * eye)
        cross = torch.exp(-BETA * (1 - queries @ mine.T))
        mean = cross @ precision @ values[rows][:, classes]
        variance = 1 - (cross @ precision * cross).sum(1, keepdim=True)
        cache[:, classes] = mean / variance.clamp(min=1e-6) ** ETA
    return text + ALPHA * cache


def our_logits(
    make: Callable[..., Precision], keys: Tensor, queries: Tensor, values: Tensor, text: Tensor
) -> Tensor:
    """The same through the library; `make` gives the precision of keys and values."""
    precision = make(unit_rows(keys), values, beta=BETA, noise=NOISE)
    mean, variance = precision.posterior(queries)
    spread = precision.variance_of_classes(variance)
    return fuse(text, mean, spread, alpha=ALPHA, eta=ETA)


def groups_of(class_group: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows and the classes of each group."""
    inside = [class_group == number for number in range(int(class_group.max()) + 1)]
    return [(one[labels].nonzero().flatten(), one.nonzero().flatten()) for one in inside]


def both_logits(
    n_groups: int, labels: Tensor, classes: int, dtype: torch.dtype
) -> tuple[Logits, Logits]:
    """Our logits and the naive ones; one group is the exact posterior."""
    if n_groups == 1:
        every = torch.zeros(classes, dtype=torch.long, device=labels.device)
        make, groups = partial(ExactPrecision, None), groups_of(every, labels)
    else:
        plan = GroupedPrecision.plan(labels, classes, n_groups=n_groups, dtype=dtype)
        make, groups = partial(GroupedPrecision, plan), groups_of(plan.class_group, labels)
    return partial(our_logits, make), partial(naive_logits, groups=groups)


def gradient(logits_of: Logits, dtype: torch.dtype, targets: Tensor, *given: Tensor) -> Tensor:
    """The gradient of a step by the keys; given are keys, queries, values and text."""
    keys, *others = (one.to(dtype) for one in given)
    keys = keys.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits_of(keys, *others), targets)
    return torch.autograd.grad(loss, keys)[0]


def main() -> None:
    """Print the table; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="*", default=[1, 8, 16, 32, 64])
    parser.add_argument(
        "--epochs", type=int, default=0, help="also train the exact model for this many epochs"
    )
    parser.add_argument("--page", help="write the table there, as Markdown")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes, shots, width, batch = (
        (1000, 16, 1024, 256) if device.type == "cuda" else (64, 8, 64, 32)
    )
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(shots).to(device)
    centres = torch.randn(classes, width, generator=generator).to(device)
    noise = torch.randn(classes * shots, width, generator=generator).to(device)
    start = unit_rows(centres[labels] + 9 * noise)
    views = unit_rows(start + 0.05 * noise.flip(0))  # as an augmentation would move them
    queries, targets = views[:batch], labels[:batch]
    text_vectors = unit_rows(centres)
    values = torch.nn.functional.one_hot(labels, classes).float()
    given = (start, queries, values, 100 * queries @ text_vectors.T)

    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(
        f"{name}; n = {len(start):,}, d = {width}, c = {classes}, batch {batch}, float32; ms a step"
    )
    print(f"{'groups':>6} {'naive':>9} {'ours':>9} {'ratio':>7} {'error: naive / ours':>22}")
    table = []
    for n_groups in options.groups:
        both = both_logits(n_groups, labels, classes, torch.float32)[::-1]
        truth = gradient(both[0], torch.float64, targets, *given)
        steps = [partial(gradient, one, torch.float32, targets, *given) for one in both]
        errors = [float((step() - truth).norm() / truth.norm()) for step in steps]
        del truth
        repeats = 5 if n_groups == 1 else 20
        slow, fast = (milliseconds(step, device, repeats) for step in steps)
        error = f"{errors[0]:.0e} / {errors[1]:.0e}"
        print(f"{n_groups:>6} {slow:>9.1f} {fast:>9.1f} {slow / fast:>6.1f}x {error:>22}")
        table.append(f"| {n_groups} | {slow:.1f} | {fast:.1f} | {slow / fast:.1f}× | {error} |")
    training = ""
    if options.epochs:
        training = train_exactly(start, views, labels, values, text_vectors, options.epochs)
    if options.page:
        lines = ["| groups | naive ms | ours ms | faster by | gradient error: naive / ours |"]
        lines += ["|---|---|---|---|---|", *table]
        head = (
            "# A training step of GPCache-F at ImageNet 16-shot size\n\nMade by `python "
            f"benchmarks/training_step.py --epochs {options.epochs} --page …` on one {name} with "
            f"torch {torch.__version__}: n = {len(start):,}, d = {width}, c = {classes}, batch "
            f"{batch}, float32, synthetic features of that shape (times, no accuracies). *naive* "
            "inverts K + noise·I and lets autograd differentiate the inverse, one group after the "
            "other; both in the same run, medians. Gradient errors are relative to float64.\n\n"
        )
        Path(options.page).write_text(head + "\n".join(lines) + f"\n\n{training}\n")


def train_exactly(
    start: Tensor, views: Tensor, labels: Tensor, values: Tensor, text_vectors: Tensor, epochs: int
) -> str:
    """Exact GPCache-F through the library's training loop."""
    from gpcache.methods.training import Schedule, train

    keys, exact = start.clone().requires_grad_(), partial(ExactPrecision, None)
    text = 100 * views @ text_vectors.T
    begun = time.perf_counter()
    losses = train(
        [keys],
        lambda rows: our_logits(exact, keys, views[rows], values, text[rows]),
        labels,
        Schedule(epochs=epochs),
    )
    seconds = time.perf_counter() - begun
    change = f"training loss {losses[0]:.3f} → {losses[-1]:.3f}"
    sentence = f"Exact GPCache-F, {epochs} epochs: {seconds:.1f} s, {change}."
    print(sentence)
    return sentence


if __name__ == "__main__":
    main()
