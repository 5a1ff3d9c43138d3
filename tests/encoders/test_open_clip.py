"""open_clip's models: equal to the library, safetensors only; .ci/open_clip installs it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gpcache.encoders.open_clip import PAPER_MODELS, OpenCLIPEncoder, find_source
from gpcache.errors import EncoderError

KINDS = ("resnet", "vit")
WEIGHTS = "open_clip_model.safetensors"
CONFIG = "open_clip_config.json"

pytestmark = pytest.mark.usefixtures("open_clip")


@pytest.fixture(scope="module")
def folders(save_open_clip):
    return {kind: save_open_clip(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def encoders(folders):
    return {kind: OpenCLIPEncoder(str(folder), device="cpu") for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def libraries(open_clip, folders):
    """Model, preprocessing and tokenizer as the library itself puts them together."""
    found = {}
    for kind, folder in folders.items():
        model, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
        found[kind] = (model.eval(), transform, open_clip.get_tokenizer(f"local-dir:{folder}"))
    return found


def unit(features):
    return torch.nn.functional.normalize(features.detach(), dim=-1).numpy()


def batch_of(encoder, pictures):
    pixels = np.stack([encoder.preprocess.pixels(picture) for picture in pictures])
    return encoder.preprocess.normalised(torch.from_numpy(pixels))


@pytest.mark.parametrize("kind", KINDS)
def test_images_equal_the_library(kind, encoders, libraries, pictures):
    model, transform, _ = libraries[kind]
    expected = unit(model.encode_image(torch.stack([transform(picture) for picture in pictures])))
    found = encoders[kind].encode_images(pictures)
    assert found.shape == (len(pictures), encoders[kind].dim) == (len(pictures), 24)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_equal_the_library(kind, encoders, libraries, texts):
    model, _, tokenizer = libraries[kind]
    expected = unit(model.encode_text(tokenizer(texts)))
    np.testing.assert_allclose(encoders[kind].encode_texts(texts), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["RN50", "ViT-B-32-quickgelu"])
def test_whole_models_equal_the_library(name, open_clip, tmp_path, pictures):
    torch.manual_seed(0)
    library = open_clip.create_model(name).eval()
    config = open_clip.get_model_config(name)
    preprocess = {"interpolation": "bilinear", "resize_mode": "squash"}
    (tmp_path / CONFIG).write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    save_file(library.state_dict(), tmp_path / "weights.safetensors")
    encoder = OpenCLIPEncoder(str(tmp_path / "weights.safetensors"), device="cpu")
    batch = batch_of(encoder, pictures[:2])
    with torch.inference_mode():
        expected = unit(library.encode_image(batch))
    np.testing.assert_allclose(encoder.encode_images(pictures[:2]), expected, atol=1e-5)
    places = encoder.encode_spatial(pictures[:2])
    assert places.shape == (2, 49, encoder.dim)
    assert encoder.preprocess.fit == "squash"
    assert encoder.preprocess.interpolation == "bilinear"


def test_logit_scale_is_the_exponential_of_the_models(encoders):
    assert encoders["vit"].logit_scale == pytest.approx(100, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "fit"),
    [({"resize_mode": "squash"}, "squash"), ({"interpolation": "bilinear"}, "crop")],
)
def test_preprocessing_is_the_models_own(settings, fit, save_open_clip, open_clip, pictures):
    folder = save_open_clip("vit", preprocess=settings)
    encoder = OpenCLIPEncoder(str(folder), device="cpu")
    _, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    expected = torch.stack([transform(picture) for picture in pictures])
    torch.testing.assert_close(batch_of(encoder, pictures), expected, atol=1e-6, rtol=0)
    assert encoder.preprocess.fit == fit


def test_preprocessing_that_we_lack_is_refused(save_open_clip):
    folder = save_open_clip("vit", preprocess={"resize_mode": "longest"})
    with pytest.raises(EncoderError, match="resized by 'longest'"):
        OpenCLIPEncoder(str(folder), device="cpu")


# Places in an image.


def test_a_resnet_attends_at_every_place(encoders, libraries, pictures):
    """The library's pool, of which it keeps the first row, asked by torch's own attention."""
    encoder, (model, _, _) = encoders["resnet"], libraries["resnet"]
    pool, seen = model.visual.attnpool, {}
    handle = pool.register_forward_pre_hook(lambda _, inputs: seen.update(maps=inputs[0]))
    pooled = unit(model.encode_image(batch_of(encoder, pictures)))
    handle.remove()
    tokens = seen["maps"].flatten(2).permute(2, 0, 1)
    tokens = torch.cat([tokens.mean(dim=0, keepdim=True), tokens])
    tokens = tokens + pool.positional_embedding[:, None]
    attention = torch.nn.MultiheadAttention(tokens.shape[-1], pool.num_heads)
    layers = (pool.q_proj, pool.k_proj, pool.v_proj)
    attention.in_proj_weight.data = torch.cat([layer.weight for layer in layers])
    attention.in_proj_bias.data = torch.cat([layer.bias for layer in layers])
    attention.out_proj = pool.c_proj
    expected = unit(attention(tokens, tokens, tokens)[0].transpose(0, 1))
    np.testing.assert_allclose(expected[:, 0], pooled, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_spatial(pictures), expected[:, 1:], atol=1e-5)


def test_a_vit_projects_patches_as_its_class_token(encoders, libraries, pictures):
    """The library's own feature, had each patch in turn been the class token."""
    encoder, (model, _, _) = encoders["vit"], libraries["vit"]
    batch, expected = batch_of(encoder, pictures), []
    for place in range(1, 17):
        handle = model.visual.transformer.register_forward_hook(
            lambda *call, place=place: call[-1].roll(-place, dims=1)
        )
        expected.append(unit(model.encode_image(batch)))
        handle.remove()
    found = encoder.encode_spatial(pictures)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-5)


def test_another_tower_gives_no_places(save_open_clip, pictures):
    encoder = OpenCLIPEncoder(str(save_open_clip("timm")), device="cpu")
    assert encoder.encode_images(pictures[:1]).shape == (1, 24)
    with pytest.raises(EncoderError, match="has no spatial features"):
        encoder.encode_spatial(pictures[:1])


# Tokens, for methods that learn prompts.


def test_untouched_tokens_give_the_text(encoders, texts):
    encoder = encoders["vit"]
    found = encoder.encode_tokens(encoder.embed_tokens(texts))
    np.testing.assert_allclose(found.numpy(), encoder.encode_texts(texts), atol=1e-5)


def test_a_changed_token_gives_the_other_text(encoders):
    encoder = encoders["vit"]
    before = encoder.encode_texts(["a cat."])
    cat, dog = encoder.embed_tokens(["a cat."]), encoder.embed_tokens(["a dog."])
    assert (cat.ids != dog.ids).sum() == 1
    cat.embeddings[0, 2] = dog.embeddings[0, 2]
    np.testing.assert_allclose(
        encoder.encode_tokens(cat).numpy(), encoder.encode_texts(["a dog."]), atol=1e-5
    )
    np.testing.assert_array_equal(encoder.encode_texts(["a cat."]), before)


def test_gradients_flow_into_the_tokens_alone(encoders):
    encoder = encoders["vit"]
    tokens = encoder.embed_tokens(["a cat.", "wow !!", "a"])
    tokens.embeddings.requires_grad_()
    encoder.encode_tokens(tokens)[:, 0].sum().backward()
    assert torch.equal(tokens.embeddings.grad.abs().sum(dim=-1) > 0, tokens.mask)
    assert tokens.mask.sum(dim=1).tolist() == [5, 4, 3]
    assert all(value.grad is None for value in encoder._model.parameters())


# The fingerprint.


def one_weight(folder):
    weights = load_file(folder / WEIGHTS)
    weights["visual.proj"][0, 0] += 1
    save_file(weights, folder / WEIGHTS)


def change(folder, part, **changes):
    config = json.loads((folder / CONFIG).read_text())
    place = config["model_cfg"]["text_cfg"] if part == "text_cfg" else config[part]
    place |= changes
    (folder / CONFIG).write_text(json.dumps(config))


@pytest.mark.parametrize(
    "changed",
    [
        one_weight,
        lambda folder: change(folder, "model_cfg", quick_gelu=False),
        lambda folder: change(folder, "text_cfg", tokenizer_kwargs={"clean": "canonicalize"}),
        lambda folder: change(folder, "preprocess_cfg", interpolation="bilinear"),
    ],
    ids=["weight", "activation", "tokenizer", "preprocessing"],
)
def test_the_fingerprint_tells_a_change(changed, encoders, save_open_clip):
    folder = save_open_clip("vit")
    assert OpenCLIPEncoder(str(folder), device="cpu").fingerprint == encoders["vit"].fingerprint
    changed(folder)
    assert OpenCLIPEncoder(str(folder), device="cpu").fingerprint != encoders["vit"].fingerprint


def test_the_tokenizer_is_told_by_what_it_does(encoders, save_open_clip):
    """Only the tokenizer differs here, not what the configuration says of it."""
    encoder = OpenCLIPEncoder(str(save_open_clip("vit")), device="cpu")
    encoder._tokenizer.clean_fn = str.strip
    assert encoder.fingerprint != encoders["vit"].fingerprint


# What cannot be loaded.


def test_the_models_of_the_paper_exist(open_clip):
    for architecture, tag in PAPER_MODELS.values():
        assert open_clip.get_pretrained_cfg(architecture, tag)["quick_gelu"]
        assert open_clip.get_model_config(architecture) is not None


def test_a_tag_brings_its_activation_and_preprocessing(open_clip, monkeypatch, tmp_path):
    """Found in the hub's cache, as after a first download; nothing is fetched."""
    cache = tmp_path / "models--timm--ViT-B-16-SigLIP2"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    weights = cache / "snapshots" / ("0" * 40) / WEIGHTS
    weights.parent.mkdir(parents=True)
    save_file({"a": torch.ones(1)}, weights)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    source = find_source(open_clip, "ViT-B-16-SigLIP2", "webli")
    assert source.weights.resolve() == weights.resolve()
    assert source.options["force_preprocess_cfg"]["resize_mode"] == "squash"
    assert not source.options["force_quick_gelu"]


@pytest.mark.parametrize("name", ["model.pt", "model.bin"])
def test_a_pickle_is_refused(name, tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / name)
    with pytest.raises(EncoderError, match="not a safetensors file; pickled weights"):
        OpenCLIPEncoder(str(tmp_path / name), device="cpu")


def test_a_folder_of_pickles_is_refused(save_open_clip):
    folder = save_open_clip("vit")
    torch.save(load_file(folder / WEIGHTS), folder / "open_clip_pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(EncoderError, match="holds 0 safetensors files"):
        OpenCLIPEncoder(str(folder), device="cpu")


def test_a_pickle_beside_safetensors_is_left_alone(save_open_clip, encoders):
    """open_clip itself would prefer this pickle to a safetensors file of that name."""
    folder = save_open_clip("vit")
    (folder / WEIGHTS).rename(folder / "model.safetensors")
    (folder / "open_clip_pytorch_model.bin").write_bytes(b"never read")
    encoder = OpenCLIPEncoder(str(folder), device="cpu")
    assert encoder.fingerprint == encoders["vit"].fingerprint


def test_bare_weights_are_refused(save_open_clip):
    folder = save_open_clip("vit")
    (folder / CONFIG).unlink()
    with pytest.raises(EncoderError, match=r"need open_clip_config\.json in the same folder"):
        OpenCLIPEncoder(str(folder / WEIGHTS), device="cpu")


@pytest.mark.parametrize("file", [WEIGHTS, CONFIG])
def test_a_damaged_folder_is_one_sentence(file, save_open_clip):
    path = save_open_clip("vit") / file
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(EncoderError) as caught:
        OpenCLIPEncoder(str(path.parent), device="cpu")
    assert str(path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_one_sentence(folders, save_open_clip):
    folder = save_open_clip("vit")
    (folder / WEIGHTS).write_bytes((folders["resnet"] / WEIGHTS).read_bytes())
    with pytest.raises(EncoderError, match="cannot be loaded"):
        OpenCLIPEncoder(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("model", "weights", "named"),
    [
        ("ViT-B-33", "openai", "no model of open_clip called 'ViT-B-33'; near are: .*ViT-B-32"),
        ("ViT-B-32", "closedai", "got 'closedai'; there are: openai, .*Give local weights"),
        ("ViT-B-32", None, "needs a tag"),
        ("ViT-B/32", "model.safetensors", "Give local weights as the model"),
    ],
)
def test_an_unknown_name_is_one_sentence(model, weights, named):
    with pytest.raises(EncoderError, match=named):
        OpenCLIPEncoder(model, weights, device="cpu")


@pytest.mark.parametrize("model", sorted(PAPER_MODELS))
def test_a_missing_model_offline_is_one_sentence(model, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match=r"not on this machine .* connect once to download it"):
        OpenCLIPEncoder(model, device="cpu")


def test_loading_says_nothing_of_random_weights(folders):
    """In a process of its own, where no handler of pytest swallows what is logged."""
    program = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('shared', sys.argv[2])\n"
        "shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)\n"
        "shared.define_missing_operators()\n"
        "from gpcache.encoders.open_clip import OpenCLIPEncoder\n"
        "print(OpenCLIPEncoder(sys.argv[1], device='cpu').fingerprint)"
    )
    shared = os.path.join(os.path.dirname(__file__), "conftest.py")
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folders["vit"]), shared],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == OpenCLIPEncoder(str(folders["vit"]), device="cpu").fingerprint
    assert "randomly" not in ran.stderr
