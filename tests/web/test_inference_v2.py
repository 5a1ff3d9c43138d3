"""The Open Inference Protocol: metadata, health, versions, answers, and errors as it has them."""

import base64
import math
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

# The published protocol, github.com/kserve/open-inference-protocol: specification/protocol/
# inference_rest.md and open_inference_rest.yaml. What it calls optional and we do not send is left
# out; a field that it does not know is a fault.
TYPES = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
]  # fmt: skip
KINDS = {"BYTES": str, "BOOL": bool, "FP64": float}


class Exact(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class ServerMetadata(Exact):
    name: str
    version: str
    extensions: list[str]


class ServerLive(Exact):
    live: bool


class ServerReady(Exact):
    ready: bool


class ModelReady(Exact):
    name: str
    ready: bool


class TensorMetadata(Exact):
    name: str
    datatype: TYPES
    shape: list[int]


class ModelMetadata(Exact):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class Output(Exact):
    name: str
    shape: list[int]
    datatype: TYPES
    data: list[str | bool | float]


class Response(Exact):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[Output]


class Failure(Exact):
    error: str


def infer(client, images, path="models/workspace", **further):
    data = [base64.b64encode(image).decode() for image in images]
    tensor = {"name": "image", "shape": [len(data)], "datatype": "BYTES", "data": data}
    return client.post(f"/v2/{path}/infer", json={"inputs": [tensor]} | further)


@pytest.fixture(scope="module")
def version(shared):
    return shared.client.get("/v2/models/workspace").json()["versions"][0]


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("", ServerMetadata),
        ("/", ServerMetadata),
        ("/health/live", ServerLive),
        ("/health/ready", ServerReady),
        ("/models/workspace", ModelMetadata),
        ("/models/workspace/ready", ModelReady),
        ("/models/workspace/versions/{}", ModelMetadata),
        ("/models/workspace/versions/{}/ready", ModelReady),
    ],
)
def test_answers_have_the_published_shape(shared, version, path, shape):
    answer = shared.client.get(f"/v2{path}".format(version))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    shape.model_validate_json(answer.content)


@pytest.mark.parametrize("path", ["models/workspace", "models/workspace/versions/{}"])
@pytest.mark.parametrize("count", [1, 3])
def test_inferences_have_the_published_shape(shared, photo, version, path, count):
    images = [photo("red", seed) for seed in range(count)]
    answer = infer(shared.client, images, path=path.format(version), id="a request")
    assert answer.status_code == 200
    found = Response.model_validate_json(answer.content)
    assert (found.model_name, found.model_version, found.id) == ("workspace", version, "a request")
    for output in found.outputs:
        assert len(output.data) == math.prod(output.shape)
        assert {type(one) for one in output.data} == {KINDS[output.datatype]}


def test_metadata_and_health(shared, version):
    assert shared.client.get("/v2").json()["name"] == "gpcache"
    assert shared.client.get("/v2/health/live").json() == {"live": True}
    assert shared.client.get("/v2/health/ready").json() == {"ready": True}
    told = shared.client.get("/v2/models/workspace").json()
    assert told["name"] == "workspace"
    assert told["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    ready = {"name": "workspace", "ready": True}
    assert shared.client.get("/v2/models/workspace/ready").json() == ready
    assert shared.client.get(f"/v2/models/workspace/versions/{version}").json() == told


@pytest.mark.parametrize("path", ["models/other", "models/workspace/versions/none"])
def test_knows_no_other_model_or_version(shared, photo, path):
    answers = [shared.client.get(f"/v2/{path}"), shared.client.get(f"/v2/{path}/ready")]
    answers.append(infer(shared.client, [photo("red")], path=path))
    for answer in answers:
        assert answer.status_code == 404
        Failure.model_validate_json(answer.content)


def test_is_not_ready_without_a_model(empty, photo):
    for path, told in (("health", {}), ("models/workspace", {"name": "workspace"})):
        answer = empty.get(f"/v2/{path}/ready")
        assert answer.status_code == 400
        assert answer.json() == told | {"ready": False}
    assert empty.get("/v2/health/live").status_code == 200
    assert infer(empty, [photo("red")]).status_code == 400


def test_infers_what_v1_predicts(shared, photo):
    images = [photo("red", 800), photo("blue", 801)]
    answer = infer(shared.client, images, id="seven").json()
    assert answer["id"] == "seven"
    told = shared.client.get("/v2/models/workspace").json()
    assert (answer["model_name"], answer["model_version"]) == ("workspace", told["versions"][0])
    outputs = {one["name"]: one for one in answer["outputs"]}
    assert outputs["label"]["data"] == ["red", "blue"]
    for said in told["outputs"]:
        one = outputs[said["name"]]
        assert one["datatype"] == said["datatype"]
        assert len(one["shape"]) == len(said["shape"])
    assert "id" not in infer(shared.client, images).json()
    files = [("files", (f"{k}.jpg", image)) for k, image in enumerate(images)]
    expected = shared.client.post("/v1/predict", files=files).json()["predictions"]
    assert outputs["probability"]["data"] == pytest.approx([one["probability"] for one in expected])
    table = np.reshape(outputs["probabilities"]["data"], outputs["probabilities"]["shape"])
    by_name = {bar["label"]: bar["probability"] for bar in expected[0]["probabilities"]}
    assert dict(zip(outputs["classes"]["data"], table[0], strict=True)) == pytest.approx(by_name)
    some = infer(shared.client, images, outputs=[{"name": "label"}]).json()["outputs"]
    assert [one["name"] for one in some] == ["label"]


def tensor(photo, **change):
    data = base64.b64encode(photo("red")).decode()
    return {"name": "image", "shape": [1], "datatype": "BYTES", "data": [data]} | change


def test_takes_data_as_nested_as_its_shape(shared, photo):
    flat = tensor(photo)
    nested = flat | {"shape": [1, 1], "data": [flat["data"]]}
    one, other = (
        shared.client.post("/v2/models/workspace/infer", json={"inputs": [given]}).json()
        for given in (flat, nested)
    )
    assert one == other


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data": ["no base64!"]}, "not base64"),
        ({"data": ["bm8gaW1hZ2U="]}, "not an image"),
        ({"data": [[["bm8gaW1hZ2U="]]]}, "data"),
        ({"data": []}, "shape"),
        ({"shape": [2]}, "shape"),
        ({"shape": [1, 2]}, "shape"),
        ({"name": "other"}, "one input"),
        ({"datatype": "FP32"}, "BYTES"),
        ({"data": [""] * 101, "shape": [101]}, "100 images"),
    ],
)
def test_mistakes_are_errors(shared, photo, change, told):
    body = {"inputs": [tensor(photo, **change)]}
    answer = shared.client.post("/v2/models/workspace/infer", json=body)
    assert answer.status_code == 400
    Failure.model_validate_json(answer.content)
    assert told in answer.json()["error"]


@pytest.mark.parametrize("count", [0, 2, 11])
def test_takes_one_input(shared, photo, count):
    body = {"inputs": [tensor(photo)] * count}
    answer = shared.client.post("/v2/models/workspace/infer", json=body)
    assert answer.status_code == 400
    Failure.model_validate_json(answer.content)


def test_knows_its_outputs(shared, photo):
    answer = infer(shared.client, [photo("red")], outputs=[{"name": "colour"}])
    assert answer.status_code == 400
    assert "no output 'colour'" in answer.json()["error"]
