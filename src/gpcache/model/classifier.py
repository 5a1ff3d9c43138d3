"""ImageClassifier: images in, names out. Encoder, prompts and method behind fit and predict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import DEFAULT_TEMPLATES, Prompts
from gpcache.images.records import Refused, Source, plural
from gpcache.images.sources import any_source
from gpcache.methods import FeatureClassifier
from gpcache.methods.registry import name_of
from gpcache.model import answers, learning
from gpcache.model import files as model_files
from gpcache.model.answers import Prediction
from gpcache.model.audit import Finding
from gpcache.model.evaluation import Evaluation
from gpcache.model.learning import NotFittedClassifierError
from gpcache.model.training_images import Example, TrainingFacts
from gpcache.similarity import SimilarityProjection

Images = str | Path | Source | Iterable[Any]

REJECT = 0.05


class ImageClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Train an image classifier from a few images per class; it knows when it does not know.

    It follows scikit-learn: the constructor only stores its parameters, and `clone`,
    `cross_val_score` or `GridSearchCV` take it with sequences of images and labels.

    Parameters
    ----------
    encoder : str or Encoder, default="lite"
        An encoder, or its name for `load_encoder`. It is loaded when it is first needed.
    method : str or FeatureClassifier, default="gpcache"
        A name of `gpcache.methods.registry()`, or an estimator, which is cloned.
    prompt : str, sequence of str, or None
        Templates with {} for the class name; None learns from images alone.
    views : int, default=0
        How many random views to average for each training image; 0 takes the centre view.
    projection : str, Path, SimilarityProjection, or None
        A similarity projection of this encoder, or its folder.
    device : str or torch.device, default="auto"
        Where encoder and method compute.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import ImageClassifier
    >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
    >>> pixels[3:] += 150
    >>> model = ImageClassifier("lite").fit(pixels, ["dark"] * 3 + ["light"] * 3)
    >>> model
    ImageClassifier(encoder='lite', method='gpcache', fitted on 6 images of 2 classes)
    >>> [answer.label for answer in model.predict(pixels[2:4])]
    ['dark', 'light']
    """

    def __init__(
        self,
        encoder: str | Encoder = "lite",
        *,
        method: str | FeatureClassifier = "gpcache",
        prompt: str | Sequence[str] | None = DEFAULT_TEMPLATES,
        views: int = 0,
        projection: str | Path | SimilarityProjection | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        self.encoder = encoder
        self.method = method
        self.prompt = prompt
        self.views = views
        self.projection = projection
        self.device = device
        self._encoder: Encoder | None = None  # what is loaded, or stands in for it
        self._download = True
        self._content: model_files.Content | None = None

    @property
    def encoder_(self) -> Encoder:
        """The encoder, loaded when it is first needed: the one that the model was fitted on."""
        if self._encoder is None and isinstance(self.encoder, str):
            self._encoder = learning.load(self.encoder, self.device, download=self._download)
        found = self._encoder or cast(Encoder, self.encoder)
        if self._content is not None:
            self._content.encoder.require(found)
        return found

    @property
    def encoder_name(self) -> str:
        """The name of the encoder."""
        return self.encoder if isinstance(self.encoder, str) else self.encoder.name

    @property
    def method_name(self) -> str:
        """The name under which the method is registered."""
        method = self.method if self._content is None else self._content.model
        return method if isinstance(method, str) else name_of(method)

    @property
    def content(self) -> model_files.Content:
        """All that was learned, as a model folder holds it."""
        if self._content is None:
            raise NotFittedClassifierError("This ImageClassifier is not fitted: call fit first.")
        return self._content

    @property
    def model(self) -> FeatureClassifier:
        """The fitted method on features."""
        return self.content.model

    @property
    def examples(self) -> list[Example]:
        """The training images, in the order of the method's rows."""
        return self.content.examples

    @property
    def training(self) -> TrainingFacts:
        """Where the training images came from, what was refused, and notices."""
        return self.content.training

    @property
    def prompts(self) -> Prompts | None:
        """The sentences of each class; None without text."""
        return self.content.prompts

    @property
    def classes_(self) -> NDArray[Any]:
        """The class names in order, as an array."""
        return self.model.classes_

    @property
    def classes(self) -> list[str]:
        """The class names in order, as a list."""
        return [str(name) for name in self.classes_]

    def set_params(self, **params: Any) -> Self:
        """Change parameters for the next fit, those of the method as `method__name`."""
        if params.keys() & {"encoder", "device"}:
            self._encoder = None
            self._download = self._download or "encoder" in params
        super().set_params(**params)
        return self

    def __sklearn_clone__(self) -> Self:
        # An encoder is large and never changes: the copy shares it.
        copy = type(self)(**self.get_params(deep=False))
        copy.method = clone(self.method, safe=False)
        copy._encoder, copy._download = self._encoder, self._download
        return copy

    def __sklearn_is_fitted__(self) -> bool:
        return self._content is not None

    def __repr__(self) -> str:
        state = "not fitted"
        if self._content is not None:
            images, classes = plural(len(self.examples), "image"), len(self.classes_)
            state = f"fitted on {images} of {classes:,} class{'es' * (classes != 1)}"
        parts = f"encoder={self.encoder_name!r}, method={self.method_name!r}"
        return f"ImageClassifier({parts}, {state})"

    # Learning.

    def fit(
        self,
        images: Images,
        labels: Any = None,
        *,
        shots: int | None = None,
        seed: int = 0,
        classes: Sequence[str] = (),
    ) -> Self:
        """Learn from labelled images. What cannot be read is listed in `training.refused`.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            A folder of class folders or a list of images (.csv, .tsv, .parquet); a sequence of
            paths, bytes, Pillow images, numpy arrays (h, w, 3) or torch tensors (3, h, w), of uint8
            or floats from 0 to 1, or a stack of these; pairs (image, label); or a data set of the
            `datasets` library.
        labels : sequence, optional
            One label for each image of a sequence; they become text.
        shots : int, optional
            Draw this number of images of each class.
        seed : int, default=0
            The seed of the draw.
        classes : sequence of str
            Further class names, known by their text alone, as are class folders without an image.

        Returns
        -------
        ImageClassifier
            Itself.

        Raises
        ------
        DataError
            If there is no labelled image and no class, or none of the images can be read.
        """
        source = any_source(images, labels)
        self._content = None  # what fails below must leave no mixture
        options = (self.method, self.prompt, self.views, self.projection, self.device)
        plan = learning.Plan(*options, shots=shots, seed=seed, classes=classes)
        self._content = learning.learn(source, self.encoder_, self.encoder_name, plan)
        return self

    def add(self, images: Images, labels: Any = None) -> Self:
        """Learn further images, given as in `fit`; new classes are welcome.

        Only the new images are encoded. Hyper-parameters and temperature are chosen again on all
        images; beyond 2,000 of them, once a twentieth has changed. An image that its class has
        already is left out, with a notice; one that another class has is refused.
        """
        learning.add(self.content, any_source(images, labels), self.encoder_)
        return self

    def remove(self, *, names: Iterable[str] = (), label: str | None = None) -> Self:
        """Forget images by name, or a whole class, as if they had never been seen."""
        has_text = label is not None and self.prompts is not None
        learning.remove(self.content, names, label, self.encoder_ if has_text else None)
        return self

    def relabel(self, labels: Mapping[str, str]) -> Self:
        """Give training images, by name, other labels of known classes.

        One that the class has already is forgotten instead, with a notice.
        """
        learning.relabel(self.content, labels)
        return self

    def predict(
        self,
        images: Images,
        *,
        reject: float = REJECT,
        sets: float | None = None,
        per_class: bool = False,
        why: int = 0,
        refused: list[Refused] | None = None,
        batch_size: int | None = None,
    ) -> list[Prediction]:
        """One prediction for each image that can be read, in order.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            As in `fit`, or the path of one image; labels are ignored.
        reject : float, default=0.05
            The share of good images that may be answered by "I don't know".
        sets : float, optional
            Also give the plausible labels, which miss the true one at this rate.
        per_class : bool, default=False
            Keep that rate for each class, not on average; sets are larger.
        why : int, default=0
            How many of the training images that drove the answer to name.
        refused : list, optional
            Images that cannot be read are appended to it, instead of a warning or an error.
        batch_size : int, optional
            How many images to encode at once.

        Returns
        -------
        list of Prediction
            Each with the `name` of its image: its path, or item 0000000 and so on.

        Raises
        ------
        ImageRefusedError
            If none of the images can be read.
        """
        noted: list[Refused] = [] if refused is None else refused
        found = list(self.predict_stream(
            images, reject=reject, sets=sets, per_class=per_class, why=why, refused=noted,
            batch_size=batch_size,
        ))  # fmt: skip
        if refused is None:
            answers.warn_of_refused(noted, len(found))
        return found

    def predict_stream(
        self,
        images: Images,
        *,
        reject: float = REJECT,
        sets: float | None = None,
        per_class: bool = False,
        why: int = 0,
        refused: list[Refused] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Prediction]:
        """Like `predict`, one by one and in bounded memory, for any number of images.

        An image that cannot be read is an error, unless there is a list `refused` to note it in.
        """
        found = answers.predictions(
            self.content, self.encoder_, any_source(images), refused=refused,
            batch_size=batch_size, reject=reject, sets=sets, per_class=per_class, why=why,
        )  # fmt: skip
        return (answer for _, answer in found)

    def predict_proba(self, images: Images) -> NDArray[np.float64]:
        """Probabilities (n, c) of the images, one column for each of `classes_`.

        Rows match images, so that an image that cannot be read raises ImageRefusedError.
        """
        rows = [answer.distribution for answer in self.predict_stream(images, reject=0)]
        return np.array(rows).reshape(-1, len(self.classes_))

    def score(self, images: Images, labels: Any = None) -> float:
        """The accuracy on labelled images, given as in `fit`, rejected answers included."""
        return answers.accuracy(self.content, self.encoder_, any_source(images, labels))

    def evaluate(
        self,
        images: Images,
        labels: Any = None,
        *,
        reject: float = REJECT,
        unknown: Images | None = None,
        refused: list[Refused] | None = None,
    ) -> Evaluation:
        """Compare predictions with the labels of images that were not trained on.

        `images` and `labels` are as in `fit`, `reject` and `refused` as in `predict`. `unknown` are
        images of none of the classes, to see how many of them are rejected.
        """
        source = any_source(images, labels)
        noted: list[Refused] = [] if refused is None else refused
        others = None if unknown is None else self.predict(unknown, reject=reject, refused=noted)
        found = answers.evaluated(
            self.content, self.encoder_, source, reject=reject, refused=noted, unknown=others
        )
        if refused is None:
            answers.warn_of_refused(noted, len(found))
        return found

    def held_out(self) -> Evaluation | None:
        """What the model says of its own training images, each held out; None where none could be.

        Images without company in their class are not counted.
        """
        return answers.held_out_evaluation(self.content)

    def suspects(self) -> list[Finding]:
        """Training images whose label is probably wrong, the likeliest first."""
        return learning.suspects(self.content)

    def picture(self, row: int) -> bytes | None:
        """A small picture of a training image: from the model, or from where it was; else None."""
        return self.content.picture(self.examples[row])

    def save(self, folder: str | Path, *, thumbnails: bool = False) -> None:
        """Write the model folder, in one step; `thumbnails` keeps small pictures in it."""
        if thumbnails:
            self.content.keep_thumbnails()
        self.content.revision = model_files.write(self.content, folder, self.held_out())

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "auto",
        encoder: Encoder | None = None,
    ) -> Self:
        """Read a model folder; `encoder` stands in for the one named there, if it is the same.

        Nothing is downloaded: the model's encoder must be on this machine when it is needed.
        """
        content = model_files.read(folder, device=device)
        loaded = cls(
            content.encoder.name, method=clone(content.model), prompt=content.templates,
            views=content.views, projection=getattr(content.model, "projection", None),
            device=device,
        )  # fmt: skip
        # The name in a model folder was chosen by whoever made it, not by this user.
        loaded._encoder, loaded._download, loaded._content = encoder, False, content
        if encoder is not None:
            _ = loaded.encoder_  # refuses another one at once
        return loaded

    def push_to_hub(self, repository: str, *, private: bool = True) -> str:
        """Upload the model to the Hugging Face hub as "owner/name"; returns its address."""
        return model_files.push(self.content, repository, self.held_out(), private=private)

    @classmethod
    def from_hub(cls, repository: str, *, device: str | torch.device = "auto") -> Self:
        """Download a model from the Hugging Face hub, without its encoder, and read it."""
        return cls.load(model_files.pull(repository), device=device)
