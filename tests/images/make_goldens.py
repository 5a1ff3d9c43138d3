"""Makes goldens.json, what torchvision makes of synthetic images; torchvision is needed only here.

Run `python tests/images/make_goldens.py` where torch and torchvision 0.28.0 are installed. Where
torchvision does not load because it was built for another torch, its two operators are declared
first; the transforms use neither.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

GOLDENS = Path(__file__).with_name("goldens.json")
SIZES = [(224, 224), (640, 480), (481, 640), (301, 257), (97, 61), (31, 500), (1023, 77), (1, 1)]
MODES = ["L", "CMYK", "P", "1", "YCbCr"]
# What Preprocess calls it → the arguments of Preprocess.
PIPELINES = {
    "clip": {},
    "larger": {"resize": 256, "interpolation": "bilinear"},
    "squash": {"fit": "squash"},
}


def pattern(width, height, channels):
    """Edges, ramps and fine texture from integers alone: the same on every machine."""
    y, x = np.mgrid[:height, :width].astype(np.int64)
    planes = [(x * (3 + c) + y * (7 - c) + (x * y) // (5 + c)) ^ (x // 9 * 37) for c in range(4)]
    stacked = np.stack(planes[:channels], axis=-1) % 256
    return stacked.astype(np.uint8)


def images():
    """Name → RGB image, of several shapes and converted from several modes."""
    made = {f"RGB {w}x{h}": Image.fromarray(pattern(w, h, 3)) for w, h in SIZES}
    for mode in MODES:
        if mode == "CMYK":
            image = Image.fromarray(pattern(333, 250, 4), mode="CMYK")
        elif mode == "YCbCr":
            image = Image.fromarray(pattern(333, 250, 3), mode="YCbCr")
        elif mode == "1":
            image = Image.fromarray(pattern(333, 250, 1)[..., 0]).point(lambda v: v > 99, "1")
        else:
            image = Image.fromarray(pattern(333, 250, 1)[..., 0])
            if mode == "P":
                image.putpalette(pattern(16, 16, 3).tobytes())
        assert image.mode == mode
        made[f"{mode} 333x250"] = image.convert("RGB")
    return made


def summary(pixels, values):
    """Pixels (s, s, 3) and values (3, s, s) in short: their hashes, and a few values to look at."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    return {
        "pixels": hashlib.sha256(np.ascontiguousarray(pixels, dtype=np.uint8)).hexdigest(),
        "values": hashlib.sha256(values).hexdigest(),
        "sample": [float(values[c, 50 + 60 * c, 170 - 30 * c]) for c in range(3)],
    }


def main():
    """Write the goldens."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import transforms
    from torchvision.transforms import InterpolationMode

    cut = {
        "clip": [transforms.Resize(224, InterpolationMode.BICUBIC), transforms.CenterCrop(224)],
        "larger": [transforms.Resize(256, InterpolationMode.BILINEAR), transforms.CenterCrop(224)],
        "squash": [transforms.Resize((224, 224), InterpolationMode.BICUBIC)],
    }
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    numbers = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    goldens = {}
    for pipeline in PIPELINES:
        for name, image in images().items():
            pixels = transforms.Compose(cut[pipeline])(image)
            goldens[f"{pipeline}: {name}"] = summary(np.asarray(pixels), numbers(pixels).numpy())
    GOLDENS.write_text(json.dumps(goldens, indent=1) + "\n")


if __name__ == "__main__":
    main()
