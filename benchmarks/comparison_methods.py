"""The methods of the comparison, each as a user would write it without a validation set."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.svm import LinearSVC

from gpcache import TextPrior
from gpcache.methods import registry

# A factorisation at every step: minutes on a CPU, seconds on a GPU, if there is one.
ON_GPU = ("gpcache-f", "tip-adapter-f", "ape-t")
DEFAULT, FORMER = "gpcache", "gpcache, gaussian"


@dataclass(frozen=True)
class Method:
    """How a method is made for shots `y` and text, and what it can do.

    `seconds` is a fit at n = 1,000, c = 100, d = 512 on one thread, for the estimate of run time;
    it grows as n^`power` · c.
    """

    make: Callable[[Any, TextPrior | None], Any]
    uses_text: bool = False
    needs_text: bool = False
    probabilities: bool = True
    is_ours: bool = True
    seconds: float = 1.0
    power: float = 1.0


def most_shots(y: Any) -> int:
    """The number of shots of the class with the most."""
    return max(Counter(y.tolist()).values())


def folds(y: Any) -> StratifiedKFold:
    """Five folds, or as many as the most frequent class has shots."""
    return StratifiedKFold(min(5, most_shots(y)))


def one_shot(y: Any) -> bool:
    """Whether no class has two shots, so that nothing can be cross-validated."""
    return most_shots(y) < 2


def _ours(name: str, **options: Any) -> Callable[[Any, TextPrior | None], Any]:
    def make(_: Any, prior: TextPrior | None) -> Any:
        device = "auto" if name in ON_GPU else "cpu"
        return registry()[name].constructor.from_options(text_prior=prior, device=device, **options)

    return make


def _logistic(y: Any, _: TextPrior | None) -> Any:
    if one_shot(y):
        return LogisticRegression(C=10, max_iter=1000)
    return LogisticRegressionCV(cv=folds(y), max_iter=1000)


def _svc(y: Any, _: TextPrior | None) -> Any:
    if one_shot(y):
        return LinearSVC(C=1)
    return GridSearchCV(LinearSVC(), {"C": [0.01, 0.1, 1, 10, 100]}, cv=folds(y))


def _discriminant(y: Any, _: TextPrior | None) -> Any:
    if one_shot(y):
        return NearestCentroid()
    # Ledoit and Wolf's formula gives no shrinkage at all for two rows, and a model that guesses.
    shrinkage = "auto" if most_shots(y) > 2 else 0.5
    return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)


def _neighbour(_: Any, __: TextPrior | None) -> Any:
    return KNeighborsClassifier(1)


def _further() -> dict[str, Method]:
    """The other methods that need nothing but features, for the page of all methods."""
    return {
        name: Method(
            _ours(name),
            uses_text=True,
            needs_text="text" in method.needs,
            seconds=3.0,
        )
        for name, method in registry().items()
        if not method.beyond_features and name not in MAIN
    }


MAIN: dict[str, Method] = {
    DEFAULT: Method(_ours("gpcache"), uses_text=True, seconds=4, power=1.5),
    FORMER: Method(_ours("gpcache", likelihood="gaussian"), uses_text=True, seconds=3, power=2),
    "gpcache-f": Method(_ours("gpcache-f"), uses_text=True, seconds=40, power=2),
    "gda": Method(_ours("gda"), uses_text=True, seconds=0.5),
    "lp++": Method(_ours("lp++"), uses_text=True, needs_text=True, seconds=10),
    "proker": Method(_ours("proker"), uses_text=True, needs_text=True, seconds=20, power=1.5),
    "linear-probe": Method(_ours("linear-probe"), seconds=8),
    "tip-adapter": Method(_ours("tip-adapter"), uses_text=True, seconds=1),
    "LogisticRegressionCV": Method(_logistic, is_ours=False, seconds=10),
    "linear SVC": Method(_svc, is_ours=False, probabilities=False, seconds=60),
    "shrinkage LDA": Method(_discriminant, is_ours=False, seconds=2),
    "1-nearest-neighbour": Method(_neighbour, is_ours=False, probabilities=False, seconds=0.01),
}
# What the default is compared with: every one of them, each without a validation set.
BASELINES = [name for name in MAIN if name not in (DEFAULT, FORMER)]
ROBUST = (DEFAULT, "gda", "lp++", "LogisticRegressionCV")
METHODS = MAIN | _further()


def has_probabilities(name: str, model: Any) -> bool:
    """Whether ECE and NLL can be asked for: a nearest mean stands in for LDA at one shot."""
    return METHODS[name].probabilities and not isinstance(model, NearestCentroid)


def fit(name: str, X: Any, y: Any, prior: TextPrior | None) -> tuple[Any, float]:
    """A fitted model and the seconds that fitting took."""
    method = METHODS[name]
    model = method.make(y, prior if method.uses_text else None)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return model, time.perf_counter() - start
