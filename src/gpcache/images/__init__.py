"""Images: folders, lists and bytes → RGB images → the pixels an encoder wants."""

from gpcache.images.decode import Decoded, decode
from gpcache.images.preprocess import Preprocess

__all__ = ["Decoded", "Preprocess", "decode"]
