"""The model folder: whole or not there, damage always noticed, and nothing else ever touched."""

import hashlib
import importlib.util
import json
import os
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from gpcache.errors import DataError, EncoderError, GPCacheError, ModelFileError
from gpcache.model.classifier import ImageClassifier
from gpcache.support import array_folders as persistence
from gpcache.support.array_folders import load_folder, save_folder

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

FILES = ["README.md", "config.json", "model.safetensors"]
CONFIG = {"names": ["oak", "שלום", "🐈‍⬛"], "tiny": 1e-05, "sum": 0.1 + 0.2, "bell": "\x1f"}


def arrays(seed=0):
    generator = np.random.default_rng(seed)
    return {"keys": generator.normal(size=(20, 8)), "counted": generator.random(20) < 0.5}


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "pets.gpc"
    save_folder(folder, CONFIG, arrays(), "# Card\n")
    return folder


def content(folder):
    """Every file below a folder and its bytes."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def refused(folder, *parts):
    with pytest.raises(ModelFileError) as caught:
        load_folder(folder)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def reseal(folder, config):
    """Write a config.json with a good seal, as the module says it is made."""
    text = json.dumps({"sha256": ""} | config)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "config.json").write_text(text.replace('""', f'"{digest}"', 1))


def test_what_was_saved_comes_back(saved):
    config, found = load_folder(saved)
    assert {key: config[key] for key in CONFIG} == CONFIG
    assert sorted(path.name for path in saved.iterdir()) == FILES
    assert (saved / "README.md").read_text() == "# Card\n"
    for name, array in arrays().items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_names_that_are_no_utf8_come_back(tmp_path):
    """Python hides such bytes of a file's name in surrogates."""
    name = os.fsdecode(b"caf\xe9.jpg")
    save_folder(tmp_path / "model", {"name": name}, {}, "")
    assert load_folder(tmp_path / "model")[0]["name"] == name


def test_a_thousand_random_flips_are_all_noticed(saved):
    generator = random.Random(0)
    for _ in range(1000):
        name = generator.choice(["config.json", "model.safetensors"])
        path = saved / name
        good = path.read_bytes()
        bad = bytearray(good)
        bad[generator.randrange(len(bad))] ^= 1 << generator.randrange(8)
        path.write_bytes(bad)
        refused(saved, name, "damaged")
        path.write_bytes(good)
    load_folder(saved)


@pytest.mark.parametrize(
    ("written", "flipped"), [(b"1e-05", b"1E-05"), (b"0004,", b"0005,"), (b"u001f", b"u001F")]
)
def test_a_flip_that_json_would_not_see_is_noticed(written, flipped, saved):
    path = saved / "config.json"
    changed = path.read_bytes().replace(written, flipped)
    assert json.loads(changed) == json.loads(path.read_bytes())
    path.write_bytes(changed)
    refused(saved, "config.json", "damaged")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_noticed(name, share, saved):
    data = (saved / name).read_bytes()
    (saved / name).write_bytes(data[: int(share * len(data))])
    refused(saved, name, "damaged")


@pytest.mark.parametrize(
    ("name", "phrase"), [("config.json", "not a gpcache model"), (FILES[2], "missing")]
)
def test_a_missing_file_is_named(name, phrase, saved):
    (saved / name).unlink()
    refused(saved, name, phrase)


def test_no_folder_and_a_file_are_no_model(tmp_path):
    (tmp_path / "file").write_text("{}")
    for name in ("gone", "file"):
        refused(tmp_path / name, name, "not a gpcache model")


@pytest.mark.parametrize(
    "text",
    ["no JSON", "[]", "null", "3", '"text"', "{}", '{"sha256": 1, "schema": 1}', "[" * 99999],
)
def test_what_is_no_config_is_refused(text, saved):
    (saved / "config.json").write_text(text)
    refused(saved, "config.json", "damaged")


def test_a_good_seal_alone_makes_no_model_and_a_newer_one_asks_for_an_upgrade(saved):
    for config in ({"schema": 1}, {"schema": 0}, {"schema": "1"}):
        reseal(saved, config)
        refused(saved, "damaged")
    reseal(saved, {"schema": 2, "anything": "else"})
    refused(saved, str(saved), "newer", "upgrade gpcache")


def test_a_pickle_in_place_of_the_tensors_runs_nothing(saved, tmp_path):
    """Even where config.json vouches for its bytes."""

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    data = pickle.dumps(Evil())
    (saved / "model.safetensors").write_bytes(data)
    refused(saved, "model.safetensors", "damaged")
    reseal(saved, {"schema": 1, "tensors_sha256": hashlib.sha256(data).hexdigest()})
    refused(saved, "model.safetensors", "damaged")
    assert not (tmp_path / "ran").exists()


# Saving where something is already.


def test_a_model_is_replaced_and_nothing_else_is_left(saved, tmp_path):
    (saved / ".DS_Store").write_bytes(b"litter")
    save_folder(saved, {"round": 2}, arrays(2), "")
    config, found = load_folder(saved)
    assert config["round"] == 2
    np.testing.assert_array_equal(found["keys"], arrays(2)["keys"])
    assert [path.name for path in tmp_path.iterdir()] == ["pets.gpc"]
    assert sorted(path.name for path in saved.iterdir()) == FILES


def test_without_replace_a_model_stays_also_one_that_was_written_meanwhile(saved, tmp_path):
    with pytest.raises(DataError, match=r"There is a model in .* already: choose another name"):
        save_folder(saved, {"round": 2}, arrays(2), "", replace=False)
    assert load_folder(saved)[0].items() >= CONFIG.items()
    late = tmp_path / "late.gpc"

    def finish_first(_):  # another process, after this one has looked at the place
        save_folder(late, {"round": 1}, arrays(), "", replace=False)
        return {}

    with pytest.raises(DataError, match=r"There is a model in .* already: choose another name"):
        save_folder(late, {"round": 2}, arrays(2), "", write_shots=finish_first, replace=False)
    assert load_folder(late)[0]["round"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late.gpc", "pets.gpc"]


@pytest.mark.parametrize("replace", [True, False])
def test_an_empty_folder_is_taken_and_parents_are_made(tmp_path, replace):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "some" / "where"):
        save_folder(folder, CONFIG, arrays(), "", replace=replace)
        assert load_folder(folder)[0].items() >= CONFIG.items()


def test_a_link_to_a_model_stays_a_link(saved, tmp_path):
    (tmp_path / "latest").symlink_to(saved)
    save_folder(tmp_path / "latest", {"round": 2}, {}, "")
    assert (tmp_path / "latest").is_symlink()
    assert load_folder(saved)[0]["round"] == 2
    assert len(list(tmp_path.iterdir())) == 2


def modes(folder):
    """The permissions of a folder and of the files in it."""
    return {path.name: path.stat().st_mode & 0o7777 for path in (folder, *folder.iterdir())}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_new_model_is_for_its_owner_alone(saved):
    assert modes(saved) == {"pets.gpc": 0o700} | dict.fromkeys(FILES, 0o600)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_an_update_keeps_who_may_read_the_model(saved):
    saved.chmod(0o2750)
    for name, mode in zip(FILES, (0o644, 0o640, 0o660), strict=True):
        (saved / name).chmod(mode)
    before = modes(saved)
    save_folder(saved, {"round": 2}, {}, "")
    assert modes(saved) == before


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": b"years of work"},
        {"config.json": b'{"port": 80}'},
        {"config.json": b"no JSON"},
        dict.fromkeys(FILES, b'{"model_type": "clip"}'),
    ],
    ids=["documents", "another tool", "unreadable", "another library's model"],
)
def test_an_unrelated_folder_is_refused_and_untouched(files, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with pytest.raises(DataError, match=r"mine' exists and is not a model.*not changed"):
        save_folder(folder, CONFIG, arrays(), "")
    assert content(tmp_path) == {Path("mine") / name: data for name, data in sorted(files.items())}


def test_a_model_beside_files_of_the_users_is_not_replaced(saved):
    (saved / "notes.txt").write_text("mine")
    before = content(saved)
    with pytest.raises(DataError, match="other files as well"):
        save_folder(saved, {"round": 2}, {}, "")
    assert content(saved) == before


def test_a_file_in_the_way_is_refused_and_untouched(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="exists and is not a model"):
        save_folder(tmp_path / "file", CONFIG, arrays(), "")
    assert content(tmp_path) == {Path("file"): b"mine"}


# Faults.

KILLED = """
import os, random, signal, sys, time
import numpy as np
from gpcache.support.array_folders import load_folder, save_folder

folder, generator, unfinished = sys.argv[1], random.Random(0), 0
def save(number):
    save_folder(folder, {"number": number}, {"array": np.full(200_000, number)}, str(number))
save(0)
for start in range(20):
    saved, tell = os.pipe()
    child = os.fork()
    if not child:
        number = 1000 * start
        while True:
            number += 1
            save(number)
            os.write(tell, b".")
    os.read(saved, 1)  # one model was replaced, however busy the machine is
    time.sleep(generator.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(saved), os.close(tell)
    unfinished += any(name.endswith("gpcache-tmp") for name in os.listdir(folder + "/.."))
    config, arrays = load_folder(folder)
    assert config["number"] > 1000 * start
    assert (arrays["array"] == config["number"]).all()
    assert open(folder + "/README.md").read() == str(config["number"])
print(unfinished)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_the_old_model_or_the_new_one(tmp_path):
    folder = tmp_path / "model"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0  # kills did come while models were being replaced
    # What a kill left behind is removed by the next one who writes there.
    save_folder(folder, CONFIG, arrays(), "")
    assert load_folder(folder)[0]["names"] == CONFIG["names"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_update_left_goes_with_the_next_load_and_nothing_else(saved, tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="needs locks on folders")
    left, held = (tmp_path / f".pets.gpc.{name}.gpcache-tmp" for name in ("0123", "4567"))
    other = tmp_path / ".other.gpc.89ab.gpcache-tmp"
    for folder in (left, held, other):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "link.gpc").symlink_to(saved)
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a process holds it that is writing now
    load_folder(tmp_path / "link.gpc")
    assert not left.exists()
    assert held.exists()
    assert other.exists()
    os.close(lock)
    load_folder(saved)
    assert not held.exists()


def test_what_cannot_be_read_is_not_called_damaged(saved):
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors").mkdir()
    with pytest.raises(ModelFileError, match=r"model.safetensors' cannot be read \(Is a directory"):
        load_folder(saved)
    (saved / "config.json").unlink()
    (saved / "config.json").mkdir()
    with pytest.raises(ModelFileError, match=r"config.json' cannot be read"):
        load_folder(saved)


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(saved, monkeypatch):
    read, times = persistence._read, []

    def read_and_replace(path, told):
        data = read(path, told)
        if not times:  # between config.json and the tensors
            times.append(path.name)
            save_folder(saved, CONFIG | {"tiny": 2}, arrays(seed=1), "")
        return data

    monkeypatch.setattr(persistence, "_read", read_and_replace)
    config, found = load_folder(saved)
    assert times == ["config.json"]
    assert config["tiny"] == 2
    np.testing.assert_array_equal(found["keys"], arrays(seed=1)["keys"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_without_an_exchange_of_names_the_old_model_is_removed_too(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "_exchanged", lambda *_: False)
    (tmp_path / ".pets.gpc.0123abcd.gpcache-old").mkdir()  # left by a kill
    save_folder(saved, {"round": 2}, {}, "")
    assert load_folder(saved)[0]["round"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["pets.gpc"]


FULL = """
import resource, signal, sys
import numpy as np
from gpcache.errors import DataError
from gpcache.support.array_folders import save_folder

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    save_folder(sys.argv[1], {}, {"array": np.zeros(100_000)}, "")
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on the size of a file")
def test_a_full_disk_is_one_sentence_and_the_old_model_stays(saved, tmp_path):
    """A limit on the size of files stands in for a disk that is full."""
    before = content(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(saved)], capture_output=True, text=True, check=True
    )
    assert "cannot be written (File too large): choose another disk" in done.stdout
    assert done.stdout.count("\n") == 1
    assert content(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 1


# A classifier there and back.

PICTURES = [
    np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8) for seed in range(16)
]
PAIRS = [(picture, "abc"[i % 3]) for i, picture in enumerate(PICTURES[:10])]


@pytest.fixture
def model():
    return ImageClassifier(tiny.ColourEncoder(), device="cpu").fit(PAIRS)


def loaded(folder, **options):
    return ImageClassifier.load(
        folder, **{"encoder": tiny.ColourEncoder(), "device": "cpu"} | options
    )


def assert_same_bytes(one, other):
    answers = (found.predict(PICTURES, why=2) for found in (one, other))
    for first, second in zip(*answers, strict=True):
        assert first.distribution.tobytes() == second.distribution.tobytes()
        assert first.as_dict(3) == second.as_dict(3)


@pytest.mark.parametrize(
    ("method", "prompt"),
    [
        ("gpcache", ("a {}.", "the {}.")),
        ("gpcache", None),
        ("gpcache-f", "a {}."),
        ("tip-adapter", "a {}."),
        ("zero-shot", "a {}."),
    ],
)
def test_a_saved_classifier_gives_the_same_bytes(method, prompt, tmp_path):
    model = ImageClassifier(tiny.ColourEncoder(), method=method, prompt=prompt, device="cpu")
    model.fit([*PAIRS, (PICTURES[11], None)], shots=3).save(tmp_path / "model")
    found = loaded(tmp_path / "model")
    assert_same_bytes(found, model)
    for part in ("examples", "training", "prompts"):
        assert getattr(found, part) == getattr(model, part)
    found.save(tmp_path / "again")
    assert_same_bytes(loaded(tmp_path / "again"), model)


def test_a_loaded_classifier_learns_on(model, tmp_path):
    model.save(tmp_path / "model")
    found = loaded(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the whitening stays
        for one in (model, found):
            one.add([(PICTURES[12], "d"), (PICTURES[13], "a")]).remove(names=["item 0000004"])
    features = model.encoder_.encode_images(PICTURES)
    assert found.classes == model.classes == list("abcd")
    np.testing.assert_allclose(
        found.model.logits(features), model.model.logits(features), atol=1e-8
    )


def test_names_of_every_kind_are_saved_and_name_no_file(tmp_path):
    names = [
        "🐈‍⬛",
        "שלום",
        "<script>alert(1)</script>",
        "x" * 200,
        "..",
        "../../x",
        "a b",
        "| # |",
    ]
    model = ImageClassifier(tiny.ColourEncoder(), device="cpu")
    model.fit(list(zip(PICTURES, names, strict=False))).save(tmp_path / "in" / "names.gpc")
    found = loaded(tmp_path / "in" / "names.gpc")
    assert found.classes == sorted(names)
    assert_same_bytes(found, model)
    written = {path.name for path in tmp_path.rglob("*")}
    assert written == {"in", "names.gpc", *FILES}
    assert "<script>" not in (tmp_path / "in" / "names.gpc" / "README.md").read_text()


def test_another_encoder_is_refused(model, tmp_path):
    model.save(tmp_path / "model")
    with pytest.raises(EncoderError, match=r"^[^\n]*use the encoder of the model\.$"):
        loaded(tmp_path / "model", encoder=tiny.ColourEncoder(seed=1))


def test_the_device_is_the_loaders_choice(model, tmp_path):
    model.save(tmp_path / "model")
    for device in ("cpu", torch.device("cpu")):
        assert_same_bytes(loaded(tmp_path / "model", device=device), model)
    assert len(list(loaded(tmp_path / "model", device="auto").predict(PICTURES))) == 16
    with pytest.raises(GPCacheError, match=r"^[^\n]*abacus[^\n]*\.$"):
        loaded(tmp_path / "model", device="abacus")


def test_an_encoder_by_name_is_found_again(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra lite")
    model = ImageClassifier("lite", device="cpu").fit(PAIRS)
    model.save(tmp_path / "model")
    assert_same_bytes(ImageClassifier.load(tmp_path / "model", device="cpu"), model)
