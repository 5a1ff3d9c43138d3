"""Small models with random weights, saved to disk as their libraries save them; pictures."""

import importlib
import json
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

LETTERS = "abcdefghijklmnopqrstuvwxyz.,'!0123456789"
WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TEXT = WIDTH | {"num_attention_heads": 2, "max_position_embeddings": 16}
VISION = WIDTH | {"num_attention_heads": 2, "image_size": 32, "patch_size": 8}


@pytest.fixture(scope="session")
def pictures():
    """Pictures of several shapes, whose centre every library cuts out at the same pixel."""
    generator = np.random.default_rng(0)
    shapes = [(50, 64), (80, 40), (33, 33), (24, 30), (32, 32)]
    return [
        Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes
    ]


@pytest.fixture(scope="session")
def texts():
    """Of one token, of several, in capitals, and far longer than the context."""
    return ["a", "a cat.", "A DOG's cat, isn't it!", "a cat and a dog " * 10]


@pytest.fixture(scope="session")
def save_model(tmp_path_factory):
    """Saves a tiny "clip", "siglip" or "siglip2" in a folder of its own; `seed` draws weights."""
    pytest.importorskip("transformers", reason="pip install 'gpcache[hf]'")

    def save(kind, *, seed=0, **image_settings):
        folder = tmp_path_factory.mktemp(kind)
        maker = {"clip": _clip, "siglip": _siglip, "siglip2": _siglip2}[kind]
        torch.manual_seed(seed)
        model, tokenizer, processor = maker(image_settings)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "logit" not in name:
                    value.normal_(std=0.2)
        for part in (model, tokenizer, processor):
            part.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def folders(save_model):
    """One saved model of each kind; not to be changed."""
    return {kind: save_model(kind) for kind in ("clip", "siglip", "siglip2")}


def _byte_pairs(*special, suffix=""):
    """A vocabulary of letters and a few merges, and the merges."""
    vocabulary = {name: number for number, name in enumerate(special)}
    merges = [("c", "a"), ("ca", f"t{suffix}"), ("d", "o"), ("do", f"g{suffix}")]
    for letter in LETTERS:
        vocabulary[letter] = len(vocabulary)
        if suffix:
            vocabulary[letter + suffix] = len(vocabulary)
    for pair in merges:
        vocabulary["".join(pair)] = len(vocabulary)
    return vocabulary, merges


def _clip(image_settings):
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    vocabulary, merges = _byte_pairs(suffix="</w>")
    start, end = len(vocabulary), len(vocabulary) + 1
    vocabulary |= {"<|startoftext|>": start, "<|endoftext|>": end}
    text = TEXT | {"vocab_size": end + 1, "bos_token_id": start, "eos_token_id": end}
    config = CLIPConfig(
        text_config=text, vision_config=VISION, projection_dim=24, logit_scale_init_value=4.6052
    )
    settings = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return (
        CLIPModel(config),
        CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=16),
        CLIPImageProcessorPil(**settings | image_settings),
    )


def _siglip(image_settings):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, SiglipConfig, SiglipModel
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    vocabulary, merges = _byte_pairs("<unk>", "</s>")
    tokens = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    tokens.normalizer = normalizers.Lowercase()
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        unk_token="<unk>",
        eos_token="</s>",
        pad_token="</s>",
        model_input_names=["input_ids"],
    )
    model = SiglipModel(_siglip_config(SiglipConfig, len(vocabulary)))
    settings = {"size": {"height": 32, "width": 32}}
    return model, tokenizer, SiglipImageProcessorPil(**settings | image_settings)


def _siglip2(image_settings):
    """Of fixed resolution: a SigLIP model with the tokenizer of Gemma."""
    from transformers import Siglip2Tokenizer, SiglipConfig, SiglipModel
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    vocabulary, merges = _byte_pairs("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁")
    tokenizer = Siglip2Tokenizer(
        vocab=vocabulary, merges=merges, padding_side="right", model_input_names=["input_ids"]
    )
    model = SiglipModel(_siglip_config(SiglipConfig, len(vocabulary)))
    settings = {"size": {"height": 32, "width": 32}, "resample": 2}
    return model, tokenizer, SiglipImageProcessorPil(**settings | image_settings)


def _siglip_config(config, words):
    text = TEXT | {"vocab_size": words, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
    return config(text_config=text, vision_config=VISION)


@pytest.fixture(scope="session")
def open_clip():
    """The library, or a skip; where .ci/open_clip asks for it, its absence is a failure."""
    if importlib.util.find_spec("open_clip") is None:
        if os.environ.get("GPCACHE_REQUIRE_OPEN_CLIP") == "1":
            pytest.fail("open_clip is not installed, but GPCACHE_REQUIRE_OPEN_CLIP=1")
        pytest.skip("open_clip is not installed here: run .ci/open_clip")
    define_missing_operators()
    return importlib.import_module("open_clip")


def define_missing_operators():
    """Declares two operators of torchvision where its compiled half does not fit torch.

    open_clip imports torchvision and never calls them.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", arguments)
        importlib.import_module("torchvision")


@pytest.fixture(scope="session")
def save_open_clip(open_clip, tmp_path_factory):
    """Saves a tiny "resnet", "vit" or "timm" in a folder that open_clip reads."""
    from safetensors.torch import save_file

    towers = {
        "resnet": {"layers": [1, 1, 1, 1], "width": 8, "head_width": 32, "image_size": 64},
        "vit": {"layers": 2, "width": 32, "head_width": 16, "image_size": 32, "patch_size": 8},
        "timm": {"timm_model_name": "test_vit", "image_size": 160},
    }

    def save(kind, *, seed=0, quick_gelu=True, preprocess=None, **text):
        folder = tmp_path_factory.mktemp(kind)
        config = {
            "embed_dim": 24,
            "vision_cfg": towers[kind],
            "text_cfg": {"width": 32, "heads": 2, "layers": 2, "context_length": 16} | text,
            "quick_gelu": quick_gelu,
        }
        settings = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bicubic"}
        settings |= {"resize_mode": "shortest"} | (preprocess or {})
        (folder / "open_clip_config.json").write_text(
            json.dumps({"model_cfg": config, "preprocess_cfg": settings})
        )
        torch.manual_seed(seed)
        model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
        # The library starts some layers at zero, which would hide what they do.
        weights = {
            name: value
            if "running" in name or not value.is_floating_point()
            else torch.randn_like(value) * (1 if "norm" in name else 0.2)
            for name, value in model.state_dict().items()
        }
        weights["logit_scale"] = torch.tensor(4.6052)
        save_file(weights, folder / "open_clip_model.safetensors")
        return folder

    return save
