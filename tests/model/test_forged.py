"""Model folders with right checksums and wrong content: one sentence each, never a traceback."""

import copy
import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from gpcache import ImageClassifier, ModelFileError
from gpcache.errors import GPCacheError
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.support.array_folders import load_folder
from gpcache.support.files import sha256

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

PICTURES = [
    np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8) for seed in range(9)
]
PAIRS = [(picture, "abc"[number % 3]) for number, picture in enumerate(PICTURES)]
QUERIES = np.random.default_rng(0).normal(size=(4, 16))
VALUES = (..., None, "x", -1, 2**70, 1e308, float("nan"), [], {}, [[[[[[]]]]]])
CHANGES = (
    None,
    lambda array: array[1:],
    lambda array: array[None],
    lambda array: array.astype(np.uint8),
    lambda array: array.astype(np.float16),
    lambda array: np.full(array.shape, np.nan),
    lambda array: np.full(array.shape, 1e300),
)


def forge(folder, config, arrays):
    """Write a model folder with right checksums, whatever it holds."""
    tensors = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    content = {"sha256": "", "schema": 1, **config, "tensors_sha256": sha256(tensors)}
    text = json.dumps(content).encode()
    (folder / "config.json").write_bytes(text.replace(b'""', f'"{sha256(text)}"'.encode(), 1))
    (folder / "model.safetensors").write_bytes(tensors)


def paths_of(value, path=()):
    keys = list(value) if isinstance(value, dict) else [0] if value and value != str(value) else []
    for key in keys if isinstance(value, dict | list) else []:
        yield (*path, key)
        yield from paths_of(value[key], (*path, key))


def changed(config, path, value):
    found = place = copy.deepcopy(config)
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return found


def use(folder):
    """Whether a model can be read and asked; a refusal must be one sentence about this folder."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ImageClassifier.load(folder, device="cpu")
            answer = model.model.answer(QUERIES, top=2)
            model.held_out()
            model.suspects()
            if isinstance(model.model, CacheClassifier):
                model.remove(names=[model.examples[0].name])
                model.save(folder)
    except GPCacheError as error:
        sentence = str(error)
    else:
        sentence = None
    if sentence is not None:
        assert "\n" not in sentence
        assert sentence.endswith(".")
        return False
    assert np.isfinite(answer.probabilities).all()
    return True


@pytest.fixture(params=["gpcache", "gda", "task-res"])
def saved(request, tmp_path):
    folder = tmp_path / "model"
    classifier = ImageClassifier(
        tiny.ColourEncoder(), method=request.param, prompt="a {}.", device="cpu"
    )
    classifier.fit(PAIRS).save(folder)
    config, arrays = load_folder(folder)
    del config["schema"], config["tensors_sha256"]
    return folder, config, arrays


def test_the_forgery_of_nothing_is_the_model(saved):
    folder, config, arrays = saved
    forge(folder, config, arrays)
    assert use(folder)


def test_no_field_of_any_kind_gives_a_traceback(saved):
    folder, config, arrays = saved
    refused = 0
    for number, path in enumerate(paths_of(config)):
        for value in VALUES[number % 2 :: 2]:  # half of them: every kind for every second field
            forge(folder, changed(config, path, value), arrays)
            refused += not use(folder)
    assert refused > 100


def test_no_array_of_any_kind_gives_a_traceback(saved):
    folder, config, arrays = saved
    refused = 0
    for name in arrays:
        others = {key: array for key, array in arrays.items() if key != name}
        for change in CHANGES:
            new = {} if change is None else {name: change(arrays[name])}
            with np.errstate(all="ignore"):
                forge(folder, config, others | new)
            refused += not use(folder)
    assert refused > len(arrays)


def test_the_sentence_says_where_it_is_wrong(saved):
    folder, config, arrays = saved
    forge(folder, changed(config, ("model", "temperature"), -1), arrays)
    with pytest.raises(ModelFileError, match=r"'model.temperature': Input should be greater than"):
        ImageClassifier.load(folder)
    forge(folder, config, arrays | {"text": np.zeros((3, 5))})
    with pytest.raises(ModelFileError, match=r"'text' has the shape \(3, 5\)"):
        ImageClassifier.load(folder)
    forge(folder, config, arrays | {"text": arrays["text"].astype(np.float16)})
    with pytest.raises(ModelFileError, match="'text' holds float16"):
        ImageClassifier.load(folder)
    forge(folder, changed(config, ("model", "entropy_slope"), 2**70), arrays)
    with pytest.raises(ModelFileError, match=r"'model.entropy_slope': .* the number is too large"):
        ImageClassifier.load(folder)
