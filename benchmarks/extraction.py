"""How fast photos become features: decoding alone, encoding alone, both; `lite` against torch.

python benchmarks/extraction.py      # for docs/results/speed.md
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from development_data import folder
from measuring import CPU, least
from numpy.typing import NDArray
from pages import table, text, write_page
from roofline_machine import Machine
from torch.utils.flop_counter import FlopCounterMode

from gpcache import load_encoder
from gpcache.encoders.efficientnet import load_network
from gpcache.encoders.lite import LiteEncoder
from gpcache.features.extract import extract
from gpcache.images.sources import open_source
from gpcache.images.workers import DecodePool

BATCH = 32
ROUNDS = 5


def decoding(files: list[bytes], encoder: LiteEncoder) -> float:
    """The pool alone: bytes to pixels in separate processes."""

    def work() -> None:
        with DecodePool(encoder.preprocess) as pool:
            futures = [pool.submit(content, str(row)) for row, content in enumerate(files)]
            for future in futures:
                future.result()

    return len(files) / least(work)


def encoders(encoder: LiteEncoder) -> list[list[object]]:
    """One batch of pixels through the image network, in the ways that were tried."""
    pixels = noise(encoder)
    images = encoder.preprocess.normalised(torch.from_numpy(pixels)).contiguous()
    plain, folded = load_network(encoder.recipe), encoder._vision._layers
    last = images.contiguous(memory_format=torch.channels_last)
    plain_last = load_network(encoder.recipe).to(memory_format=torch.channels_last)
    ways: dict[str, Callable[[], object]] = {
        "eager torch": lambda: plain.extract_features(images),
        "channels last": lambda: plain_last.extract_features(last),
        "channels last, batch norm folded": lambda: folded(last),
        "ONNX Runtime, folded (shipped)": lambda: encoder._maps(images),
        "whole encoder (shipped)": lambda: encoder.encode_pixels(pixels),
    }
    with torch.inference_mode():
        for work in ways.values():
            work()
        rates = {name: BATCH / least(work, ROUNDS) for name, work in ways.items()}
    eager = rates["eager torch"]
    rows = [[name, f"{one:.0f}", f"{one / eager:.1f}×"] for name, one in rates.items()]
    return [["way", "images/s", "ratio to eager"], *rows]


def noise(encoder: LiteEncoder) -> NDArray[np.uint8]:
    """A batch of random pixels in the encoder's size."""
    size = encoder.preprocess.size
    return np.random.default_rng(0).integers(0, 256, (BATCH, size, size, 3), dtype=np.uint8)


def limit(encoder: LiteEncoder) -> float:
    """Images a second, if the image network were nothing but products at full speed."""
    size, counter = encoder.preprocess.size, FlopCounterMode(display=False)
    with counter, torch.no_grad():
        load_network(encoder.recipe).extract_features(torch.zeros(1, 3, size, size))
    return Machine.measured(CPU).peaks["float32"] / counter.get_total_flops()


def main() -> None:
    """Measure on the unlabelled photos and write the page."""
    photos = folder("images") / "unlabelled"
    encoder = load_encoder("lite", device="cpu")
    assert isinstance(encoder, LiteEncoder)
    encoder.encode_images(sorted(photos.iterdir())[:BATCH])
    files = [path.read_bytes() for path in sorted(photos.iterdir())]
    some = sorted(photos.iterdir())[: 4 * BATCH]
    one_by_one = least(lambda: [encoder.encode_images([photo]) for photo in some])
    decode_rate = decoding(files, encoder)
    pixels = noise(encoder)
    encode_rate = BATCH / least(lambda: encoder.encode_pixels(pixels), ROUNDS)
    with tempfile.TemporaryDirectory() as place:
        report = extract(open_source(photos), Path(place) / "store", encoder)
        again = extract(open_source(photos), Path(place) / "store", encoder)
    together = report.encoded / report.seconds
    rates = [
        ["what", "images/s"],
        ["decoding alone, two worker processes", f"{decode_rate:.0f}"],
        ["encoding alone, two threads", f"{encode_rate:.0f}"],
        ["`extract`: read, hash, decode, encode, write", f"{together:.0f}"],
        ["one photo after the other, no store", f"{len(some) / one_by_one:.0f}"],
        ["limit of the machine", f"{limit(encoder):.0f}"],
        ["`extract` again: nothing to encode", f"{again.known / again.seconds:.0f}"],
    ]
    write_page(
        "extraction",
        "From photos to features",
        text(
            "extraction",
            count=len(files),
            kilobytes=sum(map(len, files)) / len(files) / 1000,
            cores=torch.get_num_threads(),
            faster=decode_rate / encode_rate,
            share=together / (1 / (1 / decode_rate + 1 / encode_rate)),
        ),
        table(rates),
        "## Ways to run the image network\n\nOne batch of 32, the best of five rounds, same run.",
        table(encoders(encoder)),
    )


if __name__ == "__main__":
    main()
