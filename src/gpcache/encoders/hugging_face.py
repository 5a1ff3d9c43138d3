"""CLIP and SigLIP models of the Hugging Face hub, by model id or local folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpcache.encoders.hub import fetch, loading, no_downloads
from gpcache.encoders.tokens import TokenEncoder, words_of
from gpcache.errors import EncoderError, MissingExtraError
from gpcache.images import Preprocess
from gpcache.support.extras import require


class Family(NamedTuple):
    """How one kind of model is loaded and how its texts are prepared."""

    model: str
    padding: str
    lower_case: bool


# SigLIP was trained on lower-case texts padded to the full context, and attends to the padding. The
# tokenizer of SigLIP does this itself; that of SigLIP 2, which comes from Gemma, does not.
FAMILIES = {
    "clip": Family("CLIPModel", padding="longest", lower_case=False),
    "siglip": Family("SiglipModel", padding="max_length", lower_case=True),
}
SUPPORTED = "CLIP, SigLIP and SigLIP 2 of fixed resolution"

# Settings that change the features, besides the weights.
CONFIGURED = ("hidden_act", "layer_norm_eps", "num_attention_heads", "eos_token_id")

_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_HONOURED = {"do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_convert_rgb"}


class HuggingFaceEncoder(TokenEncoder):
    """A CLIP, SigLIP or fixed-resolution SigLIP 2 model of transformers.

    `source` is a model id ("openai/clip-vit-base-patch32"), downloaded on first use, or a local
    folder. Only safetensors weights are loaded, and no code that comes with a model is run.

    `logit_scale` is that of the model. SigLIP also learned a bias; it is the same for every class
    and does not change a softmax, so it is left out.

    Spatial features: CLIP projects every patch like its class token. SigLIP pools its patches by
    attention; the feature of a position is the output of the pooling head for that patch only. The
    head was not trained for single patches.
    """

    def __init__(self, source: str, *, device: str | torch.device = "auto") -> None:
        super().__init__(device)
        transformers = require("transformers", "hf", purpose="A model of the Hugging Face hub")
        self.name = source
        self._kind = _model_type(source)
        family = FAMILIES[self._kind]
        # A model from a folder must not download anything.
        with no_downloads() if Path(source).is_dir() else nullcontext(), loading(source):
            # Without torchvision, older versions of transformers do not export this class.
            processors = import_module("transformers.models.auto.image_processing_auto")
            load_processor = processors.AutoImageProcessor.from_pretrained
            processor = load_processor(source, trust_remote_code=False)
            self._tokenizer = _load_tokenizer(transformers, source)
            model = _load_model(getattr(transformers, family.model), source)
        self.preprocess = preprocess_of(processor.to_dict(), source)
        vision, text = model.config.vision_config, model.config.text_config
        # If the files of a tokenizer are missing, transformers makes one without words.
        if len(self._tokenizer) < text.vocab_size / 2:
            raise EncoderError(
                f"The tokenizer of {source!r} knows {len(self._tokenizer)} of the model's "
                f"{text.vocab_size} words: its files (tokenizer.json) are missing."
            )
        if self.preprocess.size != vision.image_size:
            raise EncoderError(
                f"The model {source!r} takes images of {vision.image_size} pixels, but its "
                f"preprocessor_config.json makes {self.preprocess.size}: correct one of the two."
            )
        self._model = model.to(self.device)
        self._context = int(text.max_position_embeddings)
        self.logit_scale = math.exp(float(model.logit_scale))
        self.dim = self._embed_texts(["a"]).shape[-1]

    def _embed_images(self, batch: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._model.get_image_features(pixel_values=batch).pooler_output
        return features

    def _embed_spatial(self, batch: torch.Tensor) -> torch.Tensor:
        vision = self._model.vision_model
        tokens = vision(pixel_values=batch).last_hidden_state
        if self._kind == "clip":
            patches = vision.post_layernorm(tokens[:, 1:])
            features: torch.Tensor = self._model.visual_projection(patches)
            return features
        # Attention over a single token puts all its weight there.
        alone: torch.Tensor = vision.head(tokens.flatten(0, 1).unsqueeze(1))
        return alone.reshape(*tokens.shape[:2], -1)

    def _embedding_layer(self) -> torch.nn.Module:
        layer: torch.nn.Module = self._model.text_model.embeddings.token_embedding
        return layer

    def _tokenize(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        family = FAMILIES[self._kind]
        encoded = self._tokenizer(
            [text.lower() for text in texts] if family.lower_case else texts,
            padding=family.padding,
            truncation=True,
            max_length=self._context,
            return_attention_mask=True,
            return_tensors="pt",
        ).to(self.device)
        return encoded["input_ids"], encoded["attention_mask"].bool()

    def _embed_ids(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        # A tokenizer without a mask belongs to a model that was trained without one.
        masked = "attention_mask" in self._tokenizer.model_input_names
        given = mask.long() if masked else None
        output = self._model.get_text_features(input_ids=ids, attention_mask=given)
        features: torch.Tensor = output.pooler_output
        return features

    def _identity(self) -> Iterator[bytes]:
        parts = (self._model.config.text_config, self._model.config.vision_config)
        settings = [[getattr(part, name, None) for name in CONFIGURED] for part in parts]
        yield from self._parts_identity(settings, words_of(self._tokenizer))
        yield json.dumps(list(self._tokenizer.model_input_names)).encode()

    @property
    def loadable_name(self) -> str:
        """Name for `load_encoder` that works in any working directory."""
        place = Path(self.name)
        return f"hf:{place.absolute() if place.exists() else self.name}"


def preprocess_of(settings: Mapping[str, Any], source: str) -> Preprocess:
    """Convert the settings of an image processor of transformers; raise if not supported.

    The centre is cut out as in CLIP's own pipeline; transformers rounds half a pixel down, and
    differs by one pixel if the margin is 3 modulo 4.
    """

    def refuse(what: str) -> EncoderError:
        return EncoderError(
            f"The preprocessor_config.json of {source!r} asks for {what}, which is not supported: "
            "use a model that resizes to a square, or resizes the short side and crops a square."
        )

    for flag in ("do_resize", "do_rescale", "do_normalize"):
        if not settings.get(flag):
            raise refuse(f"{flag}=false")
    for flag, value in settings.items():
        if flag.startswith("do_") and value and flag not in _HONOURED:
            raise refuse(f"{flag}=true")
    if not math.isclose(settings.get("rescale_factor", 0), 1 / 255, rel_tol=1e-6):
        raise refuse(f"rescale_factor={settings.get('rescale_factor')}")
    interpolation: Any = _RESAMPLING.get(settings.get("resample"))  # type: ignore[arg-type]
    if interpolation is None:
        raise refuse(f"resample={settings.get('resample')}")
    resized, cropped = _sides(settings, "size"), _sides(settings, "crop_size")
    if not settings.get("do_center_crop"):
        cropped = resized
    shared: dict[str, Any] = {
        "interpolation": interpolation,
        "mean": tuple(settings["image_mean"]),
        "std": tuple(settings["image_std"]),
    }
    if resized.keys() == {"height", "width"} and resized == cropped:
        if resized["height"] == resized["width"]:
            return Preprocess(size=resized["height"], fit="squash", **shared)
    elif resized.keys() == {"shortest_edge"} and cropped.keys() == {"height", "width"}:
        short, size = resized["shortest_edge"], cropped["height"]
        if size == cropped["width"] and size <= short:
            return Preprocess(size=size, resize=short, fit="crop", **shared)
    raise refuse(f"size={dict(resized)} and crop_size={dict(cropped)}")


def _sides(settings: Mapping[str, Any], name: str) -> dict[str, int]:
    return {side: value for side, value in (settings.get(name) or {}).items() if value}


def _model_type(source: str) -> str:
    """The type of the model `source`, read from config.json before weights are downloaded."""
    folder = Path(source)
    if folder.is_dir():
        file = folder / "config.json"
        if not any(folder.glob("*.safetensors")):
            raise EncoderError(
                f"The folder {source!r} holds no safetensors weights; pickled ones "
                "(pytorch_model.bin) are not loaded: save the model again with save_pretrained."
            )
    else:
        missing = f"{source!r} holds no model of transformers (config.json)."
        file = fetch(source, "config.json", missing=missing)
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise EncoderError(f"{str(file)!r} is missing or not a JSON object.") from None
    if kind not in FAMILIES:
        named = "SigLIP 2 NaFlex (siglip2)" if kind == "siglip2" else kind
        raise EncoderError(f"{source!r} is a model of type {named}; supported are {SUPPORTED}.")
    return str(kind)


def _load_tokenizer(transformers: Any, source: str) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except ImportError:
        raise MissingExtraError(
            f"The tokenizer of {source!r} needs sentencepiece and protobuf, which are not "
            "installed: pip install 'gpcache[hf]'."
        ) from None


def _load_model(kind: Any, source: str) -> Any:
    model, report = kind.from_pretrained(
        source, use_safetensors=True, dtype=torch.float32, output_loading_info=True
    )
    # transformers only warns of missing weights and draws them at random.
    if report["missing_keys"]:
        raise EncoderError(
            f"The weights of {source!r} are incomplete: {len(report['missing_keys'])} are missing, "
            f"such as {min(report['missing_keys'])!r}."
        )
    return model.eval().requires_grad_(False)
