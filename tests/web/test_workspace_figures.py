"""The figures of a workspace: of the same classes, without what was undone, or not shown."""


def test_the_curve_compares_the_same_classes(empty, photo, filled):
    def look():
        return [point["n"] for point in empty.get("/v1/curve").json()]

    def add(colour, first, count):
        files = [("files", (f"{k}.jpg", photo(colour, k))) for k in range(first, first + count)]
        empty.post("/v1/examples", data={"label": colour}, files=files)
        return look()

    assert look() == []  # of what was before nothing is left
    filled(empty, photo, 4)
    assert look() == [12]  # not 8, of two classes
    assert add("red", 500, 2) == [12, 14]
    assert add("blue", 510, 1) == [12, 14, 15]
    state = empty.post("/v1/undo").json()
    assert look() == [12, 14]  # no trace of what was undone
    moved = [state["photos"][0]["id"]]
    empty.patch("/v1/examples", json={"ids": moved, "label": "blue"})
    assert look() == [12, 14]  # one point for as many photos
    curve = empty.get("/v1/curve").json()
    assert curve[-1]["accuracy"] == empty.get("/v1/state").json()["loo"]["accuracy"]
    empty.patch("/v1/examples", json={"ids": moved, "keep": True})
    assert empty.get("/v1/curve").json() == curve
    empty.patch("/v1/classes", json={"name": "green", "new_name": "lime"})
    assert look() == [12, 14]  # another name is no other class
    empty.request("DELETE", "/v1/classes", json={"name": "lime"})
    assert look() == [10]
    empty.post("/v1/undo")
    assert look() == [12, 14]


def test_one_class_has_no_figure(empty, photo):
    files = [("files", (f"{k}.jpg", photo("red", k))) for k in range(4)]
    for name in ("red", "green"):
        empty.post("/v1/classes", json={"name": name})
    state = empty.post("/v1/examples", data={"label": "red"}, files=files).json()["state"]
    assert state["loo"] is None
    assert "Only one class has photos" in empty.get("/v1/loo").json()["why"]
    empty.post("/v1/classes", json={"name": "blue"})
    files = [("files", (f"{k}.jpg", photo("green", k))) for k in range(3)]
    state = empty.post("/v1/examples", data={"label": "green"}, files=files).json()["state"]
    assert (state["loo"]["covered"], state["loo"]["of"]) == (2, 3)


def test_the_curve_forgets_its_beginning(empty, photo, filled, monkeypatch):
    monkeypatch.setattr("gpcache.web.curve.MAX_POINTS", 3)
    state = filled(empty, photo, 3)
    for one in state["photos"][:4]:
        empty.request("DELETE", "/v1/examples", json={"ids": [one["id"]]})
    assert [point["n"] for point in empty.get("/v1/curve").json()] == [7, 6, 5]
