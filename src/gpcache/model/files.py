"""A classifier's content as a model folder, here or on the Hugging Face hub."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from gpcache import __version__
from gpcache.encoders import Encoder
from gpcache.encoders.lite_recipes import current_name
from gpcache.encoders.prompts import Prompts
from gpcache.errors import DataError, EncoderError, ModelFileError, NumericalError
from gpcache.features.shot_index import Seal, ShotIndex
from gpcache.images.records import Refused
from gpcache.methods import FeatureClassifier, State, restore, state_of
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.model.card import model_card
from gpcache.model.evaluation import Evaluation
from gpcache.model.kept_shots import IndexedShots, KeptShots
from gpcache.model.places import check_model_place
from gpcache.model.predictions import HeldOutScores
from gpcache.model.training_images import Example, TrainingFacts, picture_of
from gpcache.support.array_folders import (
    CARD,
    CONFIG,
    PROJECTION,
    SHOTS,
    TENSORS,
    load_folder,
    save_folder,
)
from gpcache.support.checks import first_line
from gpcache.support.files import sha256
from gpcache.support.locks import locked_folder

_THUMBNAIL = "thumbnail "


class Revision(NamedTuple):
    """The folder that a model was read from or written to, and the hash of its config."""

    folder: Path
    sha256: str

    @classmethod
    def of(cls, folder: str | Path) -> Revision:
        """The revision of the model in a folder."""
        place = Path(folder).resolve()
        try:
            return cls(place, sha256((place / CONFIG).read_bytes()))
        except OSError:
            return cls(place, "")


@dataclass(frozen=True)
class EncoderFacts:
    """Which encoder a model was fitted on: its name for `load_encoder`, and its fingerprint."""

    name: str
    fingerprint: str
    dim: int
    logit_scale: float

    def require(self, encoder: Encoder) -> None:
        """Refuse an encoder that is not this one."""
        if self.fingerprint != encoder.fingerprint:
            raise EncoderError(
                f"The model was fitted on the encoder {self.name!r} with the fingerprint "
                f"{self.fingerprint[:12]}, but this one has {encoder.fingerprint[:12]}: use the "
                "encoder of the model."
            )


@dataclass
class Content:
    """The content of a model folder; `views` is 0 for one centre view of each image.

    `thumbnails` are small pictures of training images by the hash of their content. `shots` are
    those of a model in explicit features that keeps them to explain its answers.
    """

    model: FeatureClassifier
    encoder: EncoderFacts
    templates: list[str] | None
    prompts: Prompts | None
    views: int
    examples: list[Example]
    training: TrainingFacts
    thumbnails: dict[str, bytes] = field(default_factory=dict)
    shots: KeptShots | None = None
    revision: Revision | None = None

    @property
    def held_out_scores(self) -> HeldOutScores:
        """The scores of held-out training images, to judge other images beside."""
        return HeldOutScores.of(self.model)

    def picture(self, example: Example) -> bytes | None:
        """A small picture of an example, from the model or from its file; None without both."""
        return self.thumbnails.get(example.hash) or picture_of(example, self.training.source)

    def keep_thumbnails(self) -> None:
        """Store a small picture of every example whose file can be read."""
        pictures = {example.hash: self.picture(example) for example in self.examples}
        self.thumbnails = {key: picture for key, picture in pictures.items() if picture}


def write(
    content: Content, folder: str | Path, held_out: Evaluation | None, *, replace: bool = True
) -> Revision:
    """Write the model folder in one step, with the held-out figures in its card.

    A model that another process has changed since it was read is not overwritten, and without
    `replace` none is.
    """
    check_model_place(folder, replace=replace)
    state = state_of(content.model)
    config: dict[str, Any] = {
        "gpcache": __version__,
        "encoder": asdict(content.encoder),
        "prompts": None if content.prompts is None else asdict(content.prompts),
        "templates": content.templates,
        "views": content.views,
        "examples": [asdict(example) for example in content.examples],
        "training": asdict(content.training),
        "model": state.settings,
    }
    known = {example.hash for example in content.examples} & set(content.thumbnails)
    pictures = {
        _THUMBNAIL + key: np.frombuffer(content.thumbnails[key], dtype=np.uint8)
        for key in sorted(known)
    }
    with locked_folder(folder):
        now, read = Revision.of(folder), content.revision
        if read is not None and now.sha256 and read.folder == now.folder and read != now:
            raise ModelFileError(
                f"{str(folder)!r} was changed by another process since it was read: "
                "load it again and repeat the change, or save under another name."
            )
        card, shots = model_card(config, held_out), content.shots
        save_folder(
            folder, config, state.arrays | pictures, card,
            write_shots=None if shots is None else lambda path: _write_shots(shots, path, content),
            replace=replace,
        )  # fmt: skip
        return Revision.of(folder)


def _write_shots(shots: KeptShots, path: Path, content: Content) -> dict[str, Any]:
    return shots.write(path, cast(CacheClassifier, content.model))._asdict()


def read(folder: str | Path, *, device: str | torch.device = "auto") -> Content:
    """Read a model folder, with its model on `device`."""
    # The schema takes a quarter of a second to build, which a fit need not wait for.
    from gpcache.model.schema import check_config, invalid_model

    revision = Revision.of(folder)
    config, arrays = load_folder(folder)
    if config.get("kind") == PROJECTION:
        raise ModelFileError(
            f"{str(folder)!r} is a similarity projection and no classifier: give it to gpcache fit "
            "as --projection."
        )
    check_config(config, str(folder))
    prompts, training, encoder = config["prompts"], config["training"], config["encoder"]
    name = current_name(encoder["name"], encoder["fingerprint"])
    refused = [Refused(**one) for one in training["refused"]]
    thumbnails = {
        key.removeprefix(_THUMBNAIL): arrays.pop(key).tobytes()
        for key in [key for key in arrays if key.startswith(_THUMBNAIL)]
    }
    try:
        model = restore(State(config["model"], arrays), device=device)
        prompts = prompts and Prompts(
            tuple(prompts["class_names"]), tuple(map(tuple, prompts["sentences"]))
        )
        _check_examples(model, config["examples"])
    except (DataError, NumericalError) as error:
        raise invalid_model(str(folder), str(error).rstrip(".")) from None
    return Content(
        model=model,
        encoder=EncoderFacts(**encoder | {"name": name}),
        templates=config["templates"],
        prompts=prompts,
        views=config["views"],
        examples=[Example(**example) for example in config["examples"]],
        training=TrainingFacts(**training | {"refused": refused}),
        thumbnails=thumbnails,
        shots=_read_shots(folder, config, model),
        revision=revision,
    )


def _read_shots(
    folder: str | Path, config: dict[str, Any], model: FeatureClassifier
) -> KeptShots | None:
    """The shots that a model in explicit features keeps; they are opened when they are needed."""
    if "shots" not in config or model.has_keys:
        return None
    index = ShotIndex(Path(folder).resolve() / SHOTS, Seal(**config["shots"]))
    return IndexedShots(index, model.classes_.astype(str))


def _check_examples(model: FeatureClassifier, examples: list[dict[str, Any]]) -> None:
    """Refuse training images that are not those of the model's shots."""
    report = getattr(model, "loo_", None)
    if report is not None and len(report.labels) != len(examples):
        raise DataError("its images and its held-out figures differ in number")
    if not isinstance(model, CacheClassifier):
        return
    labels = model.classes_[model.fitted_.shots.labels.cpu().numpy()]
    if [str(label) for label in labels] != [example["label"] for example in examples]:
        raise DataError("its images and its shots have different labels")


def push(
    content: Content, repository: str, held_out: Evaluation | None, *, private: bool = True
) -> str:
    """Upload the model folder to the hub as "owner/name"; returns its address."""
    # Half a second that nobody else need wait for.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    hub = HfApi()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) / "model"
        write(content, place, held_out)
        try:
            hub.create_repo(repository, private=private, exist_ok=True)
            hub.upload_folder(repo_id=repository, folder_path=place)
        except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
            raise ModelFileError(
                f"The model could not be uploaded to {repository!r}: {first_line(error)} "
                "Log in with 'hf auth login', and check the name and the network."
            ) from None
    return f"https://huggingface.co/{repository}"


def pull(repository: str) -> Path:
    """The model folder of a repository, downloaded on first use."""
    from gpcache.encoders.hub import fetch

    missing = f"The repository {repository!r} holds no gpcache model."
    files = [fetch(repository, name, missing=missing) for name in (TENSORS, CARD, CONFIG)]
    if b'"shots": {' in files[-1].read_bytes():
        fetch(repository, SHOTS, missing=missing)
    return files[-1].parent
