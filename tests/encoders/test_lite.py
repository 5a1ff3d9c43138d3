"""`lite` and `lite0` with their true weights: the folded network, ConSE, tokens, fingerprints."""

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from gpcache.encoders import lite as module
from gpcache.encoders import load_encoder
from gpcache.encoders.efficientnet import load_network
from gpcache.encoders.lite import imagenet_classes
from gpcache.encoders.lite_recipes import LITE0_FINGERPRINT, TEXT_WIDTH, current_name
from gpcache.errors import EncoderError, MissingExtraError

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared")) / "images" / "caltech20"


@pytest.fixture(scope="module", params=["lite", "lite0"])
def lite(request):
    return load_encoder(request.param, device="cpu")


@pytest.fixture
def images():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, size, dtype=np.uint8) for size in [(300, 250, 3), (90, 99)]]


@pytest.fixture
def batch(lite):
    generator, size = torch.Generator().manual_seed(0), lite.preprocess.size
    pixels = torch.randint(0, 256, (2, size, size, 3), generator=generator, dtype=torch.uint8)
    return lite.preprocess.normalised(pixels)


def places(lite):
    """Positions along a side of the feature map: the network halves the image five times."""
    return {260: 9, 224: 7}[lite.preprocess.size]


def test_images_and_texts_share_a_space_of_unit_vectors(lite, images):
    for vectors in (lite.encode_images(images), lite.encode_texts(["a cat", "a dog"])):
        assert vectors.shape == (2, lite.dim)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_the_graph_gives_what_the_package_gives(lite, batch):
    """Batch norm folded and run by ONNX Runtime, against the package's own network in torch."""
    with torch.inference_mode():
        expected = load_network(lite.recipe).extract_features(batch)
        maps = lite._maps(batch)
    assert maps.shape == (2, 1280, places(lite), places(lite))
    np.testing.assert_allclose(maps, expected, atol=1e-4)


def test_the_layers_for_a_gpu_give_the_same(lite, batch):
    """The path of an accelerator, on CPU tensors."""
    with torch.inference_mode():
        maps = lite._vision.maps(batch)
        np.testing.assert_allclose(maps, lite._maps(batch), atol=1e-4)
        joined = lite._joined(maps.mean((2, 3)))
    np.testing.assert_allclose(joined, lite._embed_images(batch), atol=1e-6)


def test_the_text_is_read_as_transformers_reads_it(lite):
    """MiniLM against the library that its weights were published for."""
    transformers = pytest.importorskip("transformers")
    folder = module._language_folder()
    tokens = lite.embed_tokens(["a cat", "a photo of a dog in the garden.", ""])
    bert = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.inference_mode():
        last = bert(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        mask = tokens.mask.unsqueeze(-1)
        expected = functional.normalize((last * mask).sum(1) / mask.sum(1), dim=-1)
        found = lite.encode_tokens(tokens)[:, :TEXT_WIDTH]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_conse_is_the_weighted_mean_of_the_likeliest_class_names(lite, images):
    """A slow reading of the definition, from the package's logits and MiniLM's sentences."""
    pixels = torch.from_numpy(np.stack([lite.preprocess.pixels(_rgb(image)) for image in images]))
    network, names = load_network(lite.recipe), imagenet_classes()
    with torch.inference_mode():
        logits = network(lite.preprocess.normalised(pixels))
    for image, row in zip(images, logits, strict=True):
        likely = row.argsort(descending=True)[: lite.recipe.candidates]
        weights = row[likely].double().exp() / row[likely].double().exp().sum()
        sentences = sum(
            weight * _anchor(lite, names[index])
            for weight, index in zip(weights.tolist(), likely.tolist(), strict=True)
        )
        expected = np.sqrt(lite.recipe.mixing) * sentences / np.linalg.norm(sentences)
        np.testing.assert_allclose(lite.encode_images([image])[0, :TEXT_WIDTH], expected, atol=1e-3)


def test_the_rest_is_the_pooled_feature(lite, images):
    """Its square root in `lite`, itself in `lite0`; from the package's own network in torch."""
    pixels = torch.from_numpy(np.stack([lite.preprocess.pixels(_rgb(image)) for image in images]))
    with torch.inference_mode():
        maps = load_network(lite.recipe).extract_features(lite.preprocess.normalised(pixels))
    pooled = maps.mean((2, 3)).double()
    features = functional.normalize(pooled.sqrt() if lite.name == "lite" else pooled, dim=1)
    share = {"lite": 0.9, "lite0": 0.8}[lite.name]
    found = lite.encode_images(images)[:, TEXT_WIDTH:]
    np.testing.assert_allclose(found, np.sqrt(share) * features, atol=1e-4)


def test_logits_of_texts_do_not_depend_on_the_mixing_weight(lite, images):
    """logit_scale · image · text is the cosine scale times the cosine with the ConSE point."""
    texts = lite.encode_texts(["a photo of a cat.", "a photo of a dog."])
    vectors = lite.encode_images(images)
    conse = vectors[:, :TEXT_WIDTH] / np.linalg.norm(vectors[:, :TEXT_WIDTH], axis=1, keepdims=True)
    expected = {"lite": 15, "lite0": 25}[lite.name] * conse @ texts[:, :TEXT_WIDTH].T
    np.testing.assert_allclose(lite.logit_scale * vectors @ texts.T, expected, atol=1e-4)


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
    side = places(lite)
    assert spatial.shape == (2, side**2, lite.dim)
    np.testing.assert_allclose(np.linalg.norm(spatial, axis=2), 1, atol=1e-6)
    # Row by row, each from its own column of the package's feature map.
    pixels = torch.from_numpy(np.stack([lite.preprocess.pixels(_rgb(images[0]))]))
    with torch.inference_mode():
        maps = load_network(lite.recipe).extract_features(lite.preprocess.normalised(pixels))
    for row, column in [(0, 0), (1, 4), (side - 1, 2)]:
        place = maps[0, :, row, column]
        expected = functional.normalize(place.sqrt() if lite.name == "lite" else place, dim=0)
        found = torch.from_numpy(spatial[0, row * side + column, TEXT_WIDTH:])
        np.testing.assert_allclose(functional.normalize(found, dim=0), expected, atol=2e-3)


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
    assert lite.fingerprint == load_encoder(lite.name, device="cpu").fingerprint
    pinned = {"lite": "27c4d5a5893bdde1", "lite0": "7641421c6dfb58bb"}
    assert lite.fingerprint.startswith(pinned[lite.name])


def test_lite0_is_known_by_the_name_it_had():
    assert load_encoder("lite0", device="cpu").fingerprint == LITE0_FINGERPRINT
    assert current_name("lite", LITE0_FINGERPRINT) == "lite0"
    assert current_name("lite", "27c4d5a5893bdde1") == "lite"
    assert current_name("clip-rn50", LITE0_FINGERPRINT) == "clip-rn50"


def test_lite0_gives_the_vectors_it_always_gave(images):
    """Golden: these are numbers of the version in which this network was called `lite`.

    Made by `load_encoder("lite", device="cpu").encode_images(images)` of that version.
    """
    vectors = load_encoder("lite0", device="cpu").encode_images(images)
    np.testing.assert_allclose(vectors[:, GOLDEN_COLUMNS], GOLDEN, atol=1e-5)


GOLDEN_COLUMNS = [0, 100, 383, 504, 818, 839, 888]
GOLDEN = [
    [-0.014320, 0.008572, 0.039401, 0.019709, 0.264517, 0.273732, 0.036801],
    [-0.031323, 0.021905, 0.037940, 0.245863, 0.206419, 0.035318, 0.277555],
]


@pytest.mark.parametrize("name", ["lite", "lite0"])
def test_foreign_weights_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GPCACHE_CACHE", str(tmp_path / "empty"))
    recipe = module.RECIPES[name]
    foreign = tmp_path / "weights.pth"
    foreign.write_bytes(b"not the weights")
    monkeypatch.setattr(
        getattr(
            importlib.import_module(recipe.package), f"EfficientnetLite{recipe.version}ModelFile"
        ),
        "get_model_file_path",
        staticmethod(lambda: foreign),
    )
    refusal = rf"weights of '{name}' in .*weights\.pth are not those that were published"
    with pytest.raises(EncoderError, match=refusal):
        load_encoder(name, device="cpu")


@pytest.mark.parametrize("name", ["lite", "lite0"])
def test_a_missing_package_is_one_sentence_that_names_the_extra(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GPCACHE_CACHE", str(tmp_path / "empty"))
    package = module.RECIPES[name].package
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as refusal:
        load_encoder(name, device="cpu")
    expected = f"The encoder '{name}' needs {package}, which is not installed"
    assert str(refusal.value) == f"{expected}: pip install 'gpcache[{name}]'."


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
