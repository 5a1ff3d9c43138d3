"""Formats evaluations as rows for `print_rows`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpcache.cli.output import percent
from gpcache.images.records import plural
from gpcache.similarity.projection import origin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gpcache.model.classifier import ImageClassifier
    from gpcache.model.evaluation import Evaluation, Separation

TextRows = dict[str, str | list[str]]


def model_as_json(classifier: "ImageClassifier", folder: Path) -> dict[str, Any]:
    """A saved model as `--json` prints it."""
    held_out = classifier.held_out()
    return {
        "model": str(folder),
        "classes": classifier.classes,
        "images": classifier.n_images,
        "held_out": None if held_out is None else held_out.summary(),
    }


def model_rows(classifier: "ImageClassifier", folder: Path, **details: str) -> TextRows:
    """A saved model as rows: its size, the details, and its held-out figures."""
    size = f"{plural(len(classifier.classes), 'class')}, {plural(classifier.n_images, 'image')}"
    made_of = f"encoder {classifier.encoder_name}, method {classifier.method_name}"
    rows: TextRows = {"model": f"{folder}: {size}, {made_of}", **details}
    projection = getattr(classifier.model, "projection", None)
    if projection is not None:
        rows["projection"] = origin(projection.facts)
    return rows | held_out_figures(classifier)


def held_out_figures(classifier: "ImageClassifier") -> TextRows:
    """The held-out figures of the training images, or the reason why there are none."""
    held_out = classifier.held_out()
    if held_out is not None:
        return evaluation_figures(held_out)
    reason = "no class has two images, so none could be held out"
    if len(classifier.classes) < 2:
        reason = "there is only one class"
    if not hasattr(classifier.model, "loo_"):
        reason = "this method learns nothing from images; run gpcache evaluate on labelled images"
    return {"accuracy": f"not known: {reason}"}


def evaluation_figures(evaluation: "Evaluation") -> TextRows:
    """Accuracy, calibration and mistakes, with the data and protocol they belong to."""
    low, high = evaluation.interval
    interval = f"95 % interval {100 * low:.1f} – {100 * high:.1f}"
    mistakes = [f"{c.truth} → {c.answer} {c.images}×" for c in evaluation.confusions()]
    return {
        "data": f"{evaluation.data}, n = {len(evaluation):,}",
        "protocol": evaluation.protocol,
        "accuracy": f"{percent(evaluation.accuracy)} ({interval})",
        "calibration": f"ECE {percent(evaluation.ece)}, NLL {evaluation.nll:.3f}",
        "confused": mistakes or "none",
    }


def doubts(evaluation: "Evaluation", coverage: float | None) -> TextRows:
    """The refused images, and how well confidence and familiarity separate errors and unknowns."""
    answered, unknown = ~evaluation.rejected, evaluation.unknown
    rejected = _rejected(evaluation.rejected)
    if answered.any():
        right = percent(evaluation.correct[answered].mean())
        rejected += f"; of the others {right} are right"
    separation = _separation("right answers from wrong ones", evaluation.error_separation)
    rows: TextRows = {"rejected": rejected, "selective": f"AURC {evaluation.aurc:.4f}{separation}"}
    if coverage is not None:
        share, right = percent(coverage), percent(evaluation.accuracy_at(coverage))
        rows["coverage"] = f"of the most confident {share} of the answers {right} are right"
    if unknown is not None:
        separation = _separation("known images from these", evaluation.unknown_separation)
        rows["unknown"] = (
            f"n = {len(unknown.rejected):,}, {_rejected(unknown.rejected)}{separation}"
        )
    return rows


def _rejected(rejected: "NDArray[np.bool_]") -> str:
    share = rejected.mean() if len(rejected) else 0.0
    return f"{percent(share)} answered with 'I don't know'"


def _separation(kinds: str, figures: "Separation | None") -> str:
    if figures is None:
        return ""
    return f"; separating {kinds}: AUROC {percent(figures.auroc)}, FPR95 {percent(figures.fpr95)}"
