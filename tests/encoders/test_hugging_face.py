"""CLIP, SigLIP and SigLIP 2 through transformers: equal to the library, honest about the rest."""

import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gpcache.encoders.hugging_face import HuggingFaceEncoder, preprocess_of
from gpcache.errors import EncoderError, MissingExtraError

if find_spec("transformers") is None:
    pytest.skip("needs the extra hf", allow_module_level=True)

KINDS = ("clip", "siglip", "siglip2")


def library_part(name, folder):
    """What the class `name` of transformers reads from a folder; the import takes seconds."""
    import transformers
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    kind = AutoImageProcessor if name == "AutoImageProcessor" else getattr(transformers, name)
    return kind.from_pretrained(folder)


@pytest.fixture(scope="module")
def encoders(folders):
    return {kind: HuggingFaceEncoder(str(folder), device="cpu") for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def libraries(folders):
    return {kind: library_part("AutoModel", folder).eval() for kind, folder in folders.items()}


def unit(features):
    return torch.nn.functional.normalize(features.detach(), dim=-1).numpy()


def pixels(encoder, pictures):
    return np.stack([encoder.preprocess.pixels(picture) for picture in pictures])


def printed(program, *arguments, **environment):
    """What a program prints in a process of its own, which may not ask the hub."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
    ).stdout.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_images_equal_the_library(kind, encoders, libraries, folders, pictures):
    processor = library_part("AutoImageProcessor", folders[kind])
    values = processor(images=pictures, return_tensors="pt")
    expected = unit(libraries[kind].get_image_features(**values).pooler_output)
    found = encoders[kind].encode_images(pictures)
    assert found.shape == (len(pictures), encoders[kind].dim)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_equal_the_library(kind, encoders, libraries, folders, texts):
    tokenizer = library_part("AutoTokenizer", folders[kind])
    padding = "longest" if kind == "clip" else "max_length"
    ids = tokenizer(texts, padding=padding, truncation=True, max_length=16, return_tensors="pt")
    expected = unit(libraries[kind].get_text_features(**ids).pooler_output)
    np.testing.assert_allclose(encoders[kind].encode_texts(texts), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_the_same_alone_and_among_others(kind, encoders, texts):
    among = encoders[kind].encode_texts(texts)
    alone = np.concatenate([encoders[kind].encode_texts([text]) for text in texts])
    np.testing.assert_allclose(alone, among, atol=1e-5)


def test_siglip_2_reads_lower_case_even_where_its_tokenizer_does_not(save_model):
    """The published tokenizers are Gemma's, which keep capitals; the model has seen none."""
    folder = save_model("siglip2")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["normalizers"] = [
        part for part in tokenizer["normalizer"]["normalizers"] if part["type"] != "Lowercase"
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    encoder = HuggingFaceEncoder(str(folder), device="cpu")
    np.testing.assert_array_equal(encoder.encode_texts(["A CAT"]), encoder.encode_texts(["a cat"]))


def test_logit_scale_is_the_exponential_of_the_models(encoders, libraries):
    assert encoders["clip"].logit_scale == pytest.approx(100, rel=1e-4)
    for kind in KINDS:
        expected = libraries[kind].logit_scale.exp().item()
        assert encoders[kind].logit_scale == pytest.approx(expected, rel=1e-6)


def test_half_precision_weights_are_computed_in_single(save_model):
    folder = save_model("clip")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: value.half() for name, value in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    model = HuggingFaceEncoder(str(folder), device="cpu")._model
    assert {value.dtype for value in model.parameters()} == {torch.float32}


# Places in an image.


def test_spatial_features_of_clip_are_patches_in_the_place_of_the_class_token(
    encoders, libraries, pictures
):
    """The library's own feature, had each patch in turn been the class token."""
    encoder, library = encoders["clip"], libraries["clip"]
    batch = encoder.preprocess.normalised(torch.from_numpy(pixels(encoder, pictures)))
    expected = []
    for place in range(1, 17):

        def swap(*call, place=place):
            output = call[-1]
            output.last_hidden_state = output.last_hidden_state.roll(-place, dims=1)
            return output

        handle = library.vision_model.encoder.register_forward_hook(swap)
        expected.append(unit(library.get_image_features(pixel_values=batch).pooler_output))
        handle.remove()
    found = encoder.encode_spatial(pictures)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-5)


def test_spatial_features_of_siglip_are_the_head_with_all_other_patches_hidden(
    encoders, libraries, pictures
):
    encoder, library = encoders["siglip"], libraries["siglip"].vision_model
    batch = encoder.preprocess.normalised(torch.from_numpy(pixels(encoder, pictures)))
    tokens, head, expected = library(batch).last_hidden_state, library.head, []
    for place in range(16):
        hidden = torch.ones(len(pictures), 16, dtype=torch.bool)
        hidden[:, place] = False
        probe = head.probe.expand(len(pictures), -1, -1)
        value = head.attention(probe, tokens, tokens, key_padding_mask=hidden)[0]
        expected.append(unit((value + head.mlp(head.layernorm(value)))[:, 0]))
    found = encoder.encode_spatial(pictures)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-5)


# Tokens, for methods that learn prompts.


@pytest.mark.parametrize("kind", KINDS)
def test_untouched_tokens_give_the_text(kind, encoders, texts):
    encoder = encoders[kind]
    found = encoder.encode_tokens(encoder.embed_tokens(texts))
    np.testing.assert_allclose(found.numpy(), encoder.encode_texts(texts), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_token_gives_the_other_text(kind, encoders):
    encoder = encoders[kind]
    before = encoder.encode_texts(["a cat."])
    cat, dog = encoder.embed_tokens(["a cat."]), encoder.embed_tokens(["a dog."])
    assert (cat.ids != dog.ids).sum() == 1
    place = int((cat.ids != dog.ids)[0].int().argmax())
    cat.embeddings[0, place] = dog.embeddings[0, place]
    np.testing.assert_allclose(
        encoder.encode_tokens(cat).numpy(), encoder.encode_texts(["a dog."]), atol=1e-5
    )
    np.testing.assert_array_equal(encoder.encode_texts(["a cat."]), before)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_into_the_tokens_alone(kind, encoders):
    encoder = encoders[kind]
    tokens = encoder.embed_tokens(["a cat.", "a"])
    tokens.embeddings.requires_grad_()
    encoder.encode_tokens(tokens)[:, 0].sum().backward()
    reached = tokens.embeddings.grad.abs().sum(dim=-1) > 0
    # CLIP looks back from its last token; SigLIP reads the padding too.
    assert torch.equal(reached, tokens.mask if kind == "clip" else torch.ones_like(reached))
    assert tokens.mask.sum(dim=1).tolist() == [5, 3] if kind == "clip" else tokens.mask.any()
    assert all(value.grad is None for value in encoder._model.parameters())


# The fingerprint.


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_another_process(kind, encoders, folders):
    program = (
        "import sys; from gpcache.encoders.hugging_face import HuggingFaceEncoder as Encoder; "
        "print(Encoder(sys.argv[1], device='cpu').fingerprint)"
    )
    found = printed(program, str(folders[kind]), PYTHONHASHSEED="7")
    assert found == encoders[kind].fingerprint


def one_weight(folder):
    weights = load_file(folder / "model.safetensors")
    weights["visual_projection.weight"][0, 0] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def two_words(folder):
    change(folder / "tokenizer.json", '"a</w>": 1', '"a</w>": 3', '"b</w>": 3', '"b</w>": 1')


def one_merge(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert tokenizer["model"]["merges"].pop() == ["do", "g</w>"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def activation(folder):
    change(folder / "config.json", "quick_gelu", "gelu")


def resampling(folder):
    change(folder / "preprocessor_config.json", '"resample": 3', '"resample": 2')


def change(file, *replacements):
    text = file.read_text()
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


@pytest.mark.parametrize("changed", [one_weight, two_words, one_merge, activation, resampling])
def test_the_fingerprint_tells_a_change(changed, encoders, save_model):
    folder = save_model("clip")
    assert HuggingFaceEncoder(str(folder), device="cpu").fingerprint == encoders["clip"].fingerprint
    changed(folder)
    assert HuggingFaceEncoder(str(folder), device="cpu").fingerprint != encoders["clip"].fingerprint


# Preprocessing.


def test_preprocessing_is_the_models_own(save_model, pictures):
    folder = save_model(
        "clip",
        size={"shortest_edge": 36},
        resample=1,
        image_mean=[0.1, 0.2, 0.3],
        image_std=[1] * 3,
    )
    encoder = HuggingFaceEncoder(str(folder), device="cpu")
    expected = library_part("AutoImageProcessor", folder)(pictures, return_tensors="pt")
    found = encoder.preprocess.normalised(torch.from_numpy(pixels(encoder, pictures)))
    torch.testing.assert_close(found, expected["pixel_values"].float(), atol=1e-5, rtol=0)


SETTINGS = {
    "do_resize": True,
    "do_center_crop": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"do_resize": False}, "do_resize=false"),
        ({"do_pad": True}, "do_pad=true"),
        ({"rescale_factor": 1 / 127.5}, "rescale_factor=0.0078"),
        ({"resample": 5}, "resample=5"),
        ({"do_center_crop": False}, "shortest_edge"),
        ({"crop_size": {"height": 32, "width": 24}}, "'width': 24"),
        ({"crop_size": {"height": 64, "width": 64}}, "'width': 64"),
        ({"size": {"height": 40, "width": 40}}, "'height': 40"),
    ],
)
def test_preprocessing_that_we_lack_is_refused(changes, named):
    assert preprocess_of(SETTINGS, "here").fit == "crop"
    with pytest.raises(EncoderError, match=named):
        preprocess_of(SETTINGS | changes, "here")


def test_preprocessing_of_another_size_than_the_model_is_refused(save_model):
    folder = save_model("siglip", size={"height": 40, "width": 40})
    with pytest.raises(EncoderError, match=r"takes images of 32 pixels.* makes 40"):
        HuggingFaceEncoder(str(folder), device="cpu")


# What cannot be loaded.


@pytest.mark.parametrize(
    ("kind", "named"), [("siglip2", "NaFlex"), ("bert", "type bert"), (None, "type None")]
)
def test_other_models_are_refused(kind, named, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(EncoderError, match=f"{named}.*supported are CLIP, SigLIP and SigLIP 2"):
        HuggingFaceEncoder(str(tmp_path), device="cpu")


def test_pickled_weights_are_refused(save_model):
    folder = save_model("clip")
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match="no safetensors weights"):
        HuggingFaceEncoder(str(folder), device="cpu")


def test_missing_weights_are_not_drawn_at_random(save_model):
    folder = save_model("clip")
    weights = load_file(folder / "model.safetensors")
    del weights["text_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncoderError, match=r"incomplete.*text_projection\.weight"):
        HuggingFaceEncoder(str(folder), device="cpu")


@pytest.mark.parametrize(
    "file", ["model.safetensors", "tokenizer.json", "preprocessor_config.json", "config.json"]
)
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_damaged_folder_is_one_sentence(file, damage, save_model):
    path = save_model("clip") / file
    path.write_bytes(path.read_bytes()[:40]) if damage == "cut" else path.unlink()
    with pytest.raises(EncoderError) as caught:
        HuggingFaceEncoder(str(path.parent), device="cpu")
    assert str(path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_folder_is_one_sentence(tmp_path):
    with pytest.raises(EncoderError, match="neither a folder here nor a model id"):
        HuggingFaceEncoder(str(tmp_path / "absent"), device="cpu")


def test_a_missing_model_offline_is_one_sentence(tmp_path):
    program = (
        "from gpcache.encoders.hugging_face import HuggingFaceEncoder\n"
        "from gpcache.errors import EncoderError\n"
        "try:\n    HuggingFaceEncoder('openai/clip-vit-base-patch32', device='cpu')\n"
        "except EncoderError as error:\n    print(error)"
    )
    assert printed(program, HF_HOME=str(tmp_path)) == (
        "The model 'openai/clip-vit-base-patch32' is not on this machine and the Hugging Face hub "
        "cannot be reached: connect once to download it, or give a local folder."
    )


# The tokenizer of the first SigLIP is a sentencepiece model.


def sentencepiece_folder(folder, model):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    (folder / "spiece.model").write_bytes(model)
    settings = {"tokenizer_class": "SiglipTokenizer", "model_input_names": ["input_ids"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.mark.skipif(bool(find_spec("sentencepiece")), reason="sentencepiece is installed here")
def test_without_sentencepiece_the_extra_is_named(save_model):
    folder = sentencepiece_folder(save_model("siglip"), b"")
    with pytest.raises(MissingExtraError, match=r"gpcache\[hf\]"):
        HuggingFaceEncoder(folder, device="cpu")


def test_siglip_with_its_sentencepiece_tokenizer(save_model):
    sentencepiece = pytest.importorskip("sentencepiece", reason="pip install 'gpcache[hf]'")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a photo of a cat", "pack my box with five dozen liquor jugs"] * 5),
        model_writer=written,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    folder = sentencepiece_folder(save_model("siglip"), written.getvalue())
    encoder, library = HuggingFaceEncoder(folder, device="cpu"), library_part("AutoModel", folder)
    shown = ["A photo, of a CAT.", "dog"]
    ids = library_part("AutoTokenizer", folder)(
        shown, padding="max_length", truncation=True, max_length=16, return_tensors="pt"
    )
    expected = unit(library.eval().get_text_features(**ids).pooler_output)
    np.testing.assert_allclose(encoder.encode_texts(shown), expected, atol=1e-5)
    assert len(encoder.fingerprint) == 64
