"""The models of open_clip: the CLIP models of the paper (ResNets, ViTs) and later ones."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from gpcache.encoders.base import no_token_access
from gpcache.encoders.hub import fetch, loading
from gpcache.encoders.tokens import TokenEncoder, words_of
from gpcache.errors import EncoderError, GPCacheError
from gpcache.images import Preprocess
from gpcache.support.checks import first_line
from gpcache.support.extras import require

# OpenAI's weights need the fast approximation of GELU; open_clip says so with their tag.
PAPER_MODELS = {
    "clip-rn50": ("RN50", "openai"),
    "clip-rn101": ("RN101", "openai"),
    "clip-vit-b-32": ("ViT-B-32", "openai"),
    "clip-vit-b-16": ("ViT-B-16", "openai"),
}

CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")

_FITS: dict[str, Literal["crop", "squash"]] = {"shortest": "crop", "squash": "squash"}


class ModelFiles(NamedTuple):
    """The files of a model, before anything is loaded.

    `name` is its name in open_clip, `weights` a safetensors file, `config` the architecture and
    `options` the settings that are not part of the architecture.
    """

    name: str
    weights: Path
    config: dict[str, Any]
    options: dict[str, Any]


class OpenCLIPEncoder(TokenEncoder):
    """A model of open_clip with its own preprocessing and tokenizer.

    `model` is one of PAPER_MODELS; or an architecture of open_clip ("ViT-B-32") with a tag of its
    `weights` ("laion2b_s34b_b79k"), downloaded on first use; or, without `weights`, a local folder
    that holds safetensors weights and their open_clip_config.json, or that weights file itself. A
    weights file without its configuration is refused: activation and preprocessing are unknown.

    Only safetensors are loaded, never pickles, to which open_clip falls back.

    Spatial features: the attention pool of a ResNet is evaluated at every position; the patches of
    a ViT are normalised and projected like its class token. Other image models have none.
    """

    def __init__(
        self, model: str, weights: str | None = None, *, device: str | torch.device = "auto"
    ) -> None:
        super().__init__(device)
        open_clip = _library()
        self.name = model if weights is None else f"{model}:{weights}"
        source = find_source(open_clip, model, weights)
        with loading(self.name):
            network = _load(open_clip, source)
            self._tokenizer = open_clip.get_tokenizer(source.name)
            self.preprocess = _preprocess(network.visual.preprocess_cfg, self.name)
        self._config = source.config
        self._model = network.eval().requires_grad_(False).to(self.device)
        self.logit_scale = math.exp(float(network.logit_scale))
        self.dim = self._embed_texts(["a"]).shape[-1]

    def _embed_images(self, batch: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._model.encode_image(batch)
        return features

    def _embed_ids(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._model.encode_text(ids)
        return features

    def _embed_spatial(self, batch: torch.Tensor) -> torch.Tensor:
        visual = self._model.visual
        if hasattr(visual, "attnpool"):
            # The last of its stages, before the pool.
            maps = visual.forward_intermediates(batch, indices=1, intermediates_only=True)
            return attend_everywhere(visual.attnpool, maps["image_intermediates"][-1])[:, 1:]
        if getattr(visual, "proj", None) is None or visual.attn_pool is not None:
            return super()._embed_spatial(batch)
        options = {"normalize_intermediates": True, "output_fmt": "NLC"}
        tokens = visual.forward_intermediates(batch, indices=1, intermediates_only=True, **options)
        features: torch.Tensor = tokens["image_intermediates"][-1] @ visual.proj
        return features

    def _embedding_layer(self) -> torch.nn.Module:
        layer = getattr(getattr(self._model, "text", self._model), "token_embedding", None)
        if not isinstance(layer, torch.nn.Module):
            raise no_token_access(self.name)
        return layer

    def _tokenize(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        ids: torch.Tensor = self._tokenizer(texts).to(self.device)
        inner = self._tokenizer
        end = inner.eot_token_id if hasattr(inner, "encoder") else inner.tokenizer.eos_token_id
        if end is None:
            return ids, torch.ones_like(ids, dtype=torch.bool)
        # Padding cannot be recognised by its id: 0 is also an exclamation mark.
        last = (ids == end).int().argmax(dim=1, keepdim=True)
        return ids, torch.arange(ids.shape[1], device=ids.device) <= last

    def _identity(self) -> Iterator[bytes]:
        if hasattr(self._tokenizer, "encoder"):
            words: object = [self._tokenizer.encoder, list(self._tokenizer.bpe_ranks)]
        else:
            words = words_of(self._tokenizer.tokenizer)
        # The configuration names activation, heads and pooling.
        yield from self._parts_identity([self._config], words)

    @property
    def loadable_name(self) -> str:
        """Name for `load_encoder` that works in any working directory."""
        if self.name in PAPER_MODELS:
            return self.name
        place = Path(self.name)
        known = place.absolute() if place.exists() else self.name.replace(":", "/", 1)
        return f"open_clip:{known}"


def attend_everywhere(pool: Any, maps: torch.Tensor) -> torch.Tensor:
    """CLIP's attention pool with every token as a query: maps (b, c, h, w) → (b, 1 + h·w, dim).

    The first token is the mean; its output is the feature of the whole image.
    """
    places = maps.flatten(2).transpose(1, 2)
    tokens = torch.cat([places.mean(dim=1, keepdim=True), places], dim=1)
    tokens = tokens + pool.positional_embedding.to(tokens.dtype)
    batch, length, width = tokens.shape
    query, key, value = (
        layer(tokens).view(batch, length, pool.num_heads, -1).transpose(1, 2)
        for layer in (pool.q_proj, pool.k_proj, pool.v_proj)
    )
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    features: torch.Tensor = pool.c_proj(attended.transpose(1, 2).reshape(batch, length, width))
    return features


def find_source(open_clip: Any, model: str, weights: str | None) -> ModelFiles:
    """Find the files of `model`; the weights of a tag are downloaded on first use."""
    if weights is None and model in PAPER_MODELS:
        model, weights = PAPER_MODELS[model]
    if weights is None and Path(model).exists():
        return _local_source(Path(model))
    architecture = model.replace("/", "-")
    known = open_clip.list_models()
    if architecture not in known:
        near = difflib.get_close_matches(model, [*PAPER_MODELS, *known]) or list(PAPER_MODELS)
        raise EncoderError(
            f"There is no folder and no model of open_clip called {model!r}; "
            f"near are: {', '.join(near)}."
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if weights is None or not open_clip.is_pretrained_cfg(architecture, weights):
        raise EncoderError(
            f"The model {model!r} needs a tag of its weights, got {weights!r}; there are: "
            f"{', '.join(tags) or 'none'}. Give local weights as the model: the folder with their "
            f"{CONFIG}."
        )
    published = open_clip.get_pretrained_cfg(architecture, weights)
    config = open_clip.get_model_config(architecture)
    # The tag defines the activation and preprocessing of its weights.
    config["quick_gelu"] = published.get("quick_gelu", False) or config.get("quick_gelu", False)
    options = {
        "force_quick_gelu": config["quick_gelu"],
        "force_preprocess_cfg": {key: published.get(key) for key in PREPROCESSING},
    }
    return ModelFiles(
        architecture, _fetch_weights(published, f"{model}:{weights}"), config, options
    )


def _local_source(path: Path) -> ModelFiles:
    if path.is_file() and path.suffix != ".safetensors":
        raise EncoderError(
            f"{str(path)!r} is not a safetensors file; pickled weights (.pt, .bin) can run code "
            "and are not loaded: convert them with safetensors.torch.save_file."
        )
    folder = path.parent if path.is_file() else path
    files = [path] if path.is_file() else sorted(folder.glob("*.safetensors"))
    named = [file for file in files if file.name == WEIGHTS] or files
    if len(named) != 1:
        raise EncoderError(
            f"The folder {str(folder)!r} holds {len(named)} safetensors files and none is called "
            f"{WEIGHTS}: give the name of one file; pickled weights (.pt, .bin) are not loaded."
        )
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        architecture, _ = {"quick_gelu": False} | config["model_cfg"], config["preprocess_cfg"]
    except FileNotFoundError:
        raise EncoderError(
            f"The weights {str(named[0])!r} need {CONFIG} in the same folder, with their "
            "activation and preprocessing: download it too."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise EncoderError(
            f"{str(folder / CONFIG)!r} is not a JSON object with model_cfg and preprocess_cfg."
        ) from None
    return ModelFiles(f"local-dir:{folder}", named[0], architecture, {})


def _fetch_weights(published: dict[str, Any], name: str) -> Path:
    """The safetensors file of a tag; without one, open_clip itself would load a pickle."""
    only_pickled = (
        f"The weights {name!r} are published only as a pickle, which can run any code and is not "
        "loaded: choose another tag."
    )
    repository, _, file = published["hf_hub"].rpartition("/")
    if file in ("", "open_clip_pytorch_model.bin"):
        file = WEIGHTS
    return fetch(repository, str(Path(file).with_suffix(".safetensors")), missing=only_pickled)


def _library() -> Any:
    try:
        return require("open_clip", "clip", purpose="A model of open_clip")
    except GPCacheError:
        raise
    except Exception as error:
        raise EncoderError(
            f"open_clip is installed but cannot be imported ({first_line(error)}): install the "
            f"torchvision that belongs to torch {torch.__version__}."
        ) from error


def _load(open_clip: Any, source: ModelFiles) -> Any:
    before = logging.root.manager.disable
    # open_clip would warn of random weights, which the next line overwrites.
    logging.disable(logging.WARNING)
    try:
        model = open_clip.create_model(
            source.name, load_weights=False, pretrained_text=False, **source.options
        )
    finally:
        logging.disable(before)
    open_clip.load_checkpoint(model, str(source.weights))
    return model


def _preprocess(settings: dict[str, Any], name: str) -> Preprocess:
    """Convert the preprocessing of a model of open_clip; raise if it is not supported."""
    size, fit = settings["size"], _FITS.get(settings["resize_mode"])
    height, width = (size, size) if isinstance(size, int) else size
    if fit is None or height != width:
        raise EncoderError(
            f"The model {name!r} wants images of {width}×{height} pixels, resized by "
            f"{settings['resize_mode']!r}; supported are squares, by 'shortest' or 'squash'."
        )
    return Preprocess(
        size=height,
        fit=fit,
        # open_clip reads every other name as bicubic, too.
        interpolation="bilinear" if settings["interpolation"] == "bilinear" else "bicubic",
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
    )
