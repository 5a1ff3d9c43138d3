"""Roofline tasks around the features: encoding of photos, and the search for neighbours."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from roofline_machine import Task
from torch import Tensor

from gpcache.features.neighbors import nearest

NEIGHBOURS = 128


def neighbour_tasks(n: int, width: int, device: torch.device) -> Iterator[Task]:
    """Every row looks for its neighbours among all."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n, width, generator=generator).to(device)
    rows = torch.nn.functional.normalize(rows, dim=1)

    def naive() -> Tensor:
        similarity = rows @ rows.mT
        order = similarity.argsort(1, descending=True)[:, :NEIGHBOURS]
        return similarity.gather(1, order).cpu()

    yield Task(
        "neighbours",
        f"{n:,} rows among themselves, d = {width:,}, k = {NEIGHBOURS}",
        lambda: torch.from_numpy(nearest(rows, k=NEIGHBOURS, device=device)[1]),
        naive,
        n**2 * width,  # half a matrix of similarities
        bytes=4 * n * width + 12 * n * NEIGHBOURS,  # the rows; positions and similarities
        dtype="float32",
        note="The naive search sorts the whole matrix of similarities.",
    )


def encoding_tasks(count: int) -> Iterator[Task]:
    """Photos of a folder through `lite`: the pipeline into a store, or one after the other."""
    from torch.utils.flop_counter import FlopCounterMode

    from gpcache import load_encoder
    from gpcache.encoders.efficientnet import load_network
    from gpcache.encoders.lite_recipes import RECIPES
    from gpcache.features.extract import extract
    from gpcache.images.sources import open_source

    encoder = load_encoder("lite", device="cpu")
    counter = FlopCounterMode(display=False)
    recipe = RECIPES["lite"]
    with counter, torch.no_grad():
        load_network(recipe).extract_features(torch.zeros(1, 3, recipe.size, recipe.size))
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place) / "photos" / "one class"
        write_photos(photos, count)

        def pipeline() -> None:
            with tempfile.TemporaryDirectory() as store:
                extract(open_source(photos.parent), Path(store) / "store", encoder)

        def one_by_one() -> Tensor:
            found = [encoder.encode_images([photo]) for photo in sorted(photos.iterdir())]
            return torch.from_numpy(np.concatenate(found))

        yield Task(
            "encoding, `lite`",
            f"{count} photos of 640 × 480",
            pipeline,
            one_by_one,
            count * counter.get_total_flops(),
            bytes=sum(photo.stat().st_size for photo in photos.iterdir()),
            dtype="float32",
            note="The naive way decodes and encodes one photo after the other and writes no store; "
            "ours reads, hashes, decodes in worker processes, encodes in batches and writes. The "
            "operations are those of the image network alone.",
        )


def write_photos(folder: Path, count: int) -> None:
    """JPEG files with the detail of photos: smooth noise."""
    from PIL import Image

    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        coarse = generator.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:03}.jpg", quality=90)
