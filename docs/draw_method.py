"""Draws docs/images/method.svg: a Gaussian process on two classes of drawn points.

Run it as `python docs/draw_method.py`.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from gpcache import GPCacheClassifier

plt.rcParams["svg.hashsalt"] = "gpcache"


def on_sphere(points):
    """Points of the plane as unit vectors in three dimensions."""
    return np.column_stack([points, np.full(len(points), 1.5)])


rng = np.random.default_rng(3)
labels = np.repeat([0, 1], 6)
shots = np.array([[-0.8, 0.3], [0.8, -0.1]])[labels] + 0.35 * rng.normal(size=(12, 2))
model = GPCacheClassifier(kernel_space="raw", beta=8.0, likelihood="gaussian")
model.fit(on_sphere(shots), labels)
axis = np.linspace(-2, 2, 120)
grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
panels = {
    "probability of the orange class": (model.predict_proba(on_sphere(grid))[:, 1], "coolwarm"),
    "novelty": (model.novelty(on_sphere(grid)), "Greys"),
}
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
for place, (title, (values, colours)) in zip(axes, panels.items(), strict=True):
    drawn = place.contourf(axis, axis, values.reshape(120, 120), 12, cmap=colours)
    place.scatter(*shots.T, c=np.where(labels, "tab:orange", "tab:blue"), edgecolors="w", zorder=3)
    place.set(title=title, xticks=[], yticks=[])
    figure.colorbar(drawn, ax=place)
figure.savefig(Path(__file__).parent / "images" / "method.svg", metadata={"Date": None})
