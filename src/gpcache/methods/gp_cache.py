"""GPCache and GPCache-F (Ding et al., 2024): a Gaussian-process posterior in place of the cache.

    logits = gain · s f W + α · k(f) (K + noise·I)⁻¹ V / variance(f)^η

with κ(x, y) = exp(−β(1 − φ(x)ᵀφ(y))). The paper has gain 1, V = Y, and φ raw or a projection that
was learned from unlabelled images (`GPCacheClassifier.paper`). The defaults differ where it
measured better (docs/defaults.md): V = Y − softmax(gain · s f W), so that far from all shots the
answer falls back to the text, as far as held-out shots found the text trustworthy, with V = 0 for
classes that have no shot; φ whitened; η = 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from gpcache.errors import DataError, ProtocolError
from gpcache.gp import PRECISIONS, ExactPrecision, Precision, Unweighted
from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.base import extends_options
from gpcache.methods.cache import softmax
from gpcache.methods.cache.choosing import folds_protocol
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.model import CacheModel, HeldOutReport
from gpcache.methods.cache.search import Auto, Choice, Criterion, Settings
from gpcache.methods.cache.shots import Belief, Evidence, Shots
from gpcache.methods.cache.trainable import Move, move_classes, move_keys, move_metric
from gpcache.methods.cache.training import TrainedCacheMixin
from gpcache.methods.text_prior import TextPrior
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.checks import is_auto, one_of, positive, whole
from gpcache.support.progress import progress_bar

# The variance that tells how new a row is takes this noise, whatever the likelihood.
NOVELTY_NOISE = 1.0

Likelihood = Literal["softmax", "gaussian"]
PrecisionName = Literal["exact", "grouped", "nystrom", "fourier", "class_mean"]


class GPCacheClassifier(CacheClassifier):
    """Gaussian-process cache on image features; every choice is made on held-out shots.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes, matched by name. Without it the shots speak alone.
    likelihood : {"softmax", "gaussian"}, default="softmax"
        "softmax" treats labels as classes: the posterior mode of a Gaussian process, a linear
        discriminant and the text are added with non-negative weights. "gaussian" regresses on
        the labels, as the paper does.
    alpha, gain, discriminant : float or "auto"
        Weights of the cache, the text and the discriminant.
    beta, tau, shrinkage : float or "auto"
        Sharpness of the kernel, variance of the prior (softmax), shrinkage of the whitening
        (4 with "gaussian", where it is not chosen).
    noise, eta : float or "auto"
        Noise variance and exponent of the variance ("gaussian"; `eta` acts only with
        `confidence_scaling`). With "softmax" the noise shapes `novelty` alone.
    prior : {"residual", "zero_shot"}
        With "gaussian": regress on what the text leaves unexplained, or on the labels (the paper).
    kernel_space : {"whitened", "centred", "raw"}
        The space of the kernel.
    projection : callable or array of shape (d, d), optional
        The similarity projection, applied first: a matrix P means normalise(P f + f).
    precision : {"exact", "grouped", "nystrom", "fourier", "class_mean"}
        The exact posterior, or an approximation: `n_groups` of classes, `n_landmarks` in all, or
        `n_features`. `cross` says whether regression takes a query's kernel row as it is
        ("exact") or approximates it, too ("consistent").
    precision_weighting, confidence_scaling : bool
        The paper's W and C ("gaussian").
    criterion : {"nll", "accuracy", "marginal_likelihood"}
        What the choice minimises or maximises.
    selection : {"auto", "loo", "folds", "validation"}
        Rows to choose on: the validation set if one is given to `fit`, else folds of the shots
        (leave-one-out for regression in a space that no label shaped). "validation" refuses to
        fit without one.
    strategy : {"adaptive", "grid"}
        Search from the shipped values, pulled towards them while shots are few, or the whole grid
        ("gaussian").
    n_folds : int
        Folds of the shots; half as many choose hyper-parameters.
    device, dtype : "auto" or torch's
        "auto": a GPU in float32 if there is one, else the CPU in float64.
    random_state : int
        Seed of folds, groups, landmarks and frequencies.

    Attributes
    ----------
    alpha_, beta_, gain_, tau_, shrinkage_, discriminant_, noise_, eta_, temperature_ : float
        The hyper-parameters in use.
    label_noise_ : float
        Estimated share of wrong labels among the shots. Where it matters, each shot counts as
        much as its label is believed.
    loo_ : HeldOutReport
        Held-out logits, accuracy, NLL and ECE of the shots, and how they were held out.
    search_ : dict of arrays
        Every setting that was tried, the choice first; `at_edge` marks those at a limit of the
        search.
    classes_ : array of shape (n_classes,)
        Class names in sorted order.
    """

    @extends_options(CacheClassifier)
    def __init__(
        self,
        *,
        noise: float | Auto = "auto",
        eta: float | Auto = "auto",
        gain: float | Auto = "auto",
        prior: Literal["residual", "zero_shot"] = "residual",
        kernel_space: Literal["raw", "centred", "whitened"] = "whitened",
        precision: PrecisionName = "exact",
        n_groups: int = 8,
        n_landmarks: int | None = None,
        n_features: int = 1024,
        cross: Literal["exact", "consistent"] = "exact",
        precision_weighting: bool = True,
        confidence_scaling: bool = False,
        likelihood: Likelihood = "softmax",
        tau: float | Auto = "auto",
        discriminant: float | Auto = "auto",
        shrinkage: float | Auto = "auto",
        **options: Any,
    ) -> None:
        super().__init__(gain=gain, kernel_space=kernel_space, shrinkage=shrinkage, **options)
        self.likelihood = likelihood
        self.tau = tau
        self.discriminant = discriminant
        self.noise = noise
        self.eta = eta
        self.prior = prior
        self.precision = precision
        self.n_groups = n_groups
        self.n_landmarks = n_landmarks
        self.n_features = n_features
        self.cross = cross
        self.precision_weighting = precision_weighting
        self.confidence_scaling = confidence_scaling

    @classmethod
    def paper(cls, text_prior: TextPrior | None = None, **options: Any) -> Self:
        """The paper to the letter: raw space, labels as targets, η on, validation accuracy."""
        settings: dict[str, Any] = {
            "likelihood": "gaussian",
            "kernel_space": "raw",
            "prior": "zero_shot",
            "confidence_scaling": True,
            "gain": 1.0,
            "criterion": "accuracy",
            "selection": "validation",
            "strategy": "grid",
        }
        return cls(text_prior=text_prior, **(settings | options))

    def _precision(self) -> tuple[type[Precision], dict[str, Any]]:
        one_of("precision", self.precision, tuple(PRECISIONS), owner=self)
        one_of("cross", self.cross, ("exact", "consistent"), owner=self)
        one_of("prior", self.prior, ("residual", "zero_shot"), owner=self)
        for name in ("n_groups", "n_features", "n_landmarks"):
            value = getattr(self, name)
            if name != "n_landmarks" or value is not None:
                whole(name, value, least=1)
        if not self.precision_weighting:
            if self.confidence_scaling:
                raise DataError(
                    "confidence_scaling needs precision_weighting: a plain kernel sum has no "
                    "variance to divide by."
                )
            return Unweighted, {}
        options = {
            "n_groups": self.n_groups,
            "n_landmarks": self.n_landmarks,
            "n_features": self.n_features,
            "cross": self.cross,
            "seed": int(self.random_state),
        }
        return PRECISIONS[self.precision], options

    def _numbers(self) -> dict[str, float | Auto]:
        if not is_auto(self.eta):
            positive("eta", self.eta, owner=self, allow_zero=True)
        eta = self.eta if self.confidence_scaling else 0.0
        return super()._numbers() | {"noise": self.noise, "eta": eta}

    def _residual(self) -> bool:
        return self.prior == "residual" and not self._is_softmax

    # The softmax likelihood: `methods.cache.softmax` in the place of regression.

    @property
    def _is_softmax(self) -> bool:
        return self.likelihood == "softmax"

    def _settings(self) -> Settings:
        one_of("likelihood", self.likelihood, ("softmax", "gaussian"), owner=self)
        for name, zero in (("tau", False), ("discriminant", True), ("shrinkage", False)):
            if not is_auto(getattr(self, name)):
                positive(name, getattr(self, name), owner=self, allow_zero=zero)
        settings = super()._settings()
        if self._is_softmax:
            self._refuse_regression()
        return settings

    def _refuse_regression(self) -> None:
        """One sentence for each option that only regression has."""
        others = {
            "prior='zero_shot'": self.prior == "zero_shot",
            "confidence_scaling=True": self.confidence_scaling,
            "precision_weighting=False": not self.precision_weighting,
            "selection='loo'": self.selection == "loo",
            "strategy='grid'": self.strategy == "grid",
            "criterion='marginal_likelihood'": self.criterion == "marginal_likelihood",
        }
        for option, asked in others.items():
            if asked:
                raise ProtocolError(
                    f"{option} belongs to regression on the labels: add likelihood='gaussian'."
                )

    def _select(self, settings: Settings, validation: Shots | None) -> Evidence | None:
        if not self._is_softmax:
            return super()._select(settings, validation)
        given = softmax.Given(
            self.alpha,
            self.beta,
            self.tau,
            self.shrinkage,
            self.gain,
            self.discriminant,
            by_accuracy=self.criterion == "accuracy",
        )
        # The search is content with float32; the model itself is solved in the dtype asked for.
        shots = self._shots.to(torch.float32)
        folds = self._softmax_folds() if validation is None else []
        if validation is not None:
            everything = torch.arange(len(shots), device=shots.labels.device)
            folds = [softmax.Fold(shots, validation.to(torch.float32), everything, everything[:0])]
        with progress_bar(f"{type(self).__name__}: choosing", unit="setting") as bar:
            found = softmax.choose(
                self._recipe.to(torch.float32, given=self._dtype),
                shots,
                given,
                folds,
                validated=validation is not None,
                look=bar.update,
            )
        noise = NOVELTY_NOISE if is_auto(self.noise) else float(self.noise)
        self._chosen: softmax.Chosen | None = replace(
            found, choice=replace(found.choice, noise=noise)
        )
        weights = found.shot_weights
        if weights is not None:
            belief = Belief(weights.to(self._shots.features), self._shots.labels)
            self._shots = replace(self._shots, belief=belief)
        self._accept([self._chosen.choice])
        self.search_ = softmax.search_table(found, self._chosen.choice)
        return None

    def _softmax_folds(self) -> list[softmax.Fold]:
        """Folds of the shots in float32; none where held-out shots could not speak for all."""
        if self._is_silent():
            return []
        shots = self._shots.to(torch.float32)
        return [
            softmax.Fold(shots[train], shots[held], train, held)
            for train, held in self._fold_rows(self.n_folds // 2)
        ]

    def _accept(self, seen: list[Choice]) -> None:
        super()._accept(seen)
        if self._is_softmax:
            choice = seen[0]
            self.tau_, self.shrinkage_ = choice.tau, choice.shrinkage
            self.discriminant_, self.label_noise_ = choice.discriminant, choice.label_noise
            self._recipe = self._recipe.at(choice.shrinkage, choice.diagonal)

    def _build(self, shots: Shots) -> CacheModel:
        if not self._is_softmax:
            return super()._build(shots)
        return softmax.build(self._recipe, shots, self._text, self._choice)

    def _finish(self, validation: Shots | None, evidence: Evidence | None) -> None:
        if not self._is_softmax:
            super()._finish(validation, evidence)
            return
        chosen, self._chosen = self._chosen, None
        assert chosen is not None
        self._model = softmax.build(
            self._recipe, self._shots, self._text, self._choice, chosen.start
        )
        self._report = self._novelty = None
        self._accept_calibration(Calibration())
        if chosen.held_out is None:
            return
        logits = chosen.held_out.logits
        if validation is not None:
            logits = self._model.logits(validation.features)
            self._accept_calibration(fit_calibration(logits, validation.labels))
            return
        folds = self._fold_rows(self.n_folds // 2)
        rows = torch.cat([held for _, held in folds])
        labels, fold = self._shots.labels[rows], self._judged(rows)
        if chosen.calibrates:
            weights = self._shots.weights
            counted = None if weights is None else weights[rows]
            self._accept_calibration(fit_calibration(logits, labels, counted))
        protocol = folds_protocol(len(folds))
        nested = chosen.nested(fold, labels)
        self._report = self._make_report(logits, rows, protocol, nested)

    def _held_out_logits(self, evidence: Evidence | None) -> tuple[Tensor, Tensor, str]:
        folds = self._fold_rows(self.n_folds // 2) if self._is_softmax else []
        if not folds:
            return super()._held_out_logits(evidence)
        return self._logits_in(folds)

    def _logits_in(self, folds: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, str]:
        """Logits of held-out rows at the hyper-parameters in use, their numbers, and how."""
        shots, text = self._shots.to(torch.float32), self._text
        logits = softmax.held_out_logits(
            self._recipe.to(torch.float32, given=self._dtype),
            [softmax.Fold(shots[train], shots[held], train, held) for train, held in folds],
            None if text is None else text.to(torch.float32),
            self._choice,
        )
        return logits, torch.cat([held for _, held in folds]), folds_protocol(len(folds))

    def held_out_in(self, sets: Tensor) -> HeldOutReport:
        """As `loo_`, with rows of one set (n,) held out together: copies, or photos of a burst."""
        if not self._is_softmax or len(torch.unique(sets)) == len(sets):
            return self.loo_
        shots = self._shots
        fold = shots.folds_of_sets(sets.to(shots.labels.device), self.n_folds // 2)
        numbers = torch.unique(fold[fold >= 0]).tolist()
        if not numbers:
            return HeldOutReport.empty(len(shots), shots.n_classes, "none: no class has two shots")
        folds = [(torch.nonzero(fold != k)[:, 0], torch.nonzero(fold == k)[:, 0]) for k in numbers]
        return self._make_report(*self._logits_in(folds))


class PaperGPCacheClassifier(GPCacheClassifier):
    """GPCache as it was published: regression on labels in raw space, divided by variance^η.

    A validation set chooses if one is given to `fit`, else leave-one-out in closed form. Options
    and attributes are those of `GPCacheClassifier`; `GPCacheClassifier.paper` is the same with a
    validation set required.
    """

    @extends_options(GPCacheClassifier)
    def __init__(
        self,
        *,
        likelihood: Literal["gaussian"] = "gaussian",
        kernel_space: Literal["raw", "centred", "whitened"] = "raw",
        prior: Literal["residual", "zero_shot"] = "zero_shot",
        confidence_scaling: bool = True,
        gain: float | Auto = 1.0,
        criterion: Criterion = "accuracy",
        strategy: Literal["adaptive", "grid"] = "grid",
        **options: Any,
    ) -> None:
        super().__init__(
            likelihood=likelihood,
            kernel_space=kernel_space,
            prior=prior,
            confidence_scaling=confidence_scaling,
            gain=gain,
            criterion=criterion,
            strategy=strategy,
            **options,
        )


class GPCacheFClassifier(TrainedCacheMixin, GPCacheClassifier):
    """GPCache, trained on its own shots and, if given, on augmented views of them.

    Parameters
    ----------
    trains : "keys", "metric" or "classes"
        What moves: every key (the paper), a low-rank metric of keys and queries
        normalise(z + z A B) of `rank`, or one residual for each class, shared by its keys and text.
    loss : "plain" or "leave_one_out"
        Whether a query may see its own key (the paper) or is answered without it, in closed form;
        the latter needs the exact posterior.
    pull : float
        Weight of the mean squared way that the parameters have gone, per shot.
    precision_gradient : bool
        Whether (K + noise·I)⁻¹ is differentiated; False is the paper's *nograd*.
    epochs, batch_size, learning_rate, weight_decay, epsilon : of AdamW with a cosine schedule.
    stopping : "held_out" or "last"
        Whether held-out folds of the shots (or the validation set) say when to stop, or the last
        epoch counts.
    calibrate : bool
        Whether to train anew in folds of the shots: for the stop, the temperature and `loo_`.
    **options : everything that `GPCacheClassifier` takes.

    Attributes
    ----------
    epochs_ : after how many epochs training stopped; 0 is the untrained model.
    training_loss_ : mean loss of each of these epochs.
    """

    @extends_options(GPCacheClassifier, TrainedCacheMixin)
    def __init__(
        self,
        *,
        trains: Literal["keys", "metric", "classes"] = "keys",
        loss: Literal["plain", "leave_one_out"] = "plain",
        rank: int = 32,
        pull: float = 0.0,
        precision_gradient: bool = True,
        learning_rate: float = 3e-4,
        epsilon: float = 1e-8,
        likelihood: Literal["gaussian"] = "gaussian",
        shrinkage: float = 4.0,
        **options: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            epsilon=epsilon,
            likelihood=likelihood,
            shrinkage=shrinkage,
            **options,
        )
        self.trains = trains
        self.loss = loss
        self.rank = rank
        self.pull = pull
        self.precision_gradient = precision_gradient

    @classmethod
    def paper(cls, text_prior: TextPrior | None = None, **options: Any) -> Self:
        """The paper to the letter: the preset of GPCache, all keys trained, the last epoch."""
        training = {"learning_rate": 1e-3, "epsilon": 1e-4, "stopping": "last"}
        return super().paper(text_prior, **(training | options))

    def _settings(self) -> Settings:
        one_of("likelihood", self.likelihood, ("gaussian",), owner=self)
        one_of("trains", self.trains, ("keys", "metric", "classes"), owner=self)
        one_of("loss", self.loss, ("plain", "leave_one_out"), owner=self)
        whole("rank", self.rank, least=1)
        positive("pull", self.pull, owner=self, allow_zero=True, auto=False)
        if self.loss == "leave_one_out" and self._precision()[0] is not ExactPrecision:
            raise ProtocolError(
                "loss='leave_one_out' has a closed form for the exact posterior alone: "
                "use precision='exact' or loss='plain'."
            )
        return super()._settings()

    @property
    def _text_moves(self) -> bool:  # type: ignore[override]
        return self.trains == "classes"

    @property
    def _leaves_out(self) -> bool:
        return self.loss == "leave_one_out"

    @property
    def _pull(self) -> float:
        return float(self.pull)

    def _move(self, shots: Shots, feature_map: FeatureMap) -> Move:
        if self.trains == "metric":
            seed = int(self.random_state)
            return move_metric(shots, feature_map, self._text, rank=self.rank, seed=seed)
        if self.trains == "classes":
            scale = 1.0 if self.text_prior is None else self.text_prior.logit_scale
            return move_classes(shots, feature_map, self._text, logit_scale=scale)
        return move_keys(shots, feature_map, self._text)
