"""Class names of the page: the same rules as those of folders and lists."""

import pytest

from gpcache.errors import DataError
from gpcache.web.workspace_contents import Contents

ENGLAND = "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


def test_spellings_that_differ_in_white_space_are_one_class():
    contents = Contents().with_class(" black \t cat ")
    assert contents.class_names() == ["black cat"]
    assert contents.entry("black\u00a0 cat").name == "black cat"
    with pytest.raises(DataError, match="already"):
        contents.with_class("black  cat")
    assert contents.with_changed_class("black  cat", "dog").class_names() == ["dog"]


@pytest.mark.parametrize("name", ["می\u200cخواهم", "👩‍🔬", "🐈‍⬛", ENGLAND])
def test_any_script_and_any_emoji_is_a_name(name):
    assert Contents().with_class(name).entry(name).name == name


@pytest.mark.parametrize("name", ["", " \t", "\u200d", "a\x1bb", "a\u202eb"])
def test_what_cannot_be_printed_is_no_name(name):
    with pytest.raises(DataError, match="printable"):
        Contents().with_class(name)
