"""Tables that several commands print alike."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from gpcache.cli.options import percent, printable
from gpcache.images.records import Refused, plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gpcache.model.classifier import ImageClassifier
    from gpcache.model.evaluation import Evaluation, Told

SHOWN = 50
NOTES = 20


def print_refused(refused: Sequence[Refused]) -> None:
    """Refused files and their reasons, on stderr."""
    if not refused:
        return
    names = [printable(file.name) for file in refused[:SHOWN]]
    width = min(60, max(map(len, names)))
    typer.echo(f"{len(refused):,} refused:", err=True)
    for name, file in zip(names, refused, strict=False):
        typer.echo(f"  {name:<{width}}  {printable(file.reason)}", err=True)
    if len(refused) > SHOWN:
        typer.echo(f"  … and {len(refused) - SHOWN:,} more.", err=True)


def listed(refused: Sequence[Refused]) -> list[dict[str, str]]:
    """Refused files and their reasons, as JSON holds them."""
    return [{"path": file.name, "reason": file.reason} for file in refused]


def print_notices(notices: Sequence[str]) -> None:
    """What the user should know, on stderr."""
    for notice in notices[:NOTES]:
        typer.echo(f"note: {printable(notice)}", err=True)
    if len(notices) > NOTES:
        typer.echo(f"note: … and {len(notices) - NOTES:,} notes more.", err=True)


def counts(classifier: "ImageClassifier") -> str:
    """How many classes and images a model has."""
    classes, images = len(classifier.classes), len(classifier.examples)
    return f"{classes:,} {'class' if classes == 1 else 'classes'}, {plural(images, 'image')}"


def held_out_figures(classifier: "ImageClassifier") -> dict[str, str | list[str]]:
    """What a model says of its training images, or why it can say nothing."""
    held_out = classifier.held_out()
    if held_out is not None:
        return figures(held_out)
    reason = "no class has two images, so that none could be held out"
    if len(classifier.classes) < 2:
        reason = "there is but one class"
    if not hasattr(classifier.model, "loo_"):
        reason = "this method learns nothing from images; evaluate needs others with labels"
    return {"accuracy": f"not known: {reason}"}


def figures(evaluation: "Evaluation") -> dict[str, str | list[str]]:
    """An evaluation in words: no figure without its data and protocol."""
    low, high = evaluation.interval
    rows: dict[str, str | list[str]] = {
        "data": f"{evaluation.data}, n = {len(evaluation):,}",
        "protocol": evaluation.protocol,
        "accuracy": f"{percent(evaluation.accuracy)} (95 % interval {100 * low:.1f} – "
        f"{100 * high:.1f})",
        "calibration": f"ECE {percent(evaluation.ece)}, NLL {evaluation.nll:.3f}",
    }
    mistakes = [f"{c.truth} → {c.answer} {c.images}×" for c in evaluation.confusions()]
    return rows | {"confused": mistakes or "none"}


def doubts(evaluation: "Evaluation", coverage: float | None) -> dict[str, str | list[str]]:
    """What the model refuses, what its confidence is worth, and how it meets unknown images."""
    answered = ~evaluation.rejected
    rows: dict[str, str | list[str]] = {
        "rejected": _refused(evaluation.rejected)
        + (
            f"; of the others {percent(evaluation.correct[answered].mean())} are right"
            if answered.any()
            else ""
        ),
        "selective": f"AURC {evaluation.aurc:.4f}"
        + _told("right answers from wrong ones", evaluation.errors_told),
    }
    if coverage is not None:
        rows["coverage"] = (
            f"of the most confident {percent(coverage)} of the answers "
            f"{percent(evaluation.accuracy_at(coverage))} are right"
        )
    if (unknown := evaluation.unknown) is not None:
        rows["unknown"] = f"n = {len(unknown.rejected):,}, {_refused(unknown.rejected)}" + _told(
            "known images from them", evaluation.unknown_told
        )
    return rows


def _refused(rejected: "NDArray[np.bool_]") -> str:
    share = rejected.mean() if len(rejected) else 0.0
    return f"{percent(share)} answered by 'I don't know'"


def _told(kinds: str, told: "Told | None") -> str:
    if told is None:
        return ""
    return f"; telling {kinds}: AUROC {percent(told.auroc)}, FPR95 {percent(told.fpr95)}"
