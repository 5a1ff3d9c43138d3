"""Four classes whose text is a little off: a small problem for methods that start at the text."""

import numpy as np

from gpcache import TextPrior

SCALE = 20.0


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class Problem:
    """Unequal shots X with labels, queries Q with their truth, and text; 12 columns."""

    def __init__(self, shots=(4, 3, 2, 3), queries=80):
        generator = np.random.default_rng(0)
        centres = unit(generator.normal(size=(4, 12)))
        self.text = unit(centres + 0.3 * generator.normal(size=(4, 12)))
        self.labels = np.repeat(np.arange(4), shots)
        self.X = unit(3 * centres[self.labels] + generator.normal(size=(len(self.labels), 12)))
        self.truth = np.arange(queries) % 4
        self.Q = unit(3 * centres[self.truth] + generator.normal(size=(queries, 12)))
        self.prior = TextPrior(list(range(4)), self.text, SCALE)
