"""GPCache with the softmax likelihood on any number of rows, in explicit features.

    logits = alpha · k(x, landmarks) A + discriminant · linear discriminant(x) + gain · zero_shot(x)

The landmarks are the axes of the whitened space, which carry the linear part of the kernel, and a
stratified sample of the rows. Shrinkage, β, τ and the trust in the text are chosen by the exact
search (`softmax_search`) on a part of the rows. The weights, the temperature and the held-out
figures come from a model of all rows but a held-out sample, which is let in afterwards. Classes of
many rows may have several modes, which few landmarks cannot tell apart: the discriminant gets the
means of clusters within the classes, where the held-out rows say that it pays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp.discriminant import Discriminant
from gpcache.gp.explicit import HISTORY, ExplicitPrecision, Prior, core_of, explicit_map
from gpcache.gp.feature_maps import FeatureMap, Moments
from gpcache.methods.cache.explicit_choice import choose_for_all, held_out_rows, part_rows
from gpcache.methods.cache.explicit_modes import Modes
from gpcache.methods.cache.explicit_rows import FeatureRows
from gpcache.methods.cache.held_out import (
    N_REPORT_FOLDS,
    HeldOutLogits,
    HeldOutReport,
    cross_fitted,
)
from gpcache.methods.cache.memory import softmax_bytes
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.passes import ModesPass, MomentsPass, ProductsPass
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.regression import held_out_variance
from gpcache.methods.cache.row_stream import BATCH_ELEMENTS, RowStream, stratified
from gpcache.methods.cache.search import Choice, SearchOptions
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.softmax import class_frequency, degrees_of_freedom
from gpcache.methods.cache.softmax_folds import SoftmaxSetting
from gpcache.methods.cache.softmax_search import SoftmaxSearch
from gpcache.methods.cache.softmax_weights import WeightFit, combined, text_gain
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.devices import ensure_memory
from gpcache.support.progress import progress_bar

# Nats a row to which many rows are solved: for the weights, and for the model in float32.
WEIGHED_TOLERANCE, MANY_TOLERANCE = 1e-3, 1e-4
# Clusters in each class that are tried, and the rows that one has in the mean before it is.
MODES, LEAST_PER_MODE = (2, 4, 8), 10
# Rows of a batch at least, where that takes no more than four times the usual memory.
WIDE_ROWS = 2_048
# Batches of a pass at least: machines may share them.
LEAST_BATCHES = 16


class Streamed(NamedTuple):
    """What a model knows of the rows that it does not keep, beside its coefficients.

    Their number, Σ k(L, z) k(z, L) (D, D), and the counts (c · k,) and means (c · k, d) of the
    `n_modes` clusters of each class. `n_part` rows chose the hyper-parameters.
    """

    n_rows: int
    n_part: int
    products: Tensor
    counts: Tensor
    means: Tensor
    n_modes: int = 1

    @property
    def class_counts(self) -> Tensor:
        """The number of rows of each class (c,)."""
        return self.counts.view(-1, self.n_modes).sum(1)


class Learned(NamedTuple):
    """A fit: the model, what it knows of its rows, and what a held-out sample of them said.

    `kept` are the held-out rows, of the numbers `rows` (k,) among all.
    """

    model: CacheModel
    streamed: Streamed
    kept: Shots
    rows: Tensor
    calibration: Calibration
    search: dict[str, NDArray[Any]]
    report: HeldOutReport
    novelty: NDArray[np.float64]


def learn(
    rows: RowStream,
    recipe: Recipe,
    settings: SearchOptions,
    validation: Shots | None,
    *,
    n_features: int,
    name: str,
) -> Learned:
    """Choose on a part, fit on all rows, weigh and calibrate on held-out ones."""
    reserved = _ensure_memory(rows, n_features)
    size = batch_rows(rows.n_classes, n_features, rows.labels.device)
    size = min(size, -(-len(rows) // LEAST_BATCHES))
    step = MomentsPass(recipe.space.projection, rows.n_classes)
    moments = Moments(*rows.total(step, size))
    held = held_out_rows(rows, recipe.seed, validation)
    rest = torch.nonzero(rows.mask(held)).flatten()
    kept, without = rows.shots(held), moments
    if len(held):
        without = moments.without(step.total([(kept.features, kept.labels)]))
    chosen, part = choose_for_all(rows, rest, without, recipe, settings, validation, name=name)
    choice = chosen.choice
    recipe = recipe.at(choice.shrinkage, choice.diagonal)
    landmarks = rows.shots(rest[stratified(rows.labels[rest], n_features, recipe.seed)]).features
    with progress_bar(f"{name}: passes over {len(rows):,} rows", unit="pass") as bar:
        fit = _Fit(rows, recipe, landmarks, choice, len(part), size, bar.update, reserved)
        if not len(held):
            return _on_few(fit, moments, chosen, settings, validation)
        known = rows.labels_alone(held)
        first = replace(fit, tolerance=WEIGHED_TOLERANCE)
        model, _ = first.solve(without, held, None)
        novelty = model.variance(kept.features).amin(1).double().cpu().numpy()
        weighed = _weigh(known, model, kept, settings)
        start, modes = model.coefficients, cast(Discriminant | None, None)
        most = known.per_class / LEAST_PER_MODE if model.discriminant is not None else 0
        numbers = [one for one in MODES if one <= most]
        clusters = Modes(rows, size, bar.update)
        for tried in clusters.find(model.feature_map, rest, held, numbers):
            several = _weigh(known, replace(model, discriminant=tried), kept, settings)
            gain = weighed.losses - several.losses
            # More clusters must pay by one standard error, and by what the solver leaves open.
            error = float(gain.std()) / len(gain) ** 0.5
            if float(gain.mean()) > max(error, WEIGHED_TOLERANCE):
                weighed, modes = several, tried
        tolerance = MANY_TOLERANCE if rows.dtype == torch.float32 else None
        fit = replace(fit, choice=weighed.choice, tolerance=tolerance)
        model, streamed = fit.solve(moments, None, start)
        if modes is not None:
            model, streamed = _with_modes(model, streamed, modes, clusters)
    protocol = f"{len(held):,} of {len(rows):,} shots held out; {len(part):,} others chose"
    logits = HeldOutLogits(weighed.logits, torch.arange(len(held)), protocol)
    report = HeldOutReport.of(kept.labels.cpu(), logits, weighed.nested)
    calibration = fit_calibration(weighed.logits, kept.labels)
    return Learned(model, streamed, kept, held, calibration, chosen.search, report, novelty)


def _on_few(
    fit: _Fit,
    moments: Moments,
    chosen: SoftmaxSearch,
    settings: SearchOptions,
    validation: Shots | None,
) -> Learned:
    """Where the search has seen all rows, or a validation set: what it found holds for all."""
    rows = fit.rows
    model, streamed = fit.solve(moments, None, None)
    kept = torch.arange(len(rows) if streamed.n_part == len(rows) else 0)
    shots, calibration = rows.shots(kept.to(rows.labels.device)), Calibration()
    protocol = "none: chosen on a validation set" if validation is not None else "none: one shot"
    report = HeldOutReport.empty(len(kept), rows.n_classes, protocol)
    novelty = np.full(len(kept), np.nan)
    if validation is not None:
        if streamed.n_part < len(rows):
            weighed = _weigh(rows.labels_alone(), model, validation, settings)
            model = replace(model, choice=weighed.choice)
        calibration = fit_calibration(model.logits(validation.features), validation.labels)
    elif chosen.held_out is not None:
        held_out = chosen.held_out._replace(protocol=f"{chosen.held_out.protocol}, by exact models")
        if chosen.calibrates:
            calibration = fit_calibration(held_out.logits, shots.labels[held_out.rows])
        report = HeldOutReport.of_shots(shots, held_out, fit.recipe.seed, chosen.nested)
        novelty = held_out_variance(fit.recipe, shots, fit.choice)
    return Learned(model, streamed, shots, kept, calibration, chosen.search, report, novelty)


@dataclass(frozen=True)
class _Fit:
    """What a solve needs beside the moments of its rows.

    `landmarks` are features (k, d), `size` is the rows of a batch, `reserved` are the bytes that
    the solver takes.
    """

    rows: RowStream
    recipe: Recipe
    landmarks: Tensor
    choice: Choice
    n_part: int
    size: int
    look: Callable[[], object]
    reserved: int
    tolerance: float | None = None

    def solve(
        self, moments: Moments, held: Tensor | None, start: Tensor | None
    ) -> tuple[CacheModel, Streamed]:
        """The model of all rows but those of the numbers `held`; the moments are theirs."""
        rows, choice = self.rows, self.choice
        feature_map = self.recipe.space.fit_moments(moments, self.landmarks.dtype)
        own = feature_map(self.landmarks)
        axes = torch.eye(own.shape[1], dtype=own.dtype, device=own.device)
        landmarks = torch.cat([axes, own])
        known = rows.labels_alone(held)
        terms = rows.text, known.absent, choice.offset, class_frequency(known)
        space = ProductsPass(feature_map, landmarks, choice.beta)
        features = FeatureRows(rows, space, self.size, held, self.reserved)
        products = features.products()
        if start is None:
            start = landmarks.new_zeros(len(landmarks), rows.n_classes)
        solved = explicit_map(
            lambda values: features.loss(values, terms),
            Prior.of(core_of(landmarks, choice.beta), choice.tau, start),
            products,
            n_rows=len(known), start=start, tolerance=self.tolerance, look=self.look,
        )  # fmt: skip
        counts, means = moments.counts.to(own), moments.class_means.to(own)
        streamed = Streamed(len(known), self.n_part, products, counts, means)
        precision = _precision(landmarks, choice, streamed)
        return built(feature_map, precision, solved.values, streamed, rows.text, choice), streamed


def _with_modes(
    model: CacheModel, streamed: Streamed, modes: Discriminant, clusters: Modes
) -> tuple[CacheModel, Streamed]:
    """The model with the means of the rows nearest to each mode."""
    n_modes = modes.n_modes
    ((means, counts),) = clusters.nearest(model.feature_map, [modes], None)
    discriminant = Discriminant.of_means(means, counts, model.feature_map, n_modes)
    streamed = streamed._replace(counts=counts, means=means, n_modes=n_modes)
    return replace(model, discriminant=discriminant), streamed


def added(model: CacheModel, streamed: Streamed, rows: RowStream) -> tuple[CacheModel, Streamed]:
    """The model with further rows, which are read in batches, at the same choice.

    The rows before them are not seen again: their posterior is the prior of the new ones.
    """
    choice, landmarks = model.choice, model.precision.keys
    assert model.coefficients is not None
    size = min(len(rows), batch_rows(rows.n_classes, len(landmarks), rows.labels.device))
    reserved = _ensure_room_to_add(rows, len(landmarks), size)
    modes = model.discriminant or Discriminant.of_means(
        streamed.means, streamed.counts, model.feature_map, streamed.n_modes
    )
    (further,) = rows.total(ModesPass(model.feature_map, [modes]), size)
    counts = streamed.counts + further[:, -1].to(streamed.counts)
    sums = streamed.means * streamed.counts[:, None] + further[:, :-1].to(streamed.means)
    space = ProductsPass(model.feature_map, landmarks, choice.beta)
    features = FeatureRows(rows, space, size, None, reserved)
    products = features.products()
    known = streamed._replace(
        n_rows=streamed.n_rows + len(rows),
        products=streamed.products + products,
        counts=counts,
        means=sums / counts.clamp(min=1)[:, None],
    )
    terms = prior_terms(model, known)
    prior = Prior.of(core_of(landmarks, choice.beta), choice.tau, model.coefficients)
    solved = explicit_map(
        lambda values: features.loss(values, terms),
        prior.after(streamed.products, model.coefficients),
        products,
        n_rows=len(rows),
        start=model.coefficients,
    )
    precision = _precision(landmarks, choice, known)
    return built(model.feature_map, precision, solved.values, known, model.text, choice), known


def prior_terms(
    model: CacheModel, streamed: Streamed
) -> tuple[Tensor | None, Tensor, float, Tensor]:
    """What `prior_logits` needs: the text, the absent classes, the gain and the frequencies."""
    counts = streamed.class_counts
    frequency = torch.where(counts > 0, (counts / counts[counts > 0].mean()).log(), 0.0)
    return model.text, counts == 0, model.choice.offset, frequency


def _precision(landmarks: Tensor, choice: Choice, streamed: Streamed) -> ExplicitPrecision:
    return ExplicitPrecision.of(
        landmarks, choice.beta, choice.noise, streamed.products, len(streamed.class_counts)
    )


def built(
    feature_map: FeatureMap,
    precision: ExplicitPrecision,
    coefficients: Tensor,
    streamed: Streamed,
    text: Tensor | None,
    choice: Choice,
) -> CacheModel:
    """The model of coefficients (D, c) and the classes' means."""
    discriminant = None
    if choice.discriminant:
        discriminant = Discriminant.of_means(
            streamed.means, streamed.counts, feature_map, streamed.n_modes
        )
    return CacheModel(feature_map, precision, text, choice, coefficients, discriminant)


class _Weighed(NamedTuple):
    """The choice with its weights; probabilities (nested), logits (k, c), losses (k,) of rows."""

    choice: Choice
    nested: Tensor
    logits: Tensor
    losses: Tensor


def _weigh(known: Shots, model: CacheModel, asked: Shots, settings: SearchOptions) -> _Weighed:
    """Weights on rows that the model has not seen; `known` are those it has."""
    choice = model.choice
    scores = model.discriminant is not None
    fit = WeightFit(known, settings, text_gain(asked, settings), scores, False, known.per_class)
    setting = SoftmaxSetting(
        choice.shrinkage, choice.beta, choice.tau * min(choice.beta, 1.0), 0.0, choice.diagonal
    )
    unscaled = model.feature_map.unscaled(asked.features)
    parts = [model.posterior(asked.features).mean]
    if model.discriminant is not None:
        parts.append(model.discriminant.scores(unscaled) * degrees_of_freedom(known))
    if asked.zero_shot is not None:
        parts.append(asked.zero_shot)
    stacked = torch.stack([part - part.mean(1, keepdim=True) for part in parts])
    labels = asked.labels

    def logits_at(_: int, some: Tensor) -> Tensor:
        return combined(fit.fit(setting, stacked[:, some], labels[some]), stacked)

    fold = torch.arange(len(labels), device=labels.device) % N_REPORT_FOLDS
    nested = cross_fitted(logits_at, dict.fromkeys(torch.unique(fold).tolist(), 0), fold, labels)
    weights = fit.fit(setting, stacked, labels)
    logits = combined(weights, stacked)
    values = weights.tolist()
    choice = replace(
        choice,
        alpha=values[0],
        discriminant=values[1] * (degrees_of_freedom(known) + len(asked)) if scores else 0.0,
        gain=values[-1] if asked.zero_shot is not None else choice.gain,
    )
    likely = nested.gather(1, labels[:, None]).clamp(min=torch.finfo(nested.dtype).tiny)
    return _Weighed(choice, nested, logits, -likely.log()[:, 0])


def batch_rows(n_classes: int, n_landmarks: int, device: torch.device) -> int:
    """Rows of a batch."""
    elements = BATCH_ELEMENTS.get(device.type, BATCH_ELEMENTS["cuda"])
    rows = elements // max(n_classes, n_landmarks)
    # Every batch adds a gradient of features × classes, which must not take longer than its rows.
    return max(256, rows, min(WIDE_ROWS, 4 * rows))


def needed_bytes(
    n_classes: int, width: int, n_features: int, part: int, device: torch.device
) -> int:
    """Bytes at the peak of a fit whose exact search takes `part` rows."""
    solve = _solve_bytes(n_classes, n_features + width, batch_rows(n_classes, n_features, device))
    search = softmax_bytes(part, width, min(n_classes, part))
    modes = (8 + 2 * 4) * sum(MODES) * n_classes * width
    return max(search, solve, modes) + 8 * (4 * n_classes * width)


def _solve_bytes(n_classes: int, n_features: int, batch: int) -> int:
    """Bytes of the solver, and of a batch of this many rows."""
    solver = 4 * (2 * HISTORY + 11) * n_features * n_classes + 8 * 8 * n_features * n_features
    return solver + 4 * 6 * batch * max(n_classes, n_features)


def _ensure_memory(rows: RowStream, n_features: int) -> int:
    """Refuse before anything is allocated what the device has no room for; the bytes needed."""
    c, width, device = rows.n_classes, rows.width, rows.labels.device
    needed = needed_bytes(c, width, n_features, min(part_rows(rows), len(rows)), device)
    ensure_memory(
        needed,
        device,
        what=f"A fit of {len(rows):,} shots of {c:,} classes in {n_features + width:,} explicit "
        "features",
        remedy="Use fewer of them: approximation=Explicit(n_features=…).",
    )
    return needed


def _ensure_room_to_add(rows: RowStream, n_landmarks: int, batch: int) -> int:
    """Refuse an update that the device has no room for; the bytes needed."""
    c, device = rows.n_classes, rows.labels.device
    needed = _solve_bytes(c, n_landmarks, batch) + 8 * (4 * c * rows.width)
    ensure_memory(
        needed,
        device,
        what=f"Adding {len(rows):,} shots to a model of {c:,} classes in {n_landmarks:,} explicit "
        "features",
        remedy="Fit again with fewer of them: approximation=Explicit(n_features=…).",
    )
    return needed
