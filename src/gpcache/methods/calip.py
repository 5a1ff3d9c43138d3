"""CALIP (Guo et al., AAAI 2023): text and the places of an image attend to each other, untrained.

For unit global feature f, unit places V (m, d) and unit class vectors W (d, c):

    S = 2 · V W                                W_a = Vᵀ · softmax over places (S)
    V_a = softmax over classes (S) · Wᵀ        v_a = mean over places (V_a) + max over places (V_a)
    logits = s · f W + β₂ · s · f W_a + β₃ · s · v_a W

W_a and v_a are not scaled to length one again. f W_a is computed as (f Vᵀ) softmax(S), so that no
image needs its own class vectors (d, c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache.encoders.base import Encoder
from gpcache.errors import DataError
from gpcache.gp.kernels import unit_rows
from gpcache.gp.precision import BATCH_ELEMENTS, rank_within
from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.cache.held_out import N_REPORT_FOLDS, HeldOutLogits, HeldOutReport
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.weighing import HyperParameters, WeightSearch, added, given_values
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.checks import one_of, to_numpy
from gpcache.support.devices import explained_memory_errors

# The paper's (β₂, β₃) for ImageNet, used without labelled rows.
SHIPPED: HyperParameters = {"image_weight": 1.12, "text_weight": 0.02}
# Values to try by accuracy: the range of the pairs that the paper reports for eleven data sets.
GRIDS = {
    "image_weight": tuple(0.35 * step for step in range(21)),
    "text_weight": tuple(0.01 * step for step in range(21)),
}
SHARPNESS = 2.0
# Images that are checked together.
CHECKED = 256
PROTOCOL = "4-fold cross-validation; two weights and the calibration are chosen on the other folds"


def image_and_places(
    encoder: Encoder, images: Sequence[Any], *, batch_size: int | None = None
) -> NDArray[np.float32]:
    """Encode images for `CALIPClassifier`: the feature of each image, then those of its places.

    Parameters
    ----------
    encoder : Encoder
        An encoder with spatial features.
    images : sequence
        Paths, bytes, Pillow images or arrays.
    batch_size : int, optional
        Number of images to encode at once.

    Returns
    -------
    array of shape (n, 1 + positions, d)
        What `CALIPClassifier` takes as X.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import load_encoder
    >>> from gpcache.methods import image_and_places
    >>> image_and_places(load_encoder("lite"), np.zeros((1, 64, 64, 3), np.uint8)).shape
    (1, 82, 1664)
    """
    features = encoder.encode_images(images, batch_size=batch_size)
    places = encoder.encode_spatial(images, batch_size=batch_size)
    return np.concatenate([features[:, None], places], axis=1)


@dataclass(kw_only=True, eq=False, repr=False)
class CALIPClassifier(FeatureClassifier):
    """CALIP: zero-shot classification with attention between text and image places.

    Guo et al., 2023. X has shape (n, 1 + positions, d): first the feature of the image, then those
    of its places; `image_and_places` makes it. Only the two weights and the temperature are chosen
    on labelled rows. `fit()` without rows takes the weights of the paper for ImageNet.

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    image_weight : float or "auto", default="auto"
        Weight of class vectors made from the places of the image (β₂).
    text_weight : float or "auto", default="auto"
        Weight of an image vector made from the text (β₃).
    criterion : {"nll", "accuracy"}, default="nll"
        "nll" fits the weights exactly, "accuracy" takes them from a grid.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.methods import CALIPClassifier, TextPrior
    >>> prior = TextPrior(["cat", "dog"], np.eye(2))
    >>> X = np.stack([np.eye(2), np.eye(2)[::-1]])  # image, then one place
    >>> CALIPClassifier(text_prior=prior).fit(X, ["cat", "dog"]).predict(X).tolist()
    ['cat', 'dog']
    """

    text_prior: TextPrior | None = None
    image_weight: float | Auto = "auto"
    text_weight: float | Auto = "auto"
    criterion: Literal["nll", "accuracy"] = "nll"
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"

    publication = (
        "Guo et al., 2023, CALIP: Zero-Shot Enhancement of CLIP with Parameter-free Attention"
    )
    needs = ("text", "spatial features")

    @explained_memory_errors("A fit", "Use fewer shots.")
    def fit(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Choose the weights and the temperature on labelled images; nothing else is learned.

        Parameters
        ----------
        X : array of shape (n, 1 + positions, d), optional
            Image features, as `image_and_places` returns them. Without rows the weights are those
            of the paper for ImageNet.
        y : array of shape (n,), optional
            Labels.
        validation : tuple of arrays, optional
            Rows (X, y) to choose on instead.

        Returns
        -------
        CALIPClassifier
            The fitted estimator.

        Raises
        ------
        DataError
            If there is no text, or X has another shape.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache.methods import CALIPClassifier, TextPrior
        >>> prior = TextPrior(["cat", "dog"], np.eye(2))
        >>> X = np.stack([np.eye(2), np.eye(2)[::-1]])  # image, then one place
        >>> CALIPClassifier(text_prior=prior).fit(X, ["cat", "dog"]).predict(X).tolist()
        ['cat', 'dog']
        """
        one_of("criterion", self.criterion, ("nll", "accuracy"), owner=self)
        given = given_values(self, SHIPPED)
        prior = self.text_prior
        if not isinstance(prior, TextPrior):
            raise DataError(
                "CALIPClassifier answers from text: give it text_prior=TextPrior(class_names, …)."
            )
        images = None
        if X is not None and y is not None:
            images = self._read_images(X)
            _, labels = self._read_training(images[:, 0].numpy(), y)
        elif X is None and y is None:
            _, labels = self._read_training(prior.vectors, prior.classes)
        else:
            raise DataError("CALIPClassifier.fit needs both X and y, or neither of them.")
        self._unit_text, self._logit_scale = self._unit_text_and_scale()
        tested, truth = images, self._label_numbers(labels)
        if validation is not None:
            tested, truth = self._read_validation(validation)
        n, c = 0 if images is None else len(images), len(self.classes_)
        self.loo_ = HeldOutReport.empty(n, c, "none: no labelled rows of two classes")
        self._take(SHIPPED | given)
        self._accept_calibration(Calibration())
        if tested is not None and len(torch.unique(truth)) > 1:
            self._choose(self._parts(tested), truth, given, report=validation is None)
        return self

    def _take(self, hyper_parameters: HyperParameters) -> None:
        """Set the chosen weights."""
        self._chosen = hyper_parameters
        self.image_weight_ = hyper_parameters["image_weight"]
        self.text_weight_ = hyper_parameters["text_weight"]

    def _choose(
        self, parts: Tensor, labels: Tensor, given: HyperParameters, *, report: bool
    ) -> None:
        """Fit weights and calibration on rows with parts (3, n, c), and report their figures."""
        tested = Shots(parts[0], labels, len(self.classes_), zero_shot=parts[0])
        search = WeightSearch(tested, lambda _: parts[1:], GRIDS, {}, given, self.criterion)
        tried = search.tried(type(self).__name__)
        self._take({name: tried[0].setting[name] for name in SHIPPED})
        logits = search.logits(self._chosen)
        self._accept_calibration(fit_calibration(logits, labels))
        rows = torch.arange(len(labels), device=labels.device)
        fold = rank_within(labels, rows) % N_REPORT_FOLDS
        if not report:
            self.loo_ = replace(self.loo_, protocol="none: a validation set was given")
        elif len(torch.unique(fold)) < 2:
            self.loo_ = replace(self.loo_, protocol="none: no class has two rows")
        else:
            held_out = HeldOutLogits(logits, rows, PROTOCOL)
            self.loo_ = HeldOutReport.of(labels, held_out, search.nested(tried, fold))

    # Reading input.

    def _read_images(self, X: ArrayLike) -> Tensor:
        """Images (n, 1 + positions, d), checked; they are scaled later, block by block."""
        array = np.asarray(to_numpy(X))
        if array.ndim != 3 or array.shape[1] < 2:
            raise DataError(
                "CALIPClassifier needs each image's feature and those of its places, X of shape "
                f"(n, 1 + positions, d), got {array.shape}: put encoder.encode_spatial(images) "
                "after encoder.encode_images(images), as image_and_places does."
            )
        if not len(array) or array.dtype.kind not in "fiu":
            raise DataError(
                f"X must hold real numbers of at least one image, got {array.dtype} of shape "
                f"{array.shape}."
            )
        for start in range(0, len(array), CHECKED):
            block = array[start : start + CHECKED]
            good = np.isfinite(block).all((1, 2)) & (block != 0).any(2).all(1)
            if not good.all():
                image = start + int(np.flatnonzero(~good)[0])
                raise DataError(
                    f"Image {image} of X has a feature with NaN, inf or only zeros: remove the "
                    "image, or check how its features were computed."
                )
        # Torch takes no array that runs backwards or may not be written to.
        wanted = array.dtype if array.dtype.kind == "f" else np.float64
        return torch.as_tensor(np.require(array, dtype=wanted, requirements=["C", "W"]))

    def _read_queries(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        images = self._read_images(X)
        if images.shape[2] != self.n_features_in_:
            raise DataError(
                f"X has {images.shape[2]} features, but CALIPClassifier is expecting "
                f"{self.n_features_in_} features as input."
            )
        return images

    # Saving.

    def _write_state(self, state: State) -> None:
        state.settings["hyper_parameters"] = self._chosen
        self.loo_.write({}, *state)

    def _read_state(self, state: State) -> None:
        self._unit_text, self._logit_scale = self._unit_text_and_scale()
        self._take(state.settings.get("hyper_parameters") or state.settings["numbers"])  # as in 0.1
        self.loo_, _ = HeldOutReport.read(*state)

    # Answering.

    def _parts(self, images: Tensor) -> Tensor:
        """The three terms (3, n, c) of the logits, in blocks of images that keep memory small."""
        text = self._unit_text
        classes, width = text.shape
        size = max(1, BATCH_ELEMENTS // (images.shape[1] * (2 * width + 2 * classes)))
        terms = []
        for block in torch.split(images, size):
            rows = unit_rows(block.to(self._device, self._dtype))
            terms.append(torch.stack(attended(rows[:, 0], rows[:, 1:], text)))
        return self._logit_scale * torch.cat(terms, dim=1)

    def _logits(self, features: Tensor) -> Tensor:
        parts = self._parts(features)
        return added(parts[0], parts[1:], [self._chosen[name] for name in SHIPPED])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = True
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


def attended(features: Tensor, places: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f W, f W_a and v_a W, each (n, c), of unit rows (n, d), (n, m, d) and (c, d)."""
    similarity = SHARPNESS * places @ text.mT
    of_places = (places @ features[:, :, None]).mT @ similarity.softmax(1)
    of_classes = similarity.softmax(2) @ text
    made_of_text = of_classes.mean(1) + of_classes.amax(1)
    return features @ text.mT, of_places[:, 0], made_of_text @ text.mT
