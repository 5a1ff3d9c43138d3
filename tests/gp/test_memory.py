"""What does not fit is refused before it is allocated, with the sizes and a remedy that works."""

import re

import pytest
import torch

from gpcache.errors import NumericalError
from gpcache.gp import (
    ClassMeanPrecision,
    ExactPrecision,
    FourierPrecision,
    GroupedPrecision,
    NystromPrecision,
    exact,
)
from gpcache.support import devices

UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
# The kernel matrix, its factor and its inverse.
MATRICES = 3


@pytest.fixture
def free(monkeypatch):
    """Sets the amount of free memory, the only thing that these tests make up.

    They use small sizes, so these are compared, too.
    """
    monkeypatch.setattr(devices, "LITTLE_MEMORY", 0)

    def set_free(amount):
        for module in (devices, exact):
            monkeypatch.setattr(module, "free_memory", lambda _: amount)

    return set_free


def labels_of(n, n_classes, device):
    return torch.arange(n, device=device) % n_classes


def sizes_in(message):
    found = re.search(r"needs ([\d.,]+) (\w+), but \S+ has ([\d.,]+) (\w+) free", message)
    assert found, message
    required, unit, left, left_unit = found.groups()
    return (
        float(required.replace(",", "")) * UNITS[unit],
        float(left.replace(",", "")) * UNITS[left_unit],
    )


@pytest.mark.parametrize("n", [400, 1000])
def test_more_than_fits_is_refused_with_sizes_and_remedy(n, dtype, device, free):
    required = MATRICES * n * n * dtype.itemsize
    labels = labels_of(n, 50, device)
    free(required)
    assert ExactPrecision.plan(labels, 50, dtype=dtype) is None
    free(required - 1)
    with pytest.raises(NumericalError) as caught:
        ExactPrecision.plan(labels, 50, dtype=dtype)
    message = str(caught.value)
    assert f"{n:,} keys" in message
    assert sizes_in(message) == (
        pytest.approx(required, rel=0.05),
        pytest.approx(required, rel=0.05),
    )
    assert re.search(r"precision='grouped' with n_groups=\d+", message)


def test_the_default_is_to_plan_for_float64(device, free):
    free(MATRICES * 1000 * 1000 * 8 - 1)
    with pytest.raises(NumericalError, match="1,000 keys"):
        ExactPrecision.plan(labels_of(1000, 50, device), 50)


@pytest.mark.parametrize("share", [0.9, 0.3, 0.04])
def test_the_remedy_works(share, device, free):
    labels = labels_of(1000, 100, device)
    free(int(share * MATRICES * 1000**2 * 8))
    with pytest.raises(NumericalError) as caught:
        ExactPrecision.plan(labels, 100)
    n_groups = int(re.search(r"n_groups=(\d+)", str(caught.value))[1])
    assert 1 < n_groups <= 100
    assert (
        len(torch.bincount(GroupedPrecision.plan(labels, 100, n_groups=n_groups).class_group))
        == n_groups
    )


@pytest.mark.parametrize(("n_classes", "possible"), [(101, True), (100, True), (99, False)])
def test_no_more_groups_are_named_than_there_are_classes(n_classes, possible, device, free):
    """A fiftieth of what is needed: with room to spare that takes 100 groups."""
    labels = labels_of(1000, n_classes, device)
    free(MATRICES * 1000**2 * 8 // 50)
    with pytest.raises(NumericalError) as caught:
        ExactPrecision.plan(labels, n_classes)
    message = str(caught.value)
    assert ("n_groups=100" in message) == possible
    assert ("grouped" in message) == possible
    assert "precision='nystrom'" in message
    assert ("precision='fourier'" in message) == (not possible)


@pytest.mark.parametrize("remedy", ["nystrom", "fourier"])
def test_the_remedy_without_groups_works(remedy, device, free):
    labels = labels_of(1000, 10, device)
    free(MATRICES * 1000**2 * 8 // 50)
    for plan in (ExactPrecision.plan, GroupedPrecision.plan):
        with pytest.raises(NumericalError, match=f"precision='{remedy}'"):
            plan(labels, 10)
    kind, size = {
        "nystrom": (NystromPrecision, {}),
        "fourier": (FourierPrecision, {"width": 4, "n_features": 20}),
    }[remedy]
    assert kind.plan(labels, 10, **size) is not None


def test_groups_need_their_padded_size(device, free):
    """Two groups of 100 and 500 keys need two squares of 500."""
    labels = torch.repeat_interleave(torch.arange(2), torch.tensor([100, 500])).to(device)
    required = MATRICES * 2 * 500**2 * 8
    free(required)
    assert GroupedPrecision.plan(labels, 2, n_groups=2).rows.shape == (2, 500)
    free(required - 1)
    with pytest.raises(NumericalError, match=r"in 2 group\(s\)") as caught:
        GroupedPrecision.plan(labels, 2, n_groups=2)
    assert sizes_in(str(caught.value))[0] == pytest.approx(required, rel=0.05)


def test_two_million_keys_are_refused_here_and_now(device):
    """With the memory that there is: 96 TB could not have been allocated."""
    labels = labels_of(2_000_000, 1000, device)
    with pytest.raises(NumericalError, match=r"2,000,000 keys.*Use precision='\w+'") as caught:
        ExactPrecision.plan(labels, 1000)
    required, left = sizes_in(str(caught.value))
    assert required == pytest.approx(96e12)
    assert 0 < left < required
    with pytest.raises(NumericalError, match=r"in 2 group\(s\)") as caught:
        GroupedPrecision.plan(labels, 1000, n_groups=2)
    assert sizes_in(str(caught.value))[0] == pytest.approx(48e12)


@pytest.mark.parametrize(
    ("kind", "option"), [(NystromPrecision, "n_landmarks"), (FourierPrecision, "n_features")]
)
def test_low_rank_needs_its_features_and_its_core(kind, option, device, free):
    """U and its copy in the making, and three matrices of the core, in float64."""
    labels, rank = labels_of(1000, 50, device), 100
    required = 8 * (2 * 1000 * rank + 3 * rank**2)
    free(required)
    assert kind.plan(labels, 50, width=4, **{option: rank}) is not None
    free(required - 1)
    with pytest.raises(NumericalError, match=f"rank 100 over 1,000 keys.*fewer {option}") as caught:
        kind.plan(labels, 50, width=4, **{option: rank})
    assert sizes_in(str(caught.value))[0] == pytest.approx(required, rel=0.05)


def test_classes_need_what_as_many_keys_need(device, free):
    labels, required = labels_of(5000, 200, device), MATRICES * 200**2 * 8
    free(required)
    assert len(ClassMeanPrecision.plan(labels, 200).counts) == 200
    free(required - 1)
    with pytest.raises(NumericalError, match="200 keys") as caught:
        ClassMeanPrecision.plan(labels, 200)
    assert sizes_in(str(caught.value))[0] == pytest.approx(required, rel=0.05)
    free(required // 2)
    assert ClassMeanPrecision.plan(labels, 200, dtype=torch.float32) is not None
    free(MATRICES * 3**2 * 8)  # no more classes than rows
    assert len(ClassMeanPrecision.plan(labels[:3], 200).counts) == 3


def test_a_million_features_or_classes_are_refused_here_and_now(device):
    labels = labels_of(2_000_000, 1000, device)
    required = 8 * (2 * 2_000_000 * 10**6 + 3 * 10**12)
    for kind, option in ((NystromPrecision, "n_landmarks"), (FourierPrecision, "n_features")):
        with pytest.raises(NumericalError, match=f"2,000,000 keys.*fewer {option}") as caught:
            kind.plan(labels, 1000, width=4, **{option: 10**6})
        assert sizes_in(str(caught.value))[0] == pytest.approx(required, rel=0.05)
    with pytest.raises(NumericalError, match="500,000 keys") as caught:
        ClassMeanPrecision.plan(torch.arange(500_000, device=device), 500_000)
    assert sizes_in(str(caught.value))[0] == pytest.approx(6e12)
