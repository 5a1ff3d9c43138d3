"""Class names of folders, lists and Python sequences: the rules that the page has too."""

import numpy as np
import pytest

from gpcache.errors import DataError
from gpcache.images.sources import from_iterable, open_source
from gpcache.methods import GPCacheClassifier
from gpcache.web.workspace_contents import Contents

REFUSED = {
    "control": ("a\x1bb", "U+001B"),
    "invisible": ("a\u200bb", "U+200B"),
    "blank letter": ("a\u3164", "U+3164"),
    "override": ("a\u202eb", "U+202E"),
    "long": ("a" * 250, "longer than 200 characters"),
    "joiner": ("\u200d", "is not a class name"),
    "selector": ("\ufe0f", "is not a class name"),
    "blanks": ("_ _", "is not a class name"),
}
ENGLAND = "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
# The last one is from 2024, younger than the tables of older Pythons.
LEGAL = ["می\u200cخواهم", "👩‍🔬", "🐈‍⬛", "❤️", ENGLAND, "a" * 200, "\U0001fae9"]


@pytest.fixture(params=["folder", "list", "sequence", "page"])
def classes(request, tmp_path, photo):
    """The classes that one name gives, in one of the ways to give it."""

    def classes(name):
        if request.param == "page":
            return Contents().with_class(name).class_names()
        if request.param == "sequence":
            return [record.label for record in from_iterable([photo], labels=[name]).records]
        if request.param == "folder":
            (tmp_path / name).mkdir()
            photo.save(tmp_path / name / "a.png")
            return open_source(tmp_path).classes
        photo.save(tmp_path / "a.png")
        (tmp_path / "list.csv").write_text(f"path,label\na.png,{name}\n", encoding="utf-8")
        return open_source(tmp_path / "list.csv").classes

    return classes


@pytest.mark.parametrize(("name", "told"), REFUSED.values(), ids=REFUSED)
def test_a_name_that_cannot_be_seen_is_refused_in_one_sentence(classes, name, told):
    with pytest.raises(DataError, match=r"^[^\x1b\u200b\u202e]*\.$") as refused:
        classes(name)
    assert told.replace("U+", "the character U+") in str(refused.value)


@pytest.mark.parametrize("name", LEGAL, ids=ascii)
def test_any_script_and_any_emoji_is_a_name(classes, name):
    assert classes(name) == [name]


def test_folders_without_labels_have_no_class_names(tmp_path, photo):
    (tmp_path / "a\u202eb").mkdir()
    photo.save(tmp_path / "a\u202eb" / "a.png")
    assert len(list(open_source(tmp_path, labelled=False).records)) == 1


def test_labels_of_estimators_are_kept_as_they_are():
    labels = ["a\x1bb", "a\u200bb", "a" * 300]
    model = GPCacheClassifier().fit(np.eye(3, dtype=np.float32), labels)
    assert sorted(model.classes_) == sorted(labels)
