"""The stream: every image in its turn, copies once, refusals in place, and never far ahead."""

import itertools
import threading
import time

import numpy as np
import pytest

from gpcache.errors import DataError
from gpcache.features.stream import Encoded, encoded
from gpcache.images.augment import Views
from gpcache.images.records import Refused
from gpcache.images.sources import from_iterable, open_source


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)


def stream(items, encoder, **options):
    return encoded(from_iterable(items), encoder, workers=1, **options)


@pytest.mark.parametrize("batch_size", [1, 5, 64, None])
def test_order_and_features_do_not_depend_on_batches(batch_size, encoder):
    pictures = [picture(seed) for seed in range(12)]
    found = list(stream(pictures, encoder, batch_size=batch_size))
    assert [one.record.name for one in found] == [f"item {i:07d}" for i in range(12)]
    rows = np.stack([one.features for one in found])
    np.testing.assert_allclose(rows, encoder.encode_images(pictures), atol=1e-6)


def test_files_and_their_hashes(photos, encoder):
    found = list(encoded(open_source(photos), encoder, workers=2))
    assert [one.record.label for one in found] == list("aaaabbbbcccc")
    paths = [photos / one.record.name for one in found]
    rows = np.stack([one.features for one in found])
    np.testing.assert_allclose(rows, encoder.encode_images(paths), atol=1e-6)
    assert len({one.hash for one in found}) == 12


def test_copies_are_encoded_once_unless_each_is_wanted(encoder):
    pictures = [picture(0), picture(1), picture(0), picture(0)]
    once = list(stream(pictures, encoder))
    assert [one.features is None for one in once] == [False, False, True, True]
    assert once[0].hash == once[2].hash == once[3].hash != once[1].hash
    each = list(stream(pictures, encoder, repeat=True))
    np.testing.assert_array_equal(each[0].features, each[3].features)


def test_what_is_known_is_not_encoded(encoder):
    known = {one.hash for one in stream([picture(0)], encoder)}
    found = list(stream([picture(1), picture(0)], encoder, known=known))
    assert [one.features is None for one in found] == [False, True]
    assert len(known) == 1  # the caller's set is his own


def test_arrays_of_one_content_but_another_shape_are_no_copies(encoder):
    flat = np.zeros((20, 40, 3), dtype=np.uint8)
    found = list(stream([flat, flat.reshape(40, 20, 3)], encoder))
    assert found[0].hash != found[1].hash


def test_refusals_come_in_their_turn_and_so_do_their_copies(encoder, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    items = [picture(0), broken, picture(1), broken, tmp_path / "gone.png", 3, b"no image"]
    found = list(stream(items, encoder, batch_size=2))
    assert [type(one) for one in found] == [Encoded, Refused, Encoded, *[Refused] * 4]
    reasons = [one.reason for one in found if isinstance(one, Refused)]
    assert reasons[0] == reasons[1] == reasons[4]
    assert "not an image" in reasons[0]
    assert "no such file" in reasons[2]
    assert "got int" in reasons[3]


def test_views_are_averaged_or_kept(encoder):
    mean = next(stream([picture(0)], encoder, views=Views(4)))
    every = next(stream([picture(0)], encoder, views=Views(4, average=False)))
    assert mean.features.shape == (16,)
    assert every.features.shape == (4, 16)
    plain = next(stream([picture(0)], encoder))
    assert np.abs(mean.features - plain.features).max() > 0.01


def test_an_endless_source_is_read_only_a_few_batches_ahead(encoder):
    taken = itertools.count()

    def endless():
        while True:
            yield picture(next(taken))

    running = stream(endless(), encoder, batch_size=4)
    assert len(list(itertools.islice(running, 40))) == 40
    time.sleep(0.3)  # let the reader run as far as it will
    running.close()
    assert next(taken) <= 40 + 5 * 4


def test_a_stream_that_is_left_early_leaves_nothing_running(encoder, photos):
    before = threading.active_count()
    running = encoded(open_source(photos), encoder, workers=2, batch_size=1)
    next(running)
    running.close()
    assert threading.active_count() == before


def test_an_error_of_the_source_reaches_the_caller(encoder):
    def failing():
        yield picture(0)
        raise DataError("The camera is gone.")

    running = stream(failing(), encoder, batch_size=1)
    assert next(running).record.name == "item 0000000"
    with pytest.raises(DataError, match=r"^The camera is gone\.$"):
        next(running)


def test_nothing_in_nothing_out(encoder):
    assert list(stream([], encoder)) == []
