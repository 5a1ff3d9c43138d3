"""The methods of a spec: those of the registry, and scikit-learn's classifiers as peers.

A peer is a scikit-learn classifier on the same features without text, as a user would write it. It
chooses by its own cross-validation on the shots, so it runs only under protocols without validation
rows. With one shot a class nothing can be cross-validated, and it is fitted with fixed values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.svm import LinearSVC

from gpcache.methods import Method, registry

_MOST_FOLDS = 5


def _shots(labels: NDArray[Any]) -> int:
    """The shots of the class that has the most."""
    return max(Counter(labels.tolist()).values())


def _folds(labels: NDArray[Any]) -> StratifiedKFold:
    return StratifiedKFold(min(_MOST_FOLDS, _shots(labels)))


def logistic_regression(labels: NDArray[Any]) -> Any:
    """`LogisticRegressionCV` with scikit-learn's own grid; C = 10 at one shot."""
    if _shots(labels) < 2:
        return plain_logistic_regression(labels)
    return LogisticRegressionCV(cv=_folds(labels), max_iter=1000)


def plain_logistic_regression(_: NDArray[Any]) -> Any:
    """`LogisticRegression` with C = 10."""
    return LogisticRegression(C=10, max_iter=1000)


def linear_svc(labels: NDArray[Any]) -> Any:
    """`LinearSVC` with C from five powers of ten; C = 1 at one shot."""
    if _shots(labels) < 2:
        return LinearSVC(C=1, random_state=0)
    model = LinearSVC(random_state=0)
    return GridSearchCV(model, {"C": [0.01, 0.1, 1, 10, 100]}, cv=_folds(labels))


def shrinkage_lda(labels: NDArray[Any]) -> Any:
    """Discriminant analysis with Ledoit and Wolf's shrinkage; nearest centroids at one shot."""
    if _shots(labels) < 2:
        return NearestCentroid()
    # Ledoit and Wolf's formula gives no shrinkage for two rows, and a model that guesses.
    shrinkage = "auto" if _shots(labels) > 2 else 0.5
    return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)


def nearest_neighbour(_: NDArray[Any]) -> Any:
    """The class of the nearest shot."""
    return KNeighborsClassifier(1)


class PeerClassifier:
    """A classifier of scikit-learn with the interface of a method."""

    learns_from_views: ClassVar[bool] = False
    # Shares of neighbours, distances and centroids are not meaningful probabilities.
    _WITHOUT: ClassVar[tuple[type, ...]] = (NearestCentroid, KNeighborsClassifier)

    def __init__(self, make: Callable[[NDArray[Any]], Any]) -> None:
        self._make = make

    def option_types(self) -> dict[str, Any]:
        """Options that a spec may set: none."""
        return {}

    def from_options(self) -> Self:
        """A new one."""
        return type(self)(self._make)

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Fit on shots X (n, d) with labels y (n,)."""
        self._model = self._make(y).fit(X, y)
        self.classes_: NDArray[Any] = self._model.classes_
        return self

    def cross_validated(self, X: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """Probabilities (n, c) of rows (n, d), each by a model that was not fitted on the row."""
        held_out: NDArray[np.float64] = cross_val_predict(
            self._make(y), X, y, cv=_folds(y), method="predict_proba"
        )
        return held_out

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Labels (m,) of rows (m, d)."""
        labels: NDArray[Any] = self._model.predict(X)
        return labels

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64] | None:
        """Probabilities (m, c) of rows (m, d); None if the classifier has none."""
        if isinstance(self._model, self._WITHOUT) or not hasattr(self._model, "predict_proba"):
            return None
        probabilities: NDArray[np.float64] = self._model.predict_proba(X)
        return probabilities


@dataclass(frozen=True)
class Peer:
    """A peer as a line of a table; it has the fields of `Method`."""

    name: str
    constructor: PeerClassifier
    trains: bool = True
    needs: tuple[str, ...] = ("shots", "no validation rows")


PEERS = {
    name: Peer(name, PeerClassifier(make), trains)
    for name, make, trains in (
        ("logistic-regression", plain_logistic_regression, True),
        ("logistic-regression-cv", logistic_regression, True),
        ("linear-svc", linear_svc, True),
        ("shrinkage-lda", shrinkage_lda, False),
        ("nearest-neighbour", nearest_neighbour, False),
    )
}


def known_methods() -> dict[str, Method | Peer]:
    """The methods that a spec may name."""
    return {**registry(), **PEERS}
