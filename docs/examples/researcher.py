"""
Researcher: compare methods on features
=======================================

Encode pictures once, then compare methods over the number of shots, look at calibration, and make
prediction sets. All methods are scikit-learn classifiers.
"""

import matplotlib.pyplot as plt
import numpy as np

from gpcache import GPCacheClassifier, Prompts, TextPrior, load_encoder, text_weights
from gpcache.features.splits import draw_shots
from gpcache.images.drawn import draw_picture
from gpcache.methods import GDAClassifier, TipAdapterClassifier, ZeroShotClassifier
from gpcache.metrics import ece, reliability

encoder = load_encoder("lite")
classes = ["bricks", "grass", "leaves", "marble", "pebbles", "wood"]
labels = np.repeat(classes, 16)
X = encoder.encode_images(draw_picture(name, i) for name in classes for i in range(16))
prompts = Prompts.from_templates(classes, "a photo of {}.")
prior = TextPrior(classes, text_weights(encoder, prompts), encoder.logit_scale)
print(X.shape)

# %%
# Accuracy over shots
# -------------------
# ``draw_shots`` draws with a seed; a draw of fewer shots is a subset of a draw of more. Hyper-
# parameters are chosen on held-out shots. The rows that were not drawn are the test set.

methods = {
    "zero-shot": ZeroShotClassifier,
    "Tip-Adapter": TipAdapterClassifier,
    "GDA": GDAClassifier,
    "GPCache": GPCacheClassifier,
}
shots = [1, 2, 4, 8]
scores = {name: [] for name in methods}
for k in shots:
    draw = draw_shots(labels, range(len(labels)), k, seed=0)
    for name, method in methods.items():
        model = method(text_prior=prior).fit(X[draw.indices], labels[draw.indices])
        scores[name].append(model.score(X[draw.rest], labels[draw.rest]))
for name, accuracies in scores.items():
    print(f"{name:12}", *(f"{accuracy:.2f}" for accuracy in accuracies))
    plt.plot(shots, accuracies, "o-", label=name)
plt.xlabel("shots per class")
plt.ylabel("test accuracy (drawn pictures, lite)")
plt.legend()
plt.show()

# %%
# Held-out figures and hyper-parameters
# -------------------------------------

draw = draw_shots(labels, range(len(labels)), 4, seed=0)
model = GPCacheClassifier(text_prior=prior).fit(X[draw.indices], labels[draw.indices])
print(model.loo_.protocol)
print(f"held-out accuracy {model.loo_.accuracy:.2f}, settings tried {len(model.search_['beta'])}")
print(f"weights: cache {model.alpha_:.2g}, text {model.gain_:.2g}")

# %%
# Calibration
# -----------

test, truth = X[draw.rest], np.searchsorted(model.classes_, labels[draw.rest])
probabilities = model.predict_proba(test)
table = reliability(probabilities, truth, bins=8)
plt.figure()
plt.plot([0, 1], [0, 1], ":", color="grey")
plt.plot(table.confidence, table.accuracy, "o-")
plt.xlabel("probability")
plt.ylabel("accuracy")
plt.title(f"ECE {ece(probabilities, truth):.3f}")
plt.show()

# %%
# Prediction sets
# ---------------

sets = model.predict_set(test, error=0.1)
inside = [label in found for label, found in zip(labels[draw.rest], sets.labels, strict=True)]
print(f"{np.mean(inside):.0%} of the sets hold the true class, mean size {sets.sizes.mean():.1f}")
print(sets.protocol)

# %%
# The settings of the paper
# -------------------------
# ``GPCacheClassifier.paper`` chooses on a validation set by accuracy.

validation = (X[draw.rest[:20]], labels[draw.rest[:20]])
paper = GPCacheClassifier.paper(prior)
paper.fit(X[draw.indices], labels[draw.indices], validation=validation)
print(f"{paper.score(X[draw.rest[20:]], labels[draw.rest[20:]]):.2f}")
