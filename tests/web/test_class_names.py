"""Class names of the page; tests/images/test_class_names.py has the rules of all sources."""

import pytest

from gpcache.errors import DataError
from gpcache.web.workspace_contents import ClassEntry, Contents


def test_spellings_that_differ_in_white_space_are_one_class():
    contents = Contents().with_class(" black \t cat ")
    assert contents.class_names() == ["black cat"]
    assert contents.entry("black\u00a0 cat").name == "black cat"
    with pytest.raises(DataError, match="already"):
        contents.with_class("black  cat")
    assert contents.with_changed_class("black  cat", "dog").class_names() == ["dog"]


def test_a_class_of_an_older_model_can_be_renamed():
    """Folders allowed such names once."""
    contents = Contents((ClassEntry("a\u202eb"), ClassEntry("dog")))
    assert contents.with_class("cat").class_names() == ["a\u202eb", "dog", "cat"]
    assert contents.with_changed_class("a\u202eb", "cat").class_names() == ["cat", "dog"]


def test_photos_are_added_to_the_class_of_any_spelling(empty, photo):
    empty.post("/v1/classes", json={"name": "a cat"})
    for number, label in enumerate(["a  cat", " a cat\t", "a\u00a0cat"]):
        files = {"files": (f"{number}.jpg", photo("red", number))}
        answer = empty.post("/v1/examples", data={"label": label}, files=files)
        assert answer.status_code == 200, answer.text
    state = empty.get("/v1/state").json()
    assert [(one["name"], one["count"]) for one in state["classes"]] == [("a cat", 3)]
    assert {one["label"] for one in state["photos"]} == {"a cat"}
    assert state["undo"] == "adding 1 photo to a cat"


def test_photos_of_a_test_set_are_of_the_class_of_any_spelling(empty, photo):
    empty.post("/v1/classes", json={"name": "a cat"})
    files = {"files": ("a  cat/1.jpg", photo("red", 1))}
    assert empty.post("/v1/test-set", files=files).json()["other_folders"] == []
    empty.delete("/v1/test-set")
