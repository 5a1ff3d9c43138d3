"""The schema of a model folder's config.json, which is checked before anything is used."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from gpcache.errors import ModelFileError
from gpcache.support.checks import shown


def _as_unicode(value: Any) -> Any:
    """Text for pydantic, which refuses file names with bytes that are not UTF-8."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _moderate(value: Any) -> Any:
    """A number that torch can take in float32 or int64: those of JSON have any size."""
    if isinstance(value, int | float):
        most = 2**63 if isinstance(value, int) else 3e38
        if most <= abs(value) < float("inf"):
            raise ValueError("the number is too large")
    return value


_OPEN = ConfigDict(strict=True, extra="allow")  # a later method may add fields

Text = Annotated[str, BeforeValidator(_as_unicode)]
Moderate = BeforeValidator(_moderate)
Finite = Annotated[float, Field(allow_inf_nan=False), Moderate]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Moderate]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), Moderate]
Count = Annotated[int, Field(ge=0), Moderate]
Label = Text | int | float | bool
Labels = Annotated[list[Label], Field(min_length=1)]
Option = Annotated[Text | bool | int | Finite | None, Moderate]


@with_config(ConfigDict(strict=True, extra="forbid"))
class StrictEntry(TypedDict):
    """An entry that may hold no other fields."""


class EncoderEntry(StrictEntry):
    """Which encoder a model was fitted on."""

    name: Text
    fingerprint: Text
    dim: Annotated[int, Field(gt=0), Moderate]
    logit_scale: Positive


class PromptsEntry(StrictEntry):
    """Class names and their sentences."""

    class_names: list[Text]
    sentences: list[list[Text]]


class ExampleEntry(StrictEntry):
    """A training image."""

    name: Text
    label: Text
    hash: Text
    group: NotRequired[Text | None]


class RefusedEntry(StrictEntry):
    """An image that was refused."""

    name: Text
    reason: Text


class TrainingEntry(StrictEntry):
    """Where the training images came from."""

    source: NotRequired[Text]
    shots: NotRequired[Count | None]
    seed: NotRequired[Count | None]
    refused: list[RefusedEntry]
    notices: NotRequired[list[Text]]


class TextEntry(StrictEntry):
    """The classes of a text prior, the scale of its logits, and the length of its vectors."""

    classes: Labels
    scale: Positive
    length: NotRequired[Positive]


class HeldOutEntry(StrictEntry):
    """Held-out figures; None if nothing was held out."""

    accuracy: Annotated[float, Field(ge=0, le=1)] | None
    nll: NotNegative | None
    ece: Annotated[float, Field(ge=0, le=1)] | None
    protocol: Text


class ChoiceEntry(StrictEntry, total=False):
    """The chosen hyper-parameters; None means NaN."""

    beta: NotNegative | None
    noise: NotNegative | None
    alpha: NotNegative | None
    eta: NotNegative | None
    gain: NotNegative | None
    tau: NotNegative | None
    shrinkage: NotNegative | None
    diagonal: NotNegative | None
    discriminant: NotNegative | None
    label_noise: NotNegative | None
    offset: Finite | None
    nll: Finite | None
    accuracy: Finite | None
    score: Finite | None


class ExplicitEntry(StrictEntry):
    """How many rows a model in explicit features has seen, and how many chose for it."""

    n_rows: Count
    n_part: Count


@with_config(_OPEN)
class SavedMethod(TypedDict):
    """The settings of a fitted method."""

    method: Text
    options: dict[Text, Option | list[Option]]
    classes: Labels
    width: Annotated[int, Field(gt=0), Moderate]
    temperature: Positive
    entropy_slope: Finite
    text: NotRequired[TextEntry]
    space: NotRequired[Text]
    choice: NotRequired[ChoiceEntry]
    trained_at: NotRequired[ChoiceEntry]
    numbers: NotRequired[dict[Text, Finite]]
    explicit: NotRequired[ExplicitEntry]
    held_out: NotRequired[HeldOutEntry]
    search: NotRequired[dict[Text, list[bool | Finite | None]]]
    changed: NotRequired[Count]
    validated: NotRequired[bool]
    hyper_parameters: NotRequired[dict[Text, Finite]]
    epochs: NotRequired[Count]
    training_loss: NotRequired[list[Finite]]


class ShotsEntry(StrictEntry):
    """The seal of the file of the shots."""

    sha256: Text
    n_bytes: Count


@with_config(_OPEN)
class ModelEntry(TypedDict):
    """All of config.json except its checksums."""

    gpcache: NotRequired[Text]
    encoder: EncoderEntry
    prompts: PromptsEntry | None
    templates: list[Text] | None
    views: Count
    examples: list[ExampleEntry]
    training: TrainingEntry
    model: SavedMethod
    shots: NotRequired[ShotsEntry]


_SCHEMA = TypeAdapter(ModelEntry)


def check_config(config: dict[str, Any], place: str) -> None:
    """Refuse a config that does not follow the schema, and say where."""
    try:
        _SCHEMA.validate_python(config)
    except (ValidationError, RecursionError) as error:
        raise invalid_model(place, _first(error)) from None


def invalid_model(place: str, what: str) -> ModelFileError:
    """The error of a folder that is intact, but was not written by gpcache."""
    return ModelFileError(
        f"{place!r} is not a model that gpcache has written ({what}): fit the model again."
    )


def _first(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))[:60]
    return f"{shown(where)}: {first['msg']}"
