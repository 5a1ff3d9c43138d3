"""The Open Inference Protocol: metadata, health, versions, answers, and errors as it has them."""

import base64

import numpy as np
import pytest


def infer(client, images, path="models/workspace", **further):
    data = [base64.b64encode(image).decode() for image in images]
    tensor = {"name": "image", "shape": [len(data)], "datatype": "BYTES", "data": data}
    return client.post(f"/v2/{path}/infer", json={"inputs": [tensor]} | further)


def test_metadata_and_health(shared):
    assert shared.client.get("/v2").json()["name"] == "gpcache"
    assert shared.client.get("/v2/health/live").json() == {"live": True}
    assert shared.client.get("/v2/health/ready").json() == {"ready": True}
    assert shared.client.get("/v2").json().keys() == {"name", "version", "extensions"}
    told = shared.client.get("/v2/models/workspace").json()
    assert told.keys() == {"name", "versions", "platform", "inputs", "outputs"}
    assert told["name"] == "workspace"
    assert told["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    for tensor in told["outputs"]:
        assert tensor.keys() == {"name", "datatype", "shape"}
        assert tensor["datatype"] in ("BYTES", "FP64", "BOOL")
    ready = {"name": "workspace", "ready": True}
    assert shared.client.get("/v2/models/workspace/ready").json() == ready
    version = f"/v2/models/workspace/versions/{told['versions'][0]}"
    assert shared.client.get(version).json() == told
    assert shared.client.get(f"{version}/ready").json() == ready


@pytest.mark.parametrize("path", ["models/other", "models/workspace/versions/none"])
def test_knows_no_other_model_or_version(shared, photo, path):
    answers = [shared.client.get(f"/v2/{path}"), shared.client.get(f"/v2/{path}/ready")]
    answers.append(infer(shared.client, [photo("red")], path=path))
    for answer in answers:
        assert answer.status_code == 404
        assert answer.json().keys() == {"error"}


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
        assert one.keys() == {"name", "datatype", "shape", "data"}
        assert one["datatype"] == said["datatype"]
        assert len(one["shape"]) == len(said["shape"])
        assert len(one["data"]) == np.prod(one["shape"])
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
    assert answer.json().keys() == {"error"}
    assert told in answer.json()["error"]


@pytest.mark.parametrize("count", [0, 2, 11])
def test_takes_one_input(shared, photo, count):
    body = {"inputs": [tensor(photo)] * count}
    answer = shared.client.post("/v2/models/workspace/infer", json=body)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}


def test_knows_its_outputs(shared, photo):
    answer = infer(shared.client, [photo("red")], outputs=[{"name": "colour"}])
    assert answer.status_code == 400
    assert "no output 'colour'" in answer.json()["error"]
