"""
Method author: write a method and compare it
============================================

A method is one class. Write the logits; input checks, labels, text, probabilities, prediction
sets and scikit-learn's interface are inherited.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_estimator

from gpcache import GPCacheClassifier
from gpcache.gp.kernels import unit_rows
from gpcache.methods import FeatureClassifier, LinearProbeClassifier, TipAdapterClassifier
from gpcache.metrics import fit_temperature

# %%
# The method
# ----------
# The nearest class mean of prototypical networks, with a temperature that is fitted on shots,
# each compared with the mean of its class without itself.


class ClassMeanClassifier(FeatureClassifier):
    """Cosine to the mean of each class, times a scale."""

    publication = "Snell et al., 2017, Prototypical Networks for Few-shot Learning"

    def __init__(self, *, text_prior=None, scale=20.0, device="auto", dtype="auto"):
        self.text_prior = text_prior
        self.scale = scale
        self.device = device
        self.dtype = dtype

    def fit(self, X, y):
        """Learn the mean of each class, and the temperature."""
        features, labels = self._read_training(X, y)
        numbers = self._label_numbers(labels)
        sums = features.new_zeros(len(self.classes_), features.shape[1])
        sums = sums.index_add(0, numbers, features)
        self.means_ = unit_rows(sums)
        self.temperature_ = fit_temperature(self._held_out(features, numbers, sums), numbers)
        return self

    def _held_out(self, features, numbers, sums):
        """Logits of each shot, with the mean of its class without the shot."""
        logits = self.scale * features @ self.means_.mT
        own = unit_rows(sums[numbers] - features + 1e-9)
        rows = torch.arange(len(features))
        logits[rows, numbers] = self.scale * (features * own).sum(1)
        return logits

    def _logits(self, features):
        return self.scale * features @ self.means_.mT


# %%
# Check it
# --------
# scikit-learn has checks for every estimator.

results = check_estimator(ClassMeanClassifier(), on_skip=None, on_fail=None)
failed = [result["check_name"] for result in results if result["status"] == "failed"]
print(len(results) > 40, failed)

# %%
# Compare it
# ----------

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, train_size=80, stratify=y, random_state=0)
for method in (
    ClassMeanClassifier(),
    TipAdapterClassifier(),
    LinearProbeClassifier(),
    GPCacheClassifier(),
):
    model = method.fit(X, y)
    print(f"{type(model).__name__:24} {model.score(X_test, y_test):.2f}")

# %%
# What it has without further code
# --------------------------------

model = ClassMeanClassifier().fit(X, y)
calibration = (X_test[:200], y_test[:200])
sets = model.predict_set(X_test[200:], error=0.1, calibration=calibration)
print(model.predict_proba(X_test[:1]).round(2))
print(f"mean size of the prediction sets {sets.sizes.mean():.1f}")

# %%
# ``CONTRIBUTING.md`` shows the base classes that choose hyper-parameters on held-out shots, and
# the line that registers the method for the command line, the benchmark and saved models.
