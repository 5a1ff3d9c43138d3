"""How fast photos become features: decoding alone, encoding alone, both; `lite` against torch.

python benchmarks/extraction.py      # for docs/results/speed.md
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from development_data import folder
from measuring import CPU, least
from numpy.typing import NDArray
from pages import table, text, write_page
from roofline import rates
from torch.utils.flop_counter import FlopCounterMode

from gpcache import load_encoder
from gpcache.encoders.efficientnet import load_network
from gpcache.features.extract import extract
from gpcache.images.sources import open_source
from gpcache.images.workers import DecodePool

BATCH, ROUNDS = 32, 5


def drawn_pixels(encoder: Any) -> NDArray[np.uint8]:
    """A batch of drawn images in the encoder's size."""
    size = encoder.preprocess.size
    return np.random.default_rng(0).integers(0, 256, (BATCH, size, size, 3), dtype=np.uint8)


def network_speeds(encoder: Any) -> tuple[dict[str, float], float]:
    """Images a second of one batch through the image network, in the ways that were tried.

    The second value is the limit: if the network were nothing but products at full speed.
    """
    counter, pixels = FlopCounterMode(display=False), drawn_pixels(encoder)
    images = encoder.preprocess.normalised(torch.from_numpy(pixels)).contiguous()
    last = images.contiguous(memory_format=torch.channels_last)
    plain, plain_last = load_network(encoder.recipe), load_network(encoder.recipe)
    plain_last.to(memory_format=torch.channels_last)
    ways: dict[str, Callable[[], object]] = {
        "eager torch": lambda: plain.extract_features(images),
        "channels last": lambda: plain_last.extract_features(last),
        "channels last, batch norm folded": lambda: encoder._vision._layers(last),
        "ONNX Runtime, folded (shipped)": lambda: encoder._maps(images),
        "whole encoder (shipped)": lambda: encoder.encode_pixels(pixels),
    }
    with torch.inference_mode():
        speeds = {name: BATCH / least(way, 1 + ROUNDS) for name, way in ways.items()}
    with counter, torch.no_grad():
        plain.extract_features(images[:1])
    return speeds, rates(CPU)["float32"] / counter.get_total_flops()


def main() -> None:
    """Measure on the unlabelled photos and write the page."""
    photos = folder("images") / "unlabelled"
    names = sorted(photos.iterdir())
    files, some = [path.read_bytes() for path in names], names[: 4 * BATCH]
    encoder = load_encoder("lite", device="cpu")
    encoder.encode_images(names[:BATCH])

    def decode() -> None:
        with DecodePool(encoder.preprocess) as pool:
            for future in [pool.submit(one, str(row)) for row, one in enumerate(files)]:
                future.result()

    speeds, limit = network_speeds(encoder)
    small = load_encoder("lite0", device="cpu")
    drawn = drawn_pixels(small)
    smaller = BATCH / least(lambda: small.encode_pixels(drawn), 1 + ROUNDS)
    one_by_one = least(lambda: [encoder.encode_images([photo]) for photo in some])
    decoding, encoding = len(files) / least(decode), speeds["whole encoder (shipped)"]
    with tempfile.TemporaryDirectory() as place:
        first, again = (extract(open_source(photos), Path(place) / "s", encoder) for _ in "12")
    together = first.encoded / first.seconds
    found = {
        "decoding alone, two worker processes": decoding,
        "encoding alone, two threads": encoding,
        "the same with `lite0`": smaller,
        "`extract`: read, hash, decode, encode, write": together,
        "one photo after the other, no store": len(some) / one_by_one,
        "limit of the machine": limit,
        "`extract` again: nothing to encode": again.known / again.seconds,
    }
    facts = {"count": len(files), "kilobytes": sum(map(len, files)) / len(files) / 1000}
    facts |= {"cores": torch.get_num_threads(), "faster": decoding / encoding}
    about = text("extraction", **facts, share=together * (1 / decoding + 1 / encoding))
    rows, eager = [[name, f"{one:.0f}"] for name, one in found.items()], speeds["eager torch"]
    tried = [[name, f"{one:.0f}", f"{one / eager:.1f}×"] for name, one in speeds.items()]
    parts = [about, table([["what", "images/s"], *rows]), text("extraction-ways")]
    parts += [table([["way", "images/s", "ratio to eager"], *tried])]
    write_page("extraction", "From photos to features", *parts)


if __name__ == "__main__":
    main()
