"""What all encoders share: input checks, halved batches, views, names."""

import numpy as np
import pytest
import torch

from gpcache.encoders import Encoder, load_encoder
from gpcache.errors import DataError, EncoderError, ImageRefusedError
from gpcache.images import Preprocess


class Brightness(Encoder):
    """The mean of each third of an image; runs out of memory above `room` images."""

    name = "brightness"
    dim = 3
    logit_scale = 1.0
    preprocess = Preprocess(size=6, mean=(0, 0, 0), std=(1, 1, 1))

    def __init__(self, room=100):
        super().__init__("cpu")
        self.room = room
        self.batches = []

    def _embed_images(self, batch):
        if len(batch) > self.room:
            raise torch.OutOfMemoryError
        self.batches.append(len(batch))
        return batch.mean((1, 3)).reshape(len(batch), 3, 2).mean(2)

    def _embed_texts(self, texts):
        return torch.tensor([[float(len(text)), 1, 0] for text in texts])

    def _identity(self):
        yield b"brightness"


@pytest.fixture
def images():
    return list(np.random.default_rng(0).integers(1, 256, (9, 20, 30, 3), dtype=np.uint8))


def test_a_batch_that_does_not_fit_is_halved_with_a_warning(images):
    small = Brightness(room=2)
    with pytest.warns(RuntimeWarning, match="ran out of memory at 9 images: continuing with 5"):
        features = small.encode_images(images, batch_size=9)
    np.testing.assert_array_equal(features, Brightness().encode_images(images))
    assert max(small.batches) <= 2
    assert small.batch_size == 2


def test_views_of_an_image_stay_together_when_a_batch_is_halved():
    pixels = np.random.default_rng(0).integers(1, 256, (5, 3, 6, 6, 3), dtype=np.uint8)
    small = Brightness(room=6)
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        features = small.encode_views(pixels, average=True)
    np.testing.assert_allclose(features, Brightness().encode_views(pixels, average=True), atol=1e-6)
    assert all(size % 3 == 0 for size in small.batches)


def test_one_image_that_does_not_fit_is_an_error(images):
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(EncoderError, match="not have enough memory for 'brightness' and one image"),
    ):
        Brightness(room=0).encode_images(images)


def test_a_black_image_gives_no_direction_and_says_so():
    with pytest.raises(EncoderError, match="image vector of NaN, inf or zeros"):
        Brightness().encode_images([np.zeros((8, 8, 3), dtype=np.uint8)])


def test_inputs_that_are_no_images_are_refused():
    with pytest.raises(ImageRefusedError):
        Brightness().encode_images(["no/such/file.jpg"])
    with pytest.raises(DataError, match="put a single one in a list"):
        Brightness().encode_images("photo.jpg")
    with pytest.raises(DataError, match="A text must be a string, got 3"):
        Brightness().encode_texts(["a", 3])
    with pytest.raises(DataError, match=r"^The text 'caf\\udce9' is not valid UTF-8: "):
        Brightness().encode_texts(["a", "caf\udce9"])


def test_what_an_encoder_lacks_is_said():
    for call in (
        lambda: Brightness().encode_spatial([]),
        lambda: Brightness().embed_tokens(["a"]),
        lambda: Brightness().encode_tokens(None),
    ):
        with pytest.raises(EncoderError, match=r"The encoder 'brightness' (has|gives) no"):
            call()


def test_the_fingerprint_knows_the_preprocessing():
    other = Brightness()
    other.preprocess = Preprocess(size=6, mean=(0, 0, 0), std=(1, 1, 2))
    assert other.fingerprint != Brightness().fingerprint == Brightness().fingerprint


@pytest.mark.parametrize("name", ["", "clip", "lite2", "no/such/folder"])
def test_an_unknown_encoder_lists_the_known_ones(name):
    known = rf"no encoder '{name}': use 'lite', 'lite0', 'clip-rn50'"
    with pytest.raises(EncoderError, match=known):
        load_encoder(name)
