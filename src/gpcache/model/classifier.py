"""ImageClassifier: an encoder, prompts and a method behind `fit` and `predict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import DEFAULT_TEMPLATES, Prompts
from gpcache.features.store import FeatureStore
from gpcache.images.records import Refused, Source, plural
from gpcache.images.sources import any_source
from gpcache.methods import FeatureClassifier
from gpcache.methods.cache.fitted import Fitted
from gpcache.methods.registry import name_of
from gpcache.model import answers, learning
from gpcache.model import files as model_files
from gpcache.model.audit import Finding
from gpcache.model.evaluation import Evaluation
from gpcache.model.learning import NotFittedClassifierError
from gpcache.model.predictions import Prediction, predictions
from gpcache.model.training_images import Example, TrainingFacts, training_source
from gpcache.similarity import SimilarityProjection

Images = str | Path | Source | Iterable[Any]

REJECT = 0.05


@dataclass(eq=False, repr=False)
class ImageClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Train an image classifier from a few images per class; it can answer "I don't know".

    It follows scikit-learn: the constructor only stores its parameters, and `clone`,
    `cross_val_score` and `GridSearchCV` take it with sequences of images and labels.

    Parameters
    ----------
    encoder : str or Encoder, default="lite"
        An encoder, or its name for `load_encoder`. It is loaded when it is first needed.
    method : str or FeatureClassifier, default="gpcache"
        A name of `gpcache.methods.registry()`, or an estimator, which is cloned.
    prompt : str, sequence of str, or None
        Sentences with {} for the class name; None ignores class names and learns only from images.
    views : int, default=0
        Number of random views to average for each training image; 0 takes the centre view.
    projection : str, Path, SimilarityProjection, or None
        A similarity projection of this encoder, or its folder.
    device : str or torch.device, default="auto"
        Device of encoder and method.

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

    encoder: str | Encoder = "lite"
    _: KW_ONLY
    method: str | FeatureClassifier = "gpcache"
    prompt: str | Sequence[str] | None = DEFAULT_TEMPLATES
    views: int = 0
    projection: str | Path | SimilarityProjection | None = None
    device: str | torch.device = "auto"

    # The loaded encoder, or the one that was given.
    _encoder: Encoder | None = field(default=None, init=False)
    _download: bool = field(default=True, init=False)
    _content: model_files.Content | None = field(default=None, init=False)

    @property
    def encoder_(self) -> Encoder:
        """The encoder that the model was fitted on; it is loaded when it is first needed."""
        if self._encoder is None and isinstance(self.encoder, str):
            self._encoder = learning.load(self.encoder, self.device, download=self._download)
        encoder = self._encoder or cast(Encoder, self.encoder)
        if self._content is not None:
            self._content.encoder.require(encoder)
        return encoder

    @property
    def encoder_name(self) -> str:
        """Name of the encoder."""
        return self.encoder if isinstance(self.encoder, str) else self.encoder.name

    @property
    def method_name(self) -> str:
        """Name of the method on the command line."""
        method = self.method if self._content is None else self._content.model
        return method if isinstance(method, str) else name_of(method)

    @property
    def content(self) -> model_files.Content:
        """The content of the model folder: everything that was learned."""
        if self._content is None:
            raise NotFittedClassifierError("This ImageClassifier is not fitted: call fit first.")
        return self._content

    @property
    def model(self) -> FeatureClassifier:
        """The fitted estimator on features."""
        return self.content.model

    @property
    def n_images(self) -> int:
        """Number of training images; `examples` lists a part where there were too many to keep."""
        fitted: Fitted | None = getattr(self.model, "fitted_", None)
        return len(self.examples) if fitted is None else fitted.n_rows

    @property
    def examples(self) -> list[Example]:
        """The training images, in the order of the rows of the estimator.

        Of a model in explicit features, which does not keep its images, those that the fit held
        out.
        """
        return self.content.examples

    @property
    def training(self) -> TrainingFacts:
        """Where the training images came from, which were refused, and notices."""
        return self.content.training

    @property
    def prompts(self) -> Prompts | None:
        """The sentences of each class; None without text."""
        return self.content.prompts

    @property
    def classes_(self) -> NDArray[Any]:
        """Class names in order, as an array."""
        return self.model.classes_

    @property
    def classes(self) -> list[str]:
        """Class names in order, as a list."""
        return [str(name) for name in self.classes_]

    def set_params(self, **params: Any) -> Self:
        """Set parameters for the next fit.

        Parameters
        ----------
        **params
            Parameters by name; those of the method as ``method__name``.

        Returns
        -------
        ImageClassifier
            This classifier.

        Examples
        --------
        >>> from gpcache import ImageClassifier
        >>> ImageClassifier().set_params(views=10).views
        10
        """
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
            images, classes = plural(self.n_images, "image"), plural(len(self.classes_), "class")
            state = f"fitted on {images} of {classes}"
        parts = f"encoder={self.encoder_name!r}, method={self.method_name!r}"
        return f"ImageClassifier({parts}, {state})"

    # Learning.

    def fit(
        self,
        images: Images | FeatureStore,
        labels: Any = None,
        *,
        shots: int | None = None,
        seed: int = 0,
        classes: Sequence[str] = (),
        engine: learning.Engine = "local",
        keep_shots: bool = False,
    ) -> Self:
        """Fit the classifier on labelled images.

        Images that cannot be read are listed in ``training.refused``.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            A folder of class folders or a list of images (.csv, .tsv, .parquet); a sequence of
            paths, bytes, Pillow images, numpy arrays (h, w, 3) or torch tensors (3, h, w), of uint8
            or floats from 0 to 1, or a stack of these; pairs (image, label); a data set of the
            `datasets` library; or a feature store of any size, as `gpcache extract` makes it.
        labels : sequence, optional
            One label for each image of a sequence; labels become text.
        shots : int, optional
            Draw this number of images of each class.
        seed : int, default=0
            Seed of the draw.
        classes : sequence of str
            Further class names without images. They are known only by their text, like class
            folders without an image.
        engine : {"local", "ray"}, default="local"
            Where passes over the rows of a large feature store are computed: on this machine, or
            on the Ray cluster of RAY_ADDRESS, whose machines must find the store under its path.
        keep_shots : bool, default=False
            Whether a model in explicit features keeps the features of all images, to explain its
            answers by them: `save` writes them into the model folder, in an index. Other models
            keep them anyway.

        Returns
        -------
        ImageClassifier
            The fitted classifier.

        Raises
        ------
        DataError
            If there is no labelled image and no class, or none of the images can be read.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> model.classes
        ['dark', 'light']
        """
        source = training_source(images, labels)
        self._content = None  # an error below must not leave a mixture of old and new
        self._content = learning.learn(
            self, source, shots=shots, seed=seed, classes=classes, engine=engine,
            keep_shots=keep_shots,
        )  # fmt: skip
        return self

    def add(self, images: Images | FeatureStore, labels: Any = None) -> Self:
        """Add labelled images or classes; only the new images are encoded.

        An image that its class has already is left out, with a notice. An image that another class
        has is refused. A model in explicit features does not keep its images, so it does not know
        which it has already. Hyper-parameters and temperature are chosen again on all images;
        beyond 2,000 images, once a twentieth has changed.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            As in `fit`.
        labels : sequence, optional
            One label for each image of a sequence.

        Returns
        -------
        ImageClassifier
            This classifier.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> len(model.add([pixels[0] // 2], ["dark"]).examples)
        7
        """
        learning.add(self.content, training_source(images, labels), self.encoder_)
        return self

    def remove(self, *, names: Iterable[str] = (), label: str | None = None) -> Self:
        """Remove images by name, or a whole class, as if the model had never seen them.

        Hyper-parameters and temperature are chosen again, as in `add`.

        Parameters
        ----------
        names : iterable of str
            Names of training images, as `examples` lists them.
        label : str, optional
            Class to remove with all its images.

        Returns
        -------
        ImageClassifier
            This classifier.

        Raises
        ------
        DataError
            If there is no such image or class, or nothing would be left.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> len(model.remove(names=[model.examples[0].name]).examples)
        5
        """
        has_text = label is not None and self.prompts is not None
        learning.remove(self.content, names, label, self.encoder_ if has_text else None)
        return self

    def relabel(self, labels: Mapping[str, str]) -> Self:
        """Change the labels of training images.

        An image that its new class has already is removed, with a notice. Hyper-parameters and
        temperature are chosen again, as in `add`.

        Parameters
        ----------
        labels : mapping of str to str
            New label, a known class, for each name of a training image.

        Returns
        -------
        ImageClassifier
            This classifier.

        Raises
        ------
        DataError
            If there is no such image or class.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> model.relabel({model.examples[0].name: "light"}).examples[0].label
        'light'
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
        why_from: FeatureStore | str | Path | None = None,
        refused: list[Refused] | None = None,
        batch_size: int | None = None,
    ) -> list[Prediction]:
        """Predict images; the result has one prediction for each image that can be read, in order.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            As in `fit`, or the path of one image; labels are ignored.
        reject : float, default=0.05
            Share of good images that may be answered with "I don't know".
        sets : float, optional
            Also list the plausible labels; the lists miss the true label at this rate.
        per_class : bool, default=False
            Whether this rate holds for every class on its own, which needs more images of each
            class.
        why : int, default=0
            Number of training images to name as reasons.
        why_from : FeatureStore or path, optional
            The feature store that the model was fitted on, if the model does not keep its training
            images.
        refused : list, optional
            Images that cannot be read are appended to it, instead of a warning or an error.
        batch_size : int, optional
            Number of images to encode at once.

        Returns
        -------
        list of Prediction
            Each has the `name` of its image: its path, or item 0000000 and so on.

        Raises
        ------
        ImageRefusedError
            If none of the images can be read.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> answer = model.predict(pixels[:1], why=1)[0]
        >>> answer.label, answer.neighbours[0].label
        ('dark', 'dark')
        """
        noted: list[Refused] = [] if refused is None else refused
        results = list(self.predict_stream(
            images, reject=reject, sets=sets, per_class=per_class, why=why, why_from=why_from,
            refused=noted, batch_size=batch_size,
        ))  # fmt: skip
        if refused is None:
            answers.warn_of_refused(noted, len(results))
        return results

    def predict_stream(
        self,
        images: Images,
        *,
        reject: float = REJECT,
        sets: float | None = None,
        per_class: bool = False,
        why: int = 0,
        why_from: FeatureStore | str | Path | None = None,
        refused: list[Refused] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Prediction]:
        """Predict images one by one, in bounded memory.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            As in `predict`.
        reject : float, default=0.05
            Share of good images that may be answered with "I don't know".
        sets : float, optional
            Also list the plausible labels; the lists miss the true label at this rate.
        per_class : bool, default=False
            Whether this rate holds for every class on its own, which needs more images of each
            class.
        why : int, default=0
            Number of training images to name as reasons.
        why_from : FeatureStore or path, optional
            The feature store that the model was fitted on, if the model does not keep its training
            images.
        refused : list, optional
            Images that cannot be read are appended to it. Without it such an image is an error.
        batch_size : int, optional
            Number of images to encode at once.

        Returns
        -------
        iterator of Prediction
            The predictions, in order.

        Raises
        ------
        ImageRefusedError
            If an image cannot be read and there is no list `refused`.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> next(model.predict_stream(pixels)).label
        'dark'
        """
        shots = self.content.shots
        if why_from is not None:
            shots = learning.shots_elsewhere(self.content, why_from, self.encoder_)
        results = predictions(
            self.content, self.encoder_, any_source(images, labelled=False),
            refused=refused, shots=shots,
            batch_size=batch_size, reject=reject, sets=sets, per_class=per_class, why=why,
        )  # fmt: skip
        return (answer for _, answer in results)

    def predict_proba(self, images: Images) -> NDArray[np.float64]:
        """Predict calibrated probabilities.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            As in `predict`.

        Returns
        -------
        array of shape (n, c)
            Probabilities; column i belongs to ``classes_[i]``.

        Raises
        ------
        ImageRefusedError
            If an image cannot be read.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> model.predict_proba(pixels[:2]).shape
        (2, 2)
        """
        rows = [answer.distribution for answer in self.predict_stream(images, reject=0)]
        return np.array(rows).reshape(-1, len(self.classes_))

    def score(self, images: Images, labels: Any = None) -> float:
        """Compute the accuracy on labelled images; "I don't know" counts as the nearest class.

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            As in `fit`.
        labels : sequence, optional
            One label for each image of a sequence.

        Returns
        -------
        float
            The accuracy.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> model.score(pixels, labels)
        1.0
        """
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

        Parameters
        ----------
        images : path, sequence, array, tensor or data set
            As in `fit`.
        labels : sequence, optional
            One label for each image of a sequence.
        reject : float, default=0.05
            Share of good images that may be answered with "I don't know".
        unknown : path, sequence, array, tensor or data set, optional
            Images of none of the classes, to see how many of them are rejected.
        refused : list, optional
            Images that cannot be read are appended to it, instead of a warning or an error.

        Returns
        -------
        Evaluation
            Accuracy with its interval, NLL, ECE, confusions and more.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> model.evaluate(pixels[:, ::-1], labels).accuracy
        1.0
        """
        source = any_source(images, labels)
        noted: list[Refused] = [] if refused is None else refused
        others = None if unknown is None else self.predict(unknown, reject=reject, refused=noted)
        evaluation = answers.evaluated(
            self.content, self.encoder_, source, reject=reject, refused=noted, unknown=others
        )
        if refused is None:
            answers.warn_of_refused(noted, len(evaluation))
        return evaluation

    def held_out(self) -> Evaluation | None:
        """Evaluate the training images, each predicted by a model that did not see it.

        Images whose class has no other image are not counted.

        Returns
        -------
        Evaluation or None
            Held-out figures; None if no image can be held out.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> len(model.held_out())
        6
        """
        return answers.held_out_evaluation(self.content)

    def suspects(self) -> list[Finding]:
        """Find training images whose label is probably wrong, the most probable first.

        Returns
        -------
        list of Finding
            Each with a sentence that says what is wrong.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> model.suspects()
        []
        """
        return learning.suspects(self.content)

    def picture(self, row: int) -> bytes | None:
        """Return a small picture of a training image.

        Parameters
        ----------
        row : int
            Number of the training image in `examples`.

        Returns
        -------
        bytes or None
            The picture from the model or from its file; None if there is neither.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> model.picture(0) is None
        True
        """
        return self.content.picture(self.examples[row])

    def save(self, folder: str | Path, *, thumbnails: bool = False, replace: bool = True) -> None:
        """Write the model folder in one step.

        Parameters
        ----------
        folder : str or Path
            Folder to write.
        thumbnails : bool, default=False
            Keep small pictures of the training images in it.
        replace : bool, default=True
            Replace a model that is there already; otherwise it is an error.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import ImageClassifier
        >>> pixels = np.random.default_rng(0).integers(0, 100, (6, 64, 64, 3), dtype=np.uint8)
        >>> pixels[3:] += 150
        >>> labels = ["dark"] * 3 + ["light"] * 3
        >>> model = ImageClassifier("lite").fit(pixels, labels)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/shades.gpc")
        ...     ImageClassifier.load(f"{folder}/shades.gpc").classes
        ['dark', 'light']
        """
        if thumbnails:
            self.content.keep_thumbnails()
        self.content.revision = model_files.write(
            self.content, folder, self.held_out(), replace=replace
        )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "auto",
        encoder: Encoder | None = None,
    ) -> Self:
        """Read a model folder.

        Nothing is downloaded: the encoder must be on this machine when it is needed.

        Parameters
        ----------
        folder : str or Path
            Folder to read.
        device : str or torch.device, default="auto"
            Device of encoder and method.
        encoder : Encoder, optional
            A loaded encoder to use; it must be the one that the model names.

        Returns
        -------
        ImageClassifier
            The fitted classifier.

        Raises
        ------
        ModelFileError
            If there is no model, or it is damaged.
        EncoderError
            If `encoder` is another one.

        Examples
        --------
        >>> from gpcache import ImageClassifier, ModelFileError
        >>> try:
        ...     ImageClassifier.load("no such folder")
        ... except ModelFileError:
        ...     print("no model")
        no model
        """
        content = model_files.read(folder, device=device)
        loaded = cls(
            content.encoder.name, method=clone(content.model), prompt=content.templates,
            views=content.views, projection=getattr(content.model, "projection", None),
            device=device,
        )  # fmt: skip
        # The name in a model folder was chosen by its author, not by this user.
        loaded._encoder, loaded._download, loaded._content = encoder, False, content
        if encoder is not None:
            _ = loaded.encoder_  # refuses another one at once
        return loaded

    def push_to_hub(self, repository: str, *, private: bool = True) -> str:
        """Upload the model to the Hugging Face hub.

        Parameters
        ----------
        repository : str
            Name of the repository, "owner/name".
        private : bool, default=True
            Whether only you can see it.

        Returns
        -------
        str
            Address of the model.

        Examples
        --------
        >>> from gpcache import ImageClassifier
        >>> model = ImageClassifier.load("pets.gpc")  # doctest: +SKIP
        >>> model.push_to_hub("owner/pets")  # doctest: +SKIP
        """
        return model_files.push(self.content, repository, self.held_out(), private=private)

    @classmethod
    def from_hub(cls, repository: str, *, device: str | torch.device = "auto") -> Self:
        """Download a model from the Hugging Face hub, without its encoder, and read it.

        Parameters
        ----------
        repository : str
            Name of the repository, "owner/name".
        device : str or torch.device, default="auto"
            Device of encoder and method.

        Returns
        -------
        ImageClassifier
            The fitted classifier.

        Examples
        --------
        >>> from gpcache import ImageClassifier
        >>> model = ImageClassifier.from_hub("owner/pets")  # doctest: +SKIP
        """
        return cls.load(model_files.pull(repository), device=device)
