"""The workspace over HTTP: classes, photos, undo, figures, two tabs, and restarts."""

import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from PIL import Image

from gpcache.encoders.lite_recipes import LITE0_FINGERPRINT
from gpcache.errors import DataError
from gpcache.support.seals import UNSEALED, seal
from gpcache.web.open_workspace import open_workspace

JPEG = {"content-type": "image/jpeg"}


def test_useful_at_zero_photos_by_the_class_names_alone(empty, photo):
    client = empty
    assert client.get("/v1/loo").json()["why"]
    for name in ("red", "blue"):
        state = client.post("/v1/classes", json={"name": name}).json()
    assert [entry["prompt"] for entry in state["classes"]] == [
        "a photo of a red.",
        "a photo of a blue.",
    ]
    files = [("files", ("a.jpg", photo("red")))]
    before = client.post("/v1/zero-shot-preview", files=files).json()["probabilities"]
    assert sum(bar["probability"] for bar in before) == pytest.approx(1)
    client.patch("/v1/classes", json={"name": "red", "prompt": "something else entirely"})
    after = client.post("/v1/zero-shot-preview", files=files).json()["probabilities"]
    assert before != after
    answer = client.post("/v1/predict", content=photo("red"), headers=JPEG).json()
    assert answer["predictions"][0]["probabilities"] == after


def test_adds_photos_and_tells_them_apart(empty, photo, filled):
    client = empty
    state = filled(client, photo, 4)
    assert {entry["name"]: entry["count"] for entry in state["classes"]} == {
        "red": 4,
        "green": 4,
        "blue": 4,
    }
    found = client.post("/v1/explain", content=photo("blue", 999), headers=JPEG).json()
    answer = found["predictions"][0]
    assert answer["label"] == "blue"
    assert answer["probabilities"][0] == {"label": "blue", "probability": answer["probability"]}
    assert {one["label"] for one in answer["why"] if one["weight"] > 0} == {"blue"}
    ids = {one["id"] for one in state["photos"]}
    assert {one["id"] for one in answer["why"]} <= ids


def test_the_figures_agree_with_the_photos(empty, photo, filled):
    client = empty
    state = filled(client, photo, 5)
    wrong = state["photos"][0]["id"]
    state = client.patch("/v1/examples", json={"ids": [wrong], "label": "blue"}).json()
    found = client.get("/v1/loo").json()
    assert found["n"] == 15
    assert sum(map(sum, found["confusion"])) == found["n"]
    right = sum(row[place] for place, row in enumerate(found["confusion"]))
    assert found["accuracy"] == pytest.approx(right / found["n"])
    low, high = found["interval"]
    assert low < found["accuracy"] < high
    for cell, ids in found["cells"].items():
        i, j = map(int, cell.split(","))
        assert found["confusion"][i][j] == len(ids)
    assert sum(part["count"] for part in found["reliability"]) == found["n"]
    suspect = next(one for one in found["suspects"] if one["id"] == wrong)
    assert (suspect["label"], suspect["suggested"]) == ("blue", "red")
    flags = {one["id"]: one["flags"] for one in state["photos"]}
    assert "suspect" in flags[wrong]
    assert state["loo"]["accuracy"] == found["accuracy"]


def test_marks_duplicates(empty, photo, filled):
    client = empty
    filled(client, photo, 4)
    twice = [("files", ("again.jpg", photo("red", 0)))]
    state = client.post("/v1/examples", data={"label": "red"}, files=twice).json()["state"]
    marked = {one["name"] for one in state["photos"] if "duplicate" in one["flags"]}
    assert marked == {"red0.jpg", "again.jpg"}


def test_every_change_can_be_undone(empty, photo, filled):
    client = empty
    ids = [one["id"] for one in filled(client, photo, 3)["photos"]]

    def look():
        state = client.get("/v1/state").json()
        told = client.post("/v1/predict", content=photo("green", 77), headers=JPEG).json()
        return state["classes"], state["photos"], told

    changes = [
        ("POST", "/v1/classes", {"name": "yellow"}),
        ("PATCH", "/v1/classes", {"name": "red", "new_name": "scarlet"}),
        ("PATCH", "/v1/classes", {"name": "scarlet", "prompt": "a scarlet thing"}),
        ("PATCH", "/v1/examples", {"ids": ids[:2], "label": "blue"}),
        ("DELETE", "/v1/examples", {"ids": [ids[2]]}),
        ("DELETE", "/v1/classes", {"name": "green"}),
    ]
    seen = [look()]
    for method, path, body in changes:
        answer = client.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["can_undo"]
        seen.append(look())
    for before in reversed(seen[:-1]):
        assert client.post("/v1/undo").status_code == 200
        classes, photos, told = look()
        assert (classes, photos) == before[:2]
        assert told["predictions"][0]["probability"] == pytest.approx(
            before[2]["predictions"][0]["probability"], abs=1e-6
        )


def test_two_tabs_cannot_overwrite_each_other(empty):
    client = empty
    revision = client.get("/v1/state").json()["revision"]
    first = client.post("/v1/classes", json={"name": "a"}, headers={"If-Match": str(revision)})
    assert first.status_code == 200
    late = client.post("/v1/classes", json={"name": "b"}, headers={"If-Match": str(revision)})
    assert late.status_code == 409
    assert "changed meanwhile" in late.json()["error"]
    in_body = client.post("/v1/classes", json={"name": "b", "revision": revision})
    assert in_body.status_code == 409
    assert [entry["name"] for entry in client.get("/v1/state").json()["classes"]] == ["a"]


def test_the_prompt_of_a_name_has_an_article_that_fits(empty):
    for name in ("owl", "cardboard", "unicorn", "scissors", "brown_glass", "bus", "hour glass"):
        state = empty.post("/v1/classes", json={"name": name}).json()
    assert [entry["prompt"] for entry in state["classes"]] == [
        "a photo of an owl.",
        "a photo of cardboard.",
        "a photo of a unicorn.",
        "a photo of scissors.",
        "a photo of brown glass.",
        "a photo of a bus.",
        "a photo of hour glass.",
    ]


def test_a_pool_photo_becomes_an_example(empty, photo, filled):
    client = empty
    filled(client, photo, 3)
    files = [("files", (f"pool{k}.jpg", photo("green", 500 + k))) for k in range(4)]
    revision = client.get("/v1/state").json()["revision"]
    assert client.post("/v1/pool", files=files).json()["pool"] == 4
    assert client.post("/v1/pool", files=files).json()["pool"] == 4  # known by their content
    assert client.get("/v1/state").json()["revision"] == revision
    found = client.get("/v1/suggest?count=2").json()["photos"]
    assert len(found) == 2
    assert found[0]["guess"] == "green"
    state = client.post("/v1/label", json={"id": found[0]["id"], "label": "green"}).json()
    assert state["pool"] == 3
    assert found[0]["id"] in {one["id"] for one in state["photos"]}
    curve = client.get("/v1/curve").json()
    assert [point["n"] for point in curve][-1] == 10


def test_refused_files_collect_in_a_tray(empty, photo):
    client = empty
    files = [("files", ("good.jpg", photo("red"))), ("files", ("bad.jpg", b"no image"))]
    answer = client.post("/v1/examples", data={"label": "red"}, files=files).json()
    assert [one["name"] for one in answer["added"]] == ["good.jpg"]
    assert [one["name"] for one in answer["refused"]] == ["bad.jpg"]
    assert "not an image" in answer["state"]["refused"][0]["reason"]
    assert client.delete("/v1/refused").json()["refused"] == []


def test_pictures_are_encoded_anew(empty):
    client = empty
    image, exif = Image.new("RGB", (600, 400), "red"), Image.Exif()
    exif[0x010E] = "a secret place"
    stream = io.BytesIO()
    image.save(stream, "JPEG", exif=exif, comment=b"a secret place")
    files = [("files", ("a.jpg", stream.getvalue()))]
    added = client.post("/v1/examples", data={"label": "red"}, files=files).json()["added"]
    picture = client.get(f"/v1/photos/{added[0]['id']}")
    assert picture.headers["content-type"] == "image/jpeg"
    assert b"secret" not in picture.content
    assert max(Image.open(io.BytesIO(picture.content)).size) == 160
    address = f"/v1/photos/{added[0]['id']}/original"
    with ThreadPoolExecutor(12) as pool:  # more than are decoded at once: the others wait
        shown = list(pool.map(client.get, [address] * 24))
    assert {one.status_code for one in shown} == {200}
    assert Image.open(io.BytesIO(shown[0].content)).size == (600, 400)
    assert b"secret" not in shown[0].content
    assert client.get("/v1/photos/p999999/original").status_code == 404
    assert client.get("/v1/photos/p999999").status_code == 404


def test_hostile_names_stay_text(empty, photo):
    client = empty
    name = '<script>alert("1")</script>'
    files = [("files", ("../../etc/élé<img src=x>.jpg", photo("red")))]
    answer = client.post("/v1/examples", data={"label": name}, files=files).json()
    assert answer["state"]["classes"][0]["name"] == name
    assert answer["added"][0]["name"] == "élé<img src=x>.jpg"


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("POST", "/v1/classes", {"name": " "}, "is not a class name"),
        ("POST", "/v1/classes", {"name": "x" * 300}, "200 characters"),
        ("POST", "/v1/classes", {"name": "a\u0000b"}, "printable"),
        ("POST", "/v1/classes", {"name": "RED"}, "upper and lower"),
        ("POST", "/v1/classes", {"name": "red"}, "already"),
        ("PATCH", "/v1/classes", {"name": "none", "new_name": "x"}, "no class"),
        ("DELETE", "/v1/classes", {"name": "none"}, "no class"),
        ("PATCH", "/v1/examples", {"ids": ["p1"], "label": "none"}, "no class"),
        ("DELETE", "/v1/examples", {"ids": ["p999"]}, "no photo"),
        ("PATCH", "/v1/examples", {"ids": ["p1"]}, "'label', 'keep'"),
        ("PATCH", "/v1/examples", {"ids": ["p999"], "keep": True}, "no photo"),
        ("POST", "/v1/label", {"id": "../x", "label": "red"}, "no photo"),
    ],
)
def test_mistakes_are_sentences_and_change_nothing(shared, method, path, body, told):
    before = shared.client.get("/v1/state").json()
    answer = shared.client.request(method, path, json=body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]
    assert shared.client.get("/v1/state").json() == before


def test_a_kept_suspect_is_none_until_it_is_undone(start, photo, filled):
    running = start()
    client = running.client
    wrong = filled(client, photo, 5)["photos"][0]["id"]
    client.patch("/v1/examples", json={"ids": [wrong], "label": "blue"})

    def look():
        found, state = client.get("/v1/loo").json(), client.get("/v1/state").json()
        flags = next(one["flags"] for one in state["photos"] if one["id"] == wrong)
        return wrong in [one["id"] for one in found.pop("suspects")], flags, found

    suspect, flags, figures = look()
    assert suspect
    assert flags == ["suspect"]
    kept = client.patch("/v1/examples", json={"ids": [wrong], "keep": True})
    assert kept.json()["undo"] == "keeping 1 photo"
    assert look() == (False, ["kept"], figures)
    client.patch("/v1/classes", json={"name": "blue", "new_name": "azure", "prompt": "blue"})
    assert look()[:2] == (False, ["kept"])
    client.post("/v1/undo")
    start.stop(running)
    client = start().client
    assert look() == (False, ["kept"], figures)
    client.post("/v1/undo")
    assert look() == (True, ["suspect"], figures)
    client.patch("/v1/examples", json={"ids": [wrong], "keep": True})
    client.patch("/v1/examples", json={"ids": [wrong], "keep": False})
    assert look() == (True, ["suspect"], figures)


def test_a_label_that_the_model_proposed_counts_as_it_was_before(start, photo, filled):
    """The figure stays, also after a restart, until the user vouches for the label."""
    running = start()
    client = running.client
    wrong = filled(client, photo, 5)["photos"][0]["id"]
    client.patch("/v1/examples", json={"ids": [wrong], "label": "blue"})
    before = client.get("/v1/loo").json()
    suspect = before["suspects"][0]
    assert (suspect["id"], suspect["certain"], suspect["suggested"]) == (wrong, True, "red")
    state = client.patch("/v1/examples", json={"ids": [wrong], "label": "red"}).json()
    found = next(one for one in state["photos"] if one["id"] == wrong)
    assert (found["label"], found["given"]) == ("red", "blue")
    assert (state["loo"]["proposed"], state["loo"]["n"]) == (1, 15)
    assert state["loo"]["accuracy"] <= before["accuracy"] < 1
    start.stop(running)
    client = start().client
    assert client.get("/v1/state").json()["loo"] == state["loo"]
    client.patch("/v1/classes", json={"name": "blue", "new_name": "azure"})
    found = client.get("/v1/state").json()["photos"][0]
    assert (found["label"], found["given"]) == ("red", "azure")
    state = client.patch("/v1/examples", json={"ids": [wrong], "keep": True}).json()
    assert (state["loo"]["proposed"], state["loo"]["accuracy"]) == (0, 1)
    for _ in range(3):
        client.post("/v1/undo")
    assert client.get("/v1/loo").json() == before


def test_a_label_that_the_user_chose_is_no_proposal(empty, photo, filled):
    ids = [one["id"] for one in filled(empty, photo, 5)["photos"]]
    state = empty.patch("/v1/examples", json={"ids": ids[:1], "label": "blue"}).json()
    assert (state["loo"]["proposed"], state["photos"][0]["given"]) == (0, "blue")


def test_suspects_are_ranked_and_advice_is_given(empty, photo, filled):
    """Labels at random: the most probably wrong first, and the page says that this is guessing."""
    state = filled(empty, photo, 6)
    ids = [one["id"] for one in state["photos"]]
    for place, name in enumerate(("red", "green", "blue")):
        empty.patch("/v1/examples", json={"ids": ids[place::3], "label": name, "keep": False})
    found = empty.get("/v1/loo").json()
    certain = [one["certain"] for one in found["suspects"]]
    assert certain == sorted(certain, reverse=True)
    assert "guessing" in [one["kind"] for one in found["advice"]]


def test_another_label_is_judged_anew(empty, photo, filled):
    wrong = filled(empty, photo, 5)["photos"][0]["id"]

    def label(name, **further):
        state = empty.patch("/v1/examples", json={"ids": [wrong], "label": name} | further).json()
        return next(one["flags"] for one in state["photos"] if one["id"] == wrong)

    assert label("blue", keep=True) == ["kept"]
    assert label("blue") == ["kept"]
    assert label("green") == ["suspect"]


def test_the_text_encoder_is_loaded_before_a_class_asks_for_it(start, tiny):
    begun, loaded = threading.Event(), threading.Event()

    class Slow(tiny.ColourEncoder):
        """Loads at the first text, as others do, until it is told that this is done."""

        loads = 0

        def _embed_texts(self, texts):
            if not loaded.is_set():
                self.loads += 1
                begun.set()
                assert loaded.wait(300)
            return super()._embed_texts(texts)

    encoder = Slow()
    client = start(encoder=encoder).client
    assert begun.wait(300)
    assert client.get("/v1/state").status_code == 200  # nobody waits for it without need
    threading.Timer(0.3, loaded.set).start()
    assert client.post("/v1/classes", json={"name": "red"}).status_code == 200
    assert encoder.loads == 1


def test_survives_a_restart_with_its_undo(start, photo, filled):
    running = start()
    filled(running.client, photo, 3)
    running.client.delete("/v1/refused")
    before = running.client.get("/v1/state").json()
    start.stop(running)
    again = start().client
    assert again.get("/v1/state").json() == before
    assert len(again.post("/v1/undo").json()["photos"]) == 6


def test_a_second_server_on_one_workspace_is_refused(start, encoder, tmp_path):
    start()
    with pytest.raises(DataError, match="Another gpcache serve holds"):
        open_workspace(tmp_path / "workspace", encoder=encoder)


PHOTO = {"id": "p1", "name": "a.jpg", "label": "red", "hash": "0", "group": None, "kept": False}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda content: content["contents"].pop("photos"), "contents"),
        (lambda content: content.pop("contents"), "contents is missing"),
        (lambda content: content.pop("steps"), "steps is missing"),
        (lambda content: content.update(revision="many"), "revision"),
        (lambda content: content.update(templates=7), "templates"),
        (lambda content: content.update(curve=[[1]]), "curve"),
        (lambda content: content["contents"].update(photos=[PHOTO | {"id": "x"}]), "contents"),
        (lambda content: content["contents"].update(classes=["red"]), "contents"),
        (lambda content: content.update(steps=[{"what": "x"}]), "steps"),
    ],
)
def test_a_damaged_workspace_is_a_sentence(encoder, tmp_path, change, where):
    folder = tmp_path / "workspace"
    open_workspace(folder, encoder=encoder).folder.close()
    file = folder / "workspace.json"
    content = json.loads(file.read_text())
    change(content)
    content["sha256"] = UNSEALED
    data = seal(json.dumps(content, separators=(",", ":")).encode())
    for name in ("workspace.json", "workspace-copy.json"):
        (folder / name).write_bytes(data)
    with pytest.raises(DataError, match=f"is damaged.*{where}") as refused:
        open_workspace(folder, encoder=encoder)
    assert "\n" not in str(refused.value)


def test_a_workspace_of_the_former_lite_opens(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "workspace"
    encoder = tiny.ColourEncoder()
    encoder.fingerprint = LITE0_FINGERPRINT
    opened = open_workspace(folder, encoder=encoder)
    opened.folder.write(replace(opened.document, encoder="lite"))
    opened.folder.close()
    asked = []

    def load(name, **_):
        asked.append(name)
        return encoder

    monkeypatch.setattr("gpcache.web.open_workspace.load_encoder", load)
    opened = open_workspace(folder)
    opened.folder.close()
    assert asked == ["lite0"]
    assert opened.document.encoder == "lite0"


def test_joiners_are_part_of_names(empty):
    for name in ("می‌خواهم", "👩‍🚒"):
        state = empty.post("/v1/classes", json={"name": name}).json()
        assert state["classes"][-1]["name"] == name
    assert empty.post("/v1/classes", json={"name": "‍"}).status_code == 400
