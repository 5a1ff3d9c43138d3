"""Classify photos with an exported model: onnxruntime, numpy and Pillow, without gpcache.

gpcache export pets.gpc -o pets.onnx --images
python classify.py pets.onnx photo.jpg
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def upright(image):
    """An upright RGB image (EXIF orientation applied), with transparency on white."""
    image = ImageOps.exif_transpose(image).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def pixels(image, preprocess):
    """Bytes (size, size, 3): the short side becomes `resize`, and the centre is cut out."""
    size, short = preprocess["size"], preprocess["resize"]
    width, height = image.size
    if width <= height:
        scaled = (short, int(short * height / width))
    else:
        scaled = (int(short * width / height), short)
    left, top = (round((side - size) / 2) for side in scaled)
    image = image.resize(scaled, FILTERS[preprocess["interpolation"]])
    return np.asarray(image.crop((left, top, left + size, top + size)))


def classify(model, photos):
    """For each photo the nearest class, all probabilities, and whether it is rejected."""
    session = onnxruntime.InferenceSession(model)
    facts = session.get_modelmeta().custom_metadata_map
    classes, preprocess = json.loads(facts["classes"]), json.loads(facts["preprocess"])
    batch = np.stack([pixels(upright(Image.open(photo)), preprocess) for photo in photos])
    names = ["label", "probabilities", "familiarity", "rejected"]
    outputs = zip(*session.run(names, {"pixels": batch}), strict=True)
    return [
        {
            "nearest": classes[label],
            "probabilities": dict(zip(classes, row.tolist(), strict=True)),
            "familiarity": float(familiarity[0]),
            "rejected": bool(rejected[0]),
        }
        for label, row, familiarity, rejected in outputs
    ]


if __name__ == "__main__":
    for photo, answer in zip(sys.argv[2:], classify(sys.argv[1], sys.argv[2:]), strict=True):
        best = answer["probabilities"][answer["nearest"]]
        shown = "I don't know" if answer["rejected"] else f"{answer['nearest']}  {best:.1%}"
        print(f"{photo}  {shown}")
