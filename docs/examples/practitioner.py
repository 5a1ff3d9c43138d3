"""
Practitioner: from a few pictures to a model
============================================

Train a classifier from six pictures per class, see how good it is, find a wrong label, and let
it answer "I don't know". The pictures are drawn by a program; use your own folder of photos in
the same way.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

from gpcache import ImageClassifier
from gpcache.images.drawn import draw_picture, draw_pictures

folder = Path(tempfile.mkdtemp())
names = ["bricks", "grass", "marble", "wood"]
photos = draw_pictures(folder / "photos", names, each=6)
test_photos = draw_pictures(folder / "test_photos", names, each=5, seed=1)

# %%
# One picture of each class:

figure, axes = plt.subplots(1, 4, figsize=(10, 2))
for place, name in zip(axes, names, strict=True):
    place.imshow(Image.open(photos / name / "00.jpg"))
    place.set(title=name, xticks=[], yticks=[])
plt.show()

# %%
# Train a model
# -------------
# ``fit`` needs no validation set. The held-out accuracy comes from the training pictures: each is
# predicted by a model that did not see it.

model = ImageClassifier("lite").fit(photos)
held_out = model.held_out()
print(model)
print(
    f"held-out accuracy {held_out.accuracy:.0%}, 95 % interval {held_out.interval[0]:.0%} to 100%"
)

# %%
# Compare it with pictures that the model has not seen:

test = model.evaluate(test_photos)
print(f"test accuracy {test.accuracy:.0%} on {len(test)} pictures")

# %%
# Ask for reasons
# ---------------
# Every answer names the training pictures behind it.

answer = model.predict(test_photos / "wood", why=3)[0]
print(answer.label, f"{answer.probability:.0%}")
for neighbour in answer.neighbours:
    print(f"  {neighbour.weight:+.2f} {neighbour.label}: {neighbour.name}")

# %%
# Find a wrong label
# ------------------
# Label one picture of wood as marble, and look for wrong labels.

wrong = ImageClassifier("lite").fit(photos).relabel({"wood/05.jpg": "marble"})
for finding in wrong.suspects():
    print(finding.sentence)

# %%
# "I don't know"
# --------------
# A clock is none of the classes. ``reject=0.15`` rejects at most about 15 % of good pictures. A
# lower rate rejects fewer good pictures, and fewer clocks.

clocks = [draw_picture("clock", number) for number in range(4)]
for answer in model.predict(clocks, reject=0.15):
    print(
        "I don't know" if answer.rejected else answer.label, f"familiarity {answer.familiarity:.2f}"
    )

# %%
# Save the model
# --------------
# The folder holds JSON and safetensors, and no pickle. On the command line: ``gpcache predict
# materials.gpc photo.jpg``.

model.save(folder / "materials.gpc")
print(sorted(file.name for file in (folder / "materials.gpc").iterdir()))
