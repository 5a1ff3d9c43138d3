"""Reads the images of a fit while torch and scikit-learn are being imported.

The imports take as long as a hundred photos, and use one core. The cached graph of `lite` needs
neither package: other threads decode and encode with it meanwhile. This module imports neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders.lite_graph import LiteGraph, is_cpu, read_graph, usable_threads
from gpcache.encoders.lite_recipes import RECIPES, LiteRecipe
from gpcache.encoders.vectors import Features
from gpcache.errors import GPCacheError
from gpcache.features.store import FeatureStore
from gpcache.images.records import Source
from gpcache.model.training_images import ExampleReader, StartedSource, TrainingFacts

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

# The encoder, or its name, and the images to fit on.
Taken: TypeAlias = "tuple[str | Encoder, Source | FeatureStore]"

# Of more images than these a fit waits for the images, not for the imports.
MOST_IMAGES = 500
# Images that one thread encodes at once.
PART = 4


class SharedGraph:
    """A graph that is being opened, as an encoder on all cores but one, which the imports use."""

    batch_size, dim = LiteGraph.batch_size, LiteGraph.dim

    def __init__(self, recipe: LiteRecipe, graph: Future[LiteGraph | None]) -> None:
        self.name, self.preprocess = recipe.name, recipe.preprocess
        self.stopped = False
        count = usable_threads()
        self._graph, self.threads = graph, ThreadPoolExecutor(count)
        self._cores = Semaphore(max(1, count - 1))

    def imports_ended(self) -> None:
        """Use the core that was left free."""
        self._cores.release()

    def encode_pixels(self, pixels: NDArray[np.uint8]) -> Features:
        """Unit vectors (b, dim) of pixels (b, s, s, 3)."""
        parts = [pixels[start : start + PART] for start in range(0, len(pixels), PART)]
        return np.concatenate(list(self.threads.map(self._encode, parts)))

    def _encode(self, pixels: NDArray[np.uint8]) -> Features:
        graph = self._graph.result()
        with self._cores:
            if graph is None or self.stopped:
                raise CancelledError
            return graph.encode_pixels(pixels)


class EarlyReading:
    """The images of a source, `shots` of each class or all, that other threads are reading."""

    def __init__(self, source: Source, recipe: LiteRecipe, shots: int | None, seed: int) -> None:
        self._source = source
        self._training = TrainingFacts(source.name, shots, None if shots is None else seed)
        self._threads = ThreadPoolExecutor(2)
        self._graph = self._threads.submit(_opened, recipe)
        self._encoder = SharedGraph(recipe, self._graph)
        encoder = cast("Encoder", self._encoder)  # all of an encoder that images need
        reader = ExampleReader(encoder, None, self._training)
        self.reading = self._threads.submit(reader.read, source, shots, seed)

    def take(self, device: str) -> Taken | None:
        """What to fit on when the imports have ended; None without a cached graph."""
        from gpcache.encoders.lite import LiteEncoder  # imports torch

        graph = self._graph.result()
        if graph is None:
            return None
        self._encoder.imports_ended()
        source = StartedSource(
            **vars(self._source),
            fingerprint=graph.fingerprint,
            training=self._training,
            reading=self.reading,
        )
        return LiteEncoder(device, name=graph.name, graph=graph), source

    def stop(self) -> None:
        """Leave alone what is not encoded yet."""
        self._encoder.stopped = True
        self._threads.shutdown()
        self._encoder.threads.shutdown()


@contextmanager
def read_early(
    source: Source | FeatureStore,
    encoder: str,
    device: str,
    *,
    shots: int | None,
    seed: int,
    views: int = 0,
) -> Iterator[Callable[[], Taken]]:
    """Start to read the images of a fit, if they are few and the encoder needs no torch for them.

    What it yields is to be called after the imports; it returns what to fit on. That is `encoder`
    and `source` themselves where nothing was started.
    """
    recipe = RECIPES.get(encoder)
    if recipe is None or views or not (is_cpu(device) and _is_small(source, shots)):
        yield lambda: (encoder, source)
        return
    assert isinstance(source, Source)
    early = EarlyReading(source, recipe, shots, seed)
    try:
        yield lambda: early.take(device) or (encoder, source)
    finally:
        early.stop()


def _is_small(source: Source | FeatureStore, shots: int | None) -> bool:
    if isinstance(source, FeatureStore) or source.total is None:
        return False
    drawn = source.total if shots is None else shots * len(source.classes)
    return 0 < min(drawn, source.total) <= MOST_IMAGES


def _opened(recipe: LiteRecipe) -> LiteGraph | None:
    try:
        return read_graph(recipe, threads=1)
    except GPCacheError:
        return None  # the fit opens the encoder in its own way, and reports the error
