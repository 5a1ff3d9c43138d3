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
    require_directions,
    same_kind,
    share,
    to_numpy,
    whole,
)


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
