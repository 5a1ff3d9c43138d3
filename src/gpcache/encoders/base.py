"""Encoder: the base class that turns images and text into unit vectors of one space."""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.encoders.vectors import Features, unit_vectors
from gpcache.errors import DataError, EncoderError
from gpcache.images import Preprocess, decode
from gpcache.support.checks import shown
from gpcache.support.devices import free_memory, resolve_device

TEXT_BATCH = 64
CPU_BATCH = 32
GPU_BATCH = 512
PROBE = 4


@dataclass(frozen=True)
class TokenText:
    """Texts as token embeddings, for methods that learn prompts.

    Parameters
    ----------
    embeddings : Tensor of shape (n, length, width)
        Token embeddings, without positions.
    ids : Tensor of shape (n, length)
        Token ids.
    mask : Tensor of shape (n, length)
        True where there is a token.

    Examples
    --------
    >>> from gpcache import load_encoder
    >>> tokens = load_encoder("lite").embed_tokens(["a cat"])
    >>> tokens.embeddings.shape[:2] == tokens.ids.shape == tokens.mask.shape
    True
    """

    embeddings: torch.Tensor
    ids: torch.Tensor
    mask: torch.Tensor


class Encoder(ABC):
    """A model that maps images and text to unit vectors of one space.

    Weights, preprocessing and tokenizer belong together. Two encoders with the same fingerprint
    give the same features. Never mix features of different fingerprints.

    Parameters
    ----------
    device : str or torch.device, default="auto"
        Device to compute on; "auto" takes a GPU if there is one.

    Attributes
    ----------
    name : str
        Name for `load_encoder`.
    dim : int
        Length of the vectors.
    logit_scale : float
        Factor that turns cosines into logits.
    preprocess : Preprocess
        Resizing, cropping and normalisation.
    has_spatial, has_tokens : bool
        Whether it gives spatial features, and access to the tokens of a text.

    Examples
    --------
    >>> from gpcache import load_encoder
    >>> encoder = load_encoder("lite")
    >>> encoder.name, encoder.dim
    ('lite', 1664)
    """

    name: str
    dim: int
    logit_scale: float
    preprocess: Preprocess
    has_spatial: bool = False
    has_tokens: bool = False

    def __init__(self, device: str | torch.device = "auto") -> None:
        self.device = resolve_device(device)

    # For subclasses to define.

    @abstractmethod
    def _embed_images(self, batch: torch.Tensor) -> torch.Tensor:
        """Normalised images (b, 3, s, s) → features (b, dim) of any length."""

    @abstractmethod
    def _embed_texts(self, texts: list[str]) -> torch.Tensor:
        """Texts → features (b, dim) of any length."""

    @abstractmethod
    def _identity(self) -> Iterator[bytes]:
        """The bytes of weights and tokenizer, for the fingerprint."""

    def _embed_spatial(self, batch: torch.Tensor) -> torch.Tensor:
        """Normalised images (b, 3, s, s) → one feature per position (b, m, dim)."""
        raise EncoderError(f"The encoder {self.name!r} has no spatial features.")

    def embed_tokens(self, texts: Sequence[str]) -> TokenText:
        """Return token embeddings, to be changed and passed to `encode_tokens`.

        Parameters
        ----------
        texts : sequence of str
            Texts.

        Returns
        -------
        TokenText
            Embeddings, ids and mask.

        Raises
        ------
        EncoderError
            If the encoder gives no access to tokens.

        Examples
        --------
        >>> from gpcache import load_encoder
        >>> load_encoder("lite").embed_tokens(["a cat"]).ids.shape[0]
        1
        """
        raise no_token_access(self.name)

    def encode_tokens(self, tokens: TokenText) -> torch.Tensor:
        """Encode token embeddings; gradients flow back into them.

        Parameters
        ----------
        tokens : TokenText
            Token embeddings.

        Returns
        -------
        Tensor of shape (n, dim)
            Unit vectors.

        Raises
        ------
        EncoderError
            If the encoder gives no access to tokens.

        Examples
        --------
        >>> from gpcache import load_encoder
        >>> encoder = load_encoder("lite")
        >>> encoder.encode_tokens(encoder.embed_tokens(["a cat"])).shape
        torch.Size([1, 1664])
        """
        raise no_token_access(self.name)

    # Shared by all encoders.

    def encode_images(self, images: Iterable[Any], *, batch_size: int | None = None) -> Features:
        """Encode images.

        An image that breaks the decoding policy is an error. `gpcache.features.extract` reports
        such files and continues.

        Parameters
        ----------
        images : iterable
            Paths, bytes, Pillow images or arrays of shape (h, w, 3).
        batch_size : int, optional
            Number of images to encode at once; by default chosen from the free memory.

        Returns
        -------
        array of shape (n, dim)
            Unit vectors.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import load_encoder
        >>> load_encoder("lite").encode_images([np.zeros((100, 80, 3), np.uint8)]).shape
        (1, 1664)
        """
        return self._in_batches(images, self.encode_pixels, (0, self.dim), batch_size)

    def encode_spatial(self, images: Iterable[Any], *, batch_size: int | None = None) -> Features:
        """Encode the places in each image.

        Parameters
        ----------
        images : iterable
            Images as in `encode_images`.
        batch_size : int, optional
            Number of images to encode at once.

        Returns
        -------
        array of shape (n, positions, dim)
            Unit vectors.

        Raises
        ------
        EncoderError
            If the encoder has no spatial features.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import load_encoder
        >>> load_encoder("lite").encode_spatial([np.zeros((100, 80, 3), np.uint8)]).shape
        (1, 81, 1664)
        """
        if not self.has_spatial:
            raise EncoderError(f"The encoder {self.name!r} has no spatial features.")

        encode = partial(self._encode, embed=self._embed_spatial)
        return self._in_batches(images, encode, (0, 0, self.dim), batch_size)

    def encode_pixels(self, pixels: NDArray[np.uint8]) -> Features:
        """Encode one batch of preprocessed images.

        A batch that does not fit into the memory of the accelerator is halved, with a warning.

        Parameters
        ----------
        pixels : array of shape (b, size, size, 3)
            Images as bytes, resized and cropped.

        Returns
        -------
        array of shape (b, dim)
            Unit vectors.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import load_encoder
        >>> encoder = load_encoder("lite")
        >>> size = encoder.preprocess.size
        >>> encoder.encode_pixels(np.zeros((2, size, size, 3), np.uint8)).shape
        (2, 1664)
        """
        return self._encode(pixels, self._embed_images)

    def encode_views(self, pixels: NDArray[np.uint8], *, average: bool) -> Features:
        """Encode views of images.

        Parameters
        ----------
        pixels : array of shape (b, v, size, size, 3)
            v views of b images, as bytes.
        average : bool
            Return the mean over views. It is taken before vectors are scaled to length one, as
            Tip-Adapter makes its keys.

        Returns
        -------
        array of shape (b, dim) or (b, v, dim)
            Unit vectors.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import load_encoder
        >>> encoder = load_encoder("lite")
        >>> size = encoder.preprocess.size
        >>> encoder.encode_views(np.zeros((1, 2, size, size, 3), np.uint8), average=True).shape
        (1, 1664)
        """
        images, views = pixels.shape[:2]

        def embed(batch: torch.Tensor) -> torch.Tensor:
            features = self._embed_images(batch).float()
            return features.reshape(-1, views, self.dim).mean(1) if average else features

        flat = pixels.reshape(images * views, *pixels.shape[2:])
        features = self._encode(flat, embed, each=views)
        return features if average else features.reshape(images, views, self.dim)

    def encode_texts(self, texts: Sequence[str]) -> Features:
        """Encode texts.

        Parameters
        ----------
        texts : sequence of str
            Texts.

        Returns
        -------
        array of shape (n, dim)
            Unit vectors.

        Raises
        ------
        DataError
            If a text is not a string.

        Examples
        --------
        >>> from gpcache import load_encoder
        >>> load_encoder("lite").encode_texts(["a cat", "a dog"]).shape
        (2, 1664)
        """
        texts = list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise DataError(f"A text must be a string, got {text!r}.")
            if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes of another encoding
                raise DataError(f"The text {shown(text)} is not valid UTF-8: write it in UTF-8.")
        rows = [np.zeros((0, self.dim), dtype=np.float32)]
        for start in range(0, len(texts), TEXT_BATCH):
            with torch.inference_mode():
                features = self._embed_texts(texts[start : start + TEXT_BATCH])
            rows.append(unit_vectors(features.float().cpu().numpy(), "text", self.name))
        return np.concatenate(rows)

    @property
    def loadable_name(self) -> str:
        """Name for `load_encoder` that works in any working directory."""
        return self.name

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of weights, preprocessing and tokenizer."""
        digest = hashlib.sha256()
        digest.update(json.dumps(self.preprocess.describe(), sort_keys=True).encode())
        for part in self._identity():
            digest.update(part)
        return digest.hexdigest()

    @cached_property
    def batch_size(self) -> int:
        """Number of images to encode at once, chosen from the free memory."""
        if self.device.type != "cuda":
            return CPU_BATCH
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        size = self.preprocess.size
        self.encode_pixels(np.full((PROBE, size, size, 3), 127, dtype=np.uint8))
        each = (torch.cuda.max_memory_allocated(self.device) - before) // PROBE
        # Half of the free memory, because of fragmentation and other processes.
        return max(1, min(GPU_BATCH, free_memory(self.device) // (2 * max(each, 1))))

    def _in_batches(
        self,
        images: Iterable[Any],
        encode: Callable[[NDArray[np.uint8]], Features],
        empty: tuple[int, ...],
        batch_size: int | None,
    ) -> Features:
        if isinstance(images, str | bytes):
            raise DataError("images must be a list of images; put a single one in a list.")
        rows = []
        waiting = iter(images)
        while batch := list(islice(waiting, batch_size or self.batch_size)):
            pixels = [self.preprocess.pixels(decode(image).image) for image in batch]
            rows.append(encode(np.stack(pixels)))
        return np.concatenate(rows) if rows else np.zeros(empty, dtype=np.float32)

    def _encode(
        self,
        pixels: NDArray[np.uint8],
        embed: Callable[[torch.Tensor], torch.Tensor],
        each: int = 1,
    ) -> Features:
        """Unit rows of `embed`; `each` images in a row belong together when a batch is halved."""
        try:
            batch = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).to(self.device)
            # Half-precision products on a GPU; features come back in float32.
            on_gpu = self.device.type == "cuda"
            mixed = torch.autocast("cuda", dtype=torch.float16) if on_gpu else nullcontext()
            with torch.inference_mode(), mixed:
                features = embed(self.preprocess.normalised(batch))
        except torch.OutOfMemoryError:
            if len(pixels) <= each:
                raise EncoderError(
                    f"{self.device} does not have enough memory for {self.name!r} and one image: "
                    "use device='cpu'."
                ) from None
            half = (len(pixels) // each + 1) // 2 * each
            warnings.warn(
                f"{self.device} ran out of memory at {len(pixels)} images: continuing with {half}.",
                RuntimeWarning,
                stacklevel=2,
            )
            self.__dict__["batch_size"] = half
            torch.cuda.empty_cache()
            parts = [self._encode(part, embed, each) for part in (pixels[:half], pixels[half:])]
            return np.concatenate(parts)
        return unit_vectors(features.float().cpu().numpy(), "image", self.name)


def no_token_access(name: str) -> EncoderError:
    """The error of an encoder whose text model does not accept token embeddings."""
    return EncoderError(f"The encoder {name!r} gives no access to the tokens of a text.")


def weights_identity(model: torch.nn.Module) -> Iterator[bytes]:
    """The bytes of a module's weights, by name, for a fingerprint."""
    for key, value in sorted(model.state_dict().items()):
        yield f"{key}:{value.dtype}:{tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
