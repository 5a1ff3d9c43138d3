"""Checks of what a user passed: what is good comes back, the rest is one sentence."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from gpcache.errors import DataError
from gpcache.support.checks import (
    label_array,
    number_array,
    one_of,
    positive,
    refuse_missing,
    refuse_twins,
    require_directions,
    same_kind,
    share,
    shown,
    to_numpy,
    whole,
)
from gpcache.support.names import quoted


def test_tensors_become_arrays_and_torch_is_not_imported_for_that():
    found = to_numpy(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    assert found.dtype == np.float32
    assert to_numpy("cat") == "cat"
    code = (
        "import sys\nfrom gpcache.support.checks import to_numpy\n"
        "assert to_numpy([1]) == [1]\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_labels():
    assert label_array("y", "cat").tolist() == ["cat"]
    assert same_kind(np.array(["cat"]), np.array(["dog"]))
    assert not same_kind(np.array(["cat"]), np.array([1]))
    with pytest.raises(DataError, match=r"^y needs one label per row, .*\(1, 1\)"):
        label_array("y", [["cat"]])


MISSING = {
    "None": (["a", None], "None"),
    "None in an array": (np.array(["a", None], dtype=object), "None"),
    "NaN": (["a", float("nan")], "NaN"),
    "NaN in an array": (np.array([1.0, np.nan]), "NaN"),
    "NaT": (np.array(["2020-01-01", "NaT"], dtype="M8[D]"), "NaT"),
    "NaT of nanoseconds": (np.array(["2020-01-01", "NaT"], dtype="M8[ns]"), "NaT"),
    "NaT of a duration": (np.array([1, "NaT"], dtype="m8[s]"), "NaT"),
    "NaT in a list": ([np.datetime64("2020-01-01"), np.datetime64("NaT")], "NaT"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_label_is_no_class(name):
    labels, word = MISSING[name]
    message = f"^y contains {word} in row 1, which is not a class: give it a label\\.$"
    with pytest.raises(DataError, match=message):
        refuse_missing("y", labels)
    if word != "None":
        with pytest.raises(DataError, match=message):
            label_array("y", labels)
    refuse_missing("y", labels[:1])


def test_an_image_may_have_no_label():
    assert label_array("y", ["a", None]).tolist() == ["a", None]


def test_long_doubles_become_float64():
    found = to_numpy(np.array([0.5, 2.0], dtype=np.longdouble))
    assert (found.dtype, found.tolist()) == (np.float64, [0.5, 2.0])
    assert number_array("X", np.ones(2, dtype=np.longdouble)).dtype == np.float64
    with np.errstate(over="raise"):
        assert to_numpy(np.array([np.longdouble(10) ** 4000])).tolist() == [np.inf]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_masked_rows_is_refused(kind):
    rows = np.ma.masked_array(np.eye(2), np.eye(2) > 0)
    with pytest.raises(DataError, match=r"^A masked array"):
        to_numpy(kind(rows))


PRINTED = {
    "me": "'me'",
    "it's": '"it\'s"',
    'it\'s "me"': "'it\\'s \"me\"'",
    "back\\slash": "'back\\\\slash'",
    "کتاب\u200cخانه": "'کتاب\u200cخانه'",
    "👩\u200d🌾": "'👩\u200d🌾'",
    "🏴\U000e0067\U000e007f": "'🏴\U000e0067\U000e007f'",
    "red\x1b[31m": "'red\\x1b[31m'",
    "two\nlines\u2028": "'two\\nlines\\u2028'",
    "\u202eright": "'\\u202eright'",
    "\ud800": "'\\ud800'",
}


@pytest.mark.parametrize("name", PRINTED, ids=ascii)
def test_names_are_printed_as_they_are_and_cannot_control_a_terminal(name):
    assert quoted(name) == shown(name) == shown(np.array([name])[0]) == PRINTED[name]


def test_names_that_look_alike_are_shown_with_what_differs():
    with pytest.raises(DataError, match=r"^The class names 'a b' and 'a  b' differ only in white"):
        refuse_twins(["a b", "a  b"])
    with pytest.raises(DataError, match=r"names 'caf\\xe9' and 'cafe\\u0301' differ only"):
        refuse_twins(["caf\xe9", "cafe\u0301"])
    with pytest.raises(DataError, match=r"names 'caf\\xe9' and 'cafe\\u0301' differ only"):
        refuse_twins(np.array(["caf\xe9", "cafe\u0301"]))


def test_whole_numbers_of_any_size_are_numbers_up_to_the_largest_float():
    assert positive("alpha", 2**70) == 2.0**70
    with pytest.raises(DataError, match="alpha must be a number above zero"):
        positive("alpha", 10**400)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_rows_without_a_direction(bad):
    lengths = torch.tensor([1.0, 2.0, bad])
    require_directions(lengths[:2], "X")
    with pytest.raises(DataError, match=r"^Row 12 of X is all zeros or holds NaN or inf\.$"):
        require_directions(lengths, "X", first=10)


class Owner:
    pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: positive("beta", 0, owner=Owner()), "beta of Owner must be 'auto' or a number ab"),
        (lambda: positive("beta", -1, owner=Owner(), auto=False), "must be a number above zero, g"),
        (lambda: positive("rate", -1, allow_zero=True), "rate must be a number of zero or more, g"),
        (lambda: positive("rate", True), "got True"),
        (lambda: positive("rate", np.float32("nan")), "got nan"),
        (lambda: whole("k", 0, least=1), "k must be a whole number above zero, got 0"),
        (lambda: whole("seed", -1, least=0), "seed must be a whole number of 0 or more, got -1"),
        (lambda: whole("k", 2.0, least=1), "got 2.0"),
        (lambda: whole("k", True, least=1), "got True"),
        (lambda: share("level", 1.0), "level must lie between 0 and 1, got 1.0"),
        (lambda: one_of("kind", "c", ("a", "b")), "kind must be one of 'a', 'b', got 'c'"),
        (lambda: one_of("kind", 3, ("a",), owner=Owner()), "kind of Owner must be one of 'a', got"),
        (lambda: number_array("X", ["a"]), "X must be numbers, got an array of <U1"),
    ],
)
def test_bad_values_are_one_sentence(call, message):
    with pytest.raises(DataError) as caught:
        call()
    assert message in str(caught.value)
    assert str(caught.value).endswith(".")


def test_good_values_come_back():
    assert positive("rate", np.float32(0.5)) == 0.5
    assert whole("k", np.int64(3), least=1) == 3
    share("level", 1.0, closed=True)
    one_of("kind", "a", ("a", "b"))
