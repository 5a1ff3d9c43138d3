"""The bodies of requests and the shapes of answers, for checks and for the OpenAPI file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header
from pydantic import BaseModel, ConfigDict, Field

from gpcache.images.records import Refused
from gpcache.model.classifier import REJECT
from gpcache.web.held_out import Figures
from gpcache.web.uploads import MAX_FILES

Name = Annotated[str, Field(max_length=1_000)]
Ids = Annotated[list[Name], Field(min_length=1, max_length=100_000)]


class Body(BaseModel):
    """The body of a change; `revision` is the state that the change is based on."""

    model_config = ConfigDict(extra="forbid")
    revision: Annotated[int, Field(ge=0)] | None = None


class NamedClass(Body):
    """A class to remove, with its photos."""

    name: Name


class NewClass(NamedClass):
    """A class to add."""

    prompt: Annotated[str, Field(max_length=10_000)] | None = None


class ChangedClass(NewClass):
    """A class to rename or to give another prompt; an empty prompt means the default."""

    new_name: Name | None = None


class PhotoIds(Body):
    """Photos to remove."""

    ids: Ids


class ChangedPhotos(PhotoIds):
    """Photos to give another label, or to keep (true) or question again (false) as they are."""

    label: Name | None = None
    keep: bool | None = None


class LabelledPhoto(Body):
    """A photo of the pool and its label."""

    id: Name
    label: Name


class NewBatch(BaseModel):
    """The format of a new batch."""

    model_config = ConfigDict(extra="forbid")
    format: Literal["csv", "parquet"] = "csv"


class Problem(BaseModel):
    """What went wrong, in a sentence."""

    error: str


class ClassState(BaseModel):
    """A class, its sentences and its photos."""

    name: str
    prompt: str
    count: int


class PhotoState(BaseModel):
    """A photo and its flags; `given` is the label that the user gave."""

    id: str
    name: str
    label: str
    flags: list[str]
    given: str


class WorkspaceState(BaseModel):
    """The workspace at one revision."""

    revision: int
    name: str
    encoder: str
    method: str
    classes: list[ClassState]
    photos: list[PhotoState]
    pool: int
    refused: list[Refused]
    can_undo: bool
    undo: str
    notices: list[str]
    loo: Figures | None


class Added(BaseModel):
    """The result of an upload."""

    added: list[dict[str, str]]
    refused: list[Refused]
    state: WorkspaceState


class PoolSize(BaseModel):
    """The number of photos without a label."""

    pool: int
    refused: list[Refused]


class Bar(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Preview(BaseModel):
    """The zero-shot prediction of a photo, from class names only."""

    name: str
    probabilities: list[Bar]


class Predictions(BaseModel):
    """An answer for each photo, or the reason why it has none."""

    predictions: list[dict[str, Any]]


class Point(BaseModel):
    """A point of the learning curve."""

    n: int
    accuracy: float


class Suggested(BaseModel):
    """Photos to label next."""

    photos: list[dict[str, Any]]


class BatchState(BaseModel):
    """The progress of a batch."""

    id: str
    format: str
    done: int
    refused: int


class TestState(BaseModel):
    """A test set; `other_folders` are folders whose name is not a class of the model."""

    photos: int
    refused: list[Refused]
    other_folders: list[str]
    figures: dict[str, Any] | None


class Snippets(BaseModel):
    """Lines to copy."""

    cli: str
    python: str
    curl: str


IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="The revision that the change is based on.")
]
DropId = Annotated[
    str,
    Header(
        alias="Gpcache-Drop",
        max_length=64,
        description="The same for all requests of one drop of files, which are undone together.",
    ),
]


Why = Annotated[
    int,
    Field(ge=0, le=100, description="Show the K photos with the largest shares in the answer."),
]


class PredictOptions(BaseModel):
    """How to answer; fields are query parameters."""

    top: int = Field(100, ge=1, le=100_000, description="Show the K most probable classes.")
    why: Why = 0
    reject: float = Field(
        REJECT, ge=0, lt=1, description="The share of good photos that may be rejected."
    )
    sets: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="The rate at which the plausible labels may miss the true label; 0 lists none.",
    )


class ExplainOptions(PredictOptions):
    """The same, with reasons by default."""

    why: Why = 6


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": reason}
    for status, reason in {
        400: "A mistake in the request",
        401: "No token",
        403: "A wrong host or origin",
        404: "Not found",
        409: "Based on an older revision",
        411: "No length",
        413: "Too large",
        422: "The body does not follow the schema",
        429: "Busy",
        503: "Too much at once, or a file cannot be read",
        507: "The disk is full",
    }.items()
}


def files_body(*, label: bool = False, image: bool = True) -> dict[str, Any]:
    """The OpenAPI of a body that is read as a stream."""
    properties: dict[str, Any] = {
        "files": {
            "type": "array",
            "items": {"type": "string", "format": "binary"},
            "maxItems": MAX_FILES,
        }
    }
    if label:
        properties["label"] = {"type": "string", "maxLength": 1_000}
    form = {"type": "object", "properties": properties, "required": list(properties)}
    content: dict[str, Any] = {"multipart/form-data": {"schema": form}}
    if image:
        content["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": content}}


FILES = files_body(image=False)
LABELLED_FILES = files_body(label=True, image=False)
FILES_OR_IMAGE = files_body()
