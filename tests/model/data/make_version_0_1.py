"""Make the models of `version_0_1/` with the code of version 0.1, and write what they answer.

    git worktree add /tmp/old cebe051
    PYTHONPATH=/tmp/old/src python tests/data/make_version_0_1.py tests/data/version_0_1

The photos are drawn; `tests/test_old_models.py` draws them again.
"""

import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("tiny", HERE.parents[1] / "features" / "tiny.py")
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

COLOURS = {"blue": (30, 40, 200), "green": (30, 180, 40), "red": (200, 30, 30)}


def photo(colour, seed):
    """A patchy picture in this colour that no other seed gives."""
    noise = np.random.default_rng([*map(ord, colour), seed]).normal(0, 70, (8, 8, 3))
    return np.kron((np.array(COLOURS[colour]) + noise).clip(0, 255), np.ones((2, 2, 1))).astype(
        np.uint8
    )


def photos(count, start=0):
    """Pairs of a photo and its label."""
    return [(photo(name, seed), name) for name in COLOURS for seed in range(start, start + count)]


# Four photos a class with text (whitened), without (whitened), and one photo a class (raw).
MODELS = {
    "text": (4, {}),
    "no-text": (4, {"prompt": None}),
    "one-photo": (1, {}),
}


def probabilities(model, rows):
    """Of features that no model has seen: one row each, in the order of the classes."""
    return model.model.predict_proba(np.array(rows["asked"], dtype=np.float32)).tolist()


def updated(model, rows):
    """The classifier's method with a photo more in each class, and another label for the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the whitening stays
        model.model.add(np.array(rows["added"], dtype=np.float32), list(COLOURS))
        model.model.relabel([0], ["green"])
    return model


def main(folder):
    """The answers are to features, which no machine rounds otherwise."""
    from gpcache.model.classifier import ImageClassifier

    encoder = tiny.ColourEncoder()
    rows = {
        "asked": encoder.encode_images([image for image, _ in photos(3, start=100)]).tolist(),
        "added": encoder.encode_images([image for image, _ in photos(1, start=50)]).tolist(),
    }
    answers = {}
    for name, (count, options) in MODELS.items():
        model = ImageClassifier(encoder, device="cpu", **options).fit(photos(count))
        model.save(folder / name)
        answers[name] = {"fitted": probabilities(model, rows)}
        answers[name]["updated"] = probabilities(updated(model, rows), rows)
    (folder / "answers.json").write_text(json.dumps({"rows": rows, "answers": answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
