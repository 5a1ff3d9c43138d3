"""A test set over HTTP: which photos count, their figures, the report, and its end."""

import pytest


def add(client, label, photos):
    files = [("files", (f"{number}.jpg", content)) for number, content in enumerate(photos)]
    assert client.post("/v1/examples", data={"label": label}, files=files).status_code == 200


def test_a_test_set_is_measured_reported_and_removed(empty, photo):
    pytest.importorskip("matplotlib")
    for colour in ("red", "green"):
        add(empty, colour, [photo(colour, number) for number in range(600, 604)])
    without = empty.get("/v1/test-set/report")
    assert without.status_code == 400
    assert "no photo of these classes" in without.json()["error"]
    sent = [
        *((f"test/{colour}/{k}.jpg", photo(colour, k)) for colour in ("red", "green")
          for k in range(700, 703)),
        ("test/red/learned.jpg", photo("red", 600)),
        ("test/grey/other.jpg", photo("blue", 710)),
        ("loose.jpg", photo("red", 711)),
        ("test/red/none.jpg", b"no image"),
    ]  # fmt: skip
    found = empty.post("/v1/test-set", files=[("files", one) for one in sent]).json()
    assert (found["photos"], found["other_folders"]) == (8, ["grey"])
    assert [one["name"] for one in found["refused"]] == ["loose.jpg", "none.jpg"]
    assert found["figures"]["n"] == 6
    assert "2 others are training photos or of another class" in found["figures"]["protocol"]
    assert empty.get("/v1/test-set").json() == found
    report = empty.get("/v1/test-set/report")
    assert report.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Hardest test images" in report.text
    left = empty.delete("/v1/test-set").json()
    assert (left["photos"], left["figures"]) == (0, None)
