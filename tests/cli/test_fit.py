"""`gpcache fit`: what it prints, what it refuses, and that an interrupt leaves the old model."""

import json
import os
import re
import shutil
import signal
import unicodedata

import pytest
import torch

import gpcache.support.array_folders
from gpcache import ImageClassifier, load_encoder
from gpcache.methods.cache import setup
from gpcache.similarity import ProjectionFacts, SimilarityProjection
from gpcache.similarity.folder import save_projection
from gpcache.support.files import write_atomic


def test_fit_says_how_good_the_model_is_before_it_is_asked(fitted, shapes):
    model, done = fitted
    assert done.returncode == 0
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.decode().splitlines())
    assert rows["model"] == f"{model}: 3 classes, 12 images, encoder lite, method gpcache"
    assert rows["data"] == f"training images of {shapes}, n = 12"
    assert rows["accuracy"] == "100.0 % (95 % interval 75.8 – 100.0)"
    assert re.fullmatch(r"ECE \d+\.\d %, NLL \d\.\d{3}", rows["calibration"])
    assert (rows["confused"], rows["suspicious"]) == ("none", "none")
    assert float(rows["seconds"]) > 0
    assert {file.name for file in model.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }


def test_verbose_logs_to_stderr(fitted, shapes):
    model, done = fitted
    lines = done.stderr.decode().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d .* gpcache\.\S+: ", line) for line in lines)
    assert any(line.endswith(f"{str(shapes)!r}: 12 images, 3 classes") for line in lines)
    assert any(line.endswith(f"saved {str(model)!r}") for line in lines)


def test_json_holds_the_same_and_a_second_fit_says_the_same(run, shapes, tmp_path, tree):
    said = []
    for number in range(2):
        code, out, err = run("fit", shapes, "-o", tmp_path / f"{number}.gpc", "--json")
        assert (code, err) == (0, "")
        said.append(json.loads(out))
    first, second = said
    assert first["classes"] == ["circle", "square", "triangle"]
    assert (first["images"], first["refused"], first["suspicious"]) == (12, [], [])
    assert first["held_out"]["accuracy"] == 1
    assert first["held_out"]["per_class"]["circle"]["n"] == 4
    assert first["held_out"] == second["held_out"]
    assert tree(tmp_path / "0.gpc") == tree(tmp_path / "1.gpc")


def test_broken_files_are_refused_with_their_reasons(run, broken, reasons, tmp_path):
    code, out, err = run("fit", broken, "-o", tmp_path / "m.gpc", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["images"] == 6
    assert {one["path"] for one in found["refused"]} == set(reasons)
    for one in found["refused"]:
        assert reasons[one["path"]] in one["reason"]
    assert "4 refused:" in err
    assert "evil�[31m.jpg" in err
    assert "note: 1 file that cannot be an image skipped: 'square/notes.txt'." in err


def test_one_image_each_and_classes_without_any(run, write_shapes, tmp_path):
    photos = write_shapes(tmp_path / "photos", 1, 5)
    (photos / "star").mkdir()
    model = tmp_path / "m.gpc"
    code, out, err = run("fit", photos, "-o", model, "--class", "heart")
    assert code == 0
    assert "5 classes, 3 images" in out
    assert "not known: no class has two images" in out
    assert err == "note: A class without images: 'star'.\n"
    _, out, _ = run("predict", model, photos / "circle" / "0.png", "--json")
    assert json.loads(out)["label"] == "circle"
    _, out, _ = run("inspect", model, "--json")
    assert json.loads(out)["classes"] == {
        "circle": 1,
        "heart": 0,
        "square": 1,
        "star": 0,
        "triangle": 1,
    }


def test_one_class_of_one_image(run, write_shapes, tmp_path):
    photos = write_shapes(tmp_path / "photos", 1, 6, shapes=("circle",))
    code, out, _ = run("fit", photos, "-o", tmp_path / "m.gpc")
    assert code == 0
    assert "1 class, 1 image," in out


def test_a_method_without_images_says_so(run, shapes, tmp_path):
    code, out, _ = run("fit", shapes, "-o", tmp_path / "m.gpc", "--method", "zero-shot")
    assert code == 0
    assert "not known: this method learns nothing from images" in out


def test_forty_copies_and_one_image_in_two_classes(run, write_shapes, tmp_path):
    photos = write_shapes(tmp_path / "photos", 2, 7)
    for number in range(40):
        shutil.copy(photos / "circle" / "0.png", photos / "circle" / f"copy {number}.png")
    shutil.copy(photos / "square" / "0.png", photos / "triangle" / "stray.png")
    code, out, err = run("fit", photos, "-o", tmp_path / "m.gpc")
    assert code == 0
    assert "triangle/stray.png is the same image as square/0.png" in out
    assert "3 classes, 7 images" in out
    assert "note: 40 images are in their class already and count once, such as" in err


def test_hostile_names_reach_no_terminal_and_stay_whole_in_json(run, hostile_classes, tmp_path):
    code, out, err = run("fit", hostile_classes, "-o", tmp_path / "m.gpc")
    assert code == 0
    assert all(letter.isprintable() or letter == "\n" for letter in out + err)
    _, out, _ = run("inspect", tmp_path / "m.gpc", "--json")
    assert all(letter.isprintable() or letter == "\n" for letter in out)
    # White space is one space: the break of a line is no part of a name.
    assert set(json.loads(out)["classes"]) == {"=1+1", "two lines", "<b>🐈"}


def test_a_class_name_that_steers_terminals_is_refused(mistake, hostile, tmp_path):
    told = mistake("fit", hostile, "-o", tmp_path / "m.gpc")
    assert "which is not printable: rename the class without it" in told
    assert told.rstrip("\n").isprintable()
    assert not (tmp_path / "m.gpc").exists()


def test_shots_are_drawn_and_too_few_are_noted(run, write_shapes, tmp_path):
    photos = write_shapes(tmp_path / "photos", 2, 8)
    (photos / "circle" / "1.png").unlink()
    code, out, err = run("fit", photos, "-o", tmp_path / "m.gpc", "--shots", "2", "--json")
    assert (code, json.loads(out)["images"]) == (0, 5)
    assert err == "note: The class 'circle' has 1 of 2 images.\n"
    assert json.loads(out)["notices"] == ["The class 'circle' has 1 of 2 images."]


def test_two_spellings_of_a_class_are_one(run, write_shapes, tmp_path):
    photos = write_shapes(tmp_path / "photos", 1, 9)
    for form, shape in (("NFC", "circle"), ("NFD", "square")):
        (photos / shape).rename(photos / unicodedata.normalize(form, "café"))
    if len(list(photos.iterdir())) < 3:
        pytest.skip("this file system does not tell the two spellings apart")
    code, out, err = run("fit", photos, "-o", tmp_path / "m.gpc", "--json")
    assert (code, json.loads(out)["classes"]) == (0, ["café", "triangle"])
    assert "note: Two spellings of the class 'café'" in err


def test_a_link_out_of_the_folder_is_refused_unless_followed(run, write_shapes, tmp_path):
    photos = write_shapes(tmp_path / "photos", 1, 10)
    outside = write_shapes(tmp_path / "outside", 1, 11)
    (photos / "circle" / "link.png").symlink_to(outside / "circle" / "0.png")
    code, out, err = run("fit", photos, "-o", tmp_path / "m.gpc", "--json")
    assert (code, json.loads(out)["images"]) == (0, 3)
    assert "circle/link.png  it is a link that leaves the folder" in err
    code, out, _ = run("fit", photos, "-o", tmp_path / "n.gpc", "--follow", "--json")
    assert (code, json.loads(out)["images"]) == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{nothing}"], "There is no file or folder"),
        (["{empty}"], "There is no image in"),
        (["{flat}"], "no labelled image"),
        (["{case}"], "differ only in upper and lower case"),
        (["{table}"], "needs a header with a column 'path': it has 'file', 'label'"),
        (["{archive}"], "is an archive: unpack it and give the folder"),
        (["{text}"], "neither a folder, nor a manifest"),
        (["{long}"], "File name too long"),
        (["{shapes}", "--encoder", "liet"], "There is no encoder 'liet': use 'lite'"),
        (["{shapes}", "--method", "magic"], "There is no method 'magic': use gpcache"),
        (["{shapes}", "--prompt", "a photo"], "A template must hold {}"),
        (["{shapes}", "--device", "tpu"], "device must be"),
        (["{shapes}", "--no-text", "--class", "star"], "leave out --class and --prompt"),
        (["{shapes}", "--no-text", "--prompt", "a {}"], "leave out --class and --prompt"),
    ],
)
def test_a_mistake_is_one_sentence(mistake, shapes, tmp_path, arguments, sentence):
    places = {name: tmp_path / name for name in ("nothing", "empty", "flat", "case")}
    places |= {"shapes": shapes, "long": tmp_path / ("a" * 300)}
    places["empty"].mkdir()
    shutil.copytree(shapes / "circle", places["flat"])
    for name in ("Cat", "cat"):
        shutil.copytree(shapes / "circle", places["case"] / name)
    for name, suffix in (("table", ".csv"), ("archive", ".zip"), ("text", ".txt")):
        places[name] = tmp_path / f"a{suffix}"
        places[name].write_text("file,label\na.png,cat\n")
    model = tmp_path / "m.gpc"
    given = [places.get(one[1:-1], one) for one in arguments]
    assert sentence in mistake("fit", *given, "-o", model)
    assert not model.exists()


def test_what_is_no_model_is_not_replaced(mistake, shapes, tmp_path, tree):
    folder = shutil.copytree(shapes, tmp_path / "photos")
    before = tree(folder)
    assert "was not changed" in mistake("fit", shapes, "-o", folder)
    assert tree(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_an_interrupted_fit_leaves_the_old_model(run, own_model, unseen, monkeypatch, tree):
    before = tree(own_model)
    written = []

    def interrupted(path, data, **options):
        """Ctrl-C at the worst time: some files of the new model are written, some are not."""
        written.append(path.name)
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        write_atomic(path, data, **options)

    monkeypatch.setattr(gpcache.support.array_folders, "write_atomic", interrupted)
    before_test = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, err = run("fit", unseen, "-o", own_model, "--force")
    finally:
        signal.signal(signal.SIGINT, before_test)
    assert len(written) >= 2
    assert (code, out, err) == (130, "", "")
    assert tree(own_model) == before
    assert [path.name for path in own_model.parent.iterdir()] == [own_model.name]


@pytest.fixture
def write_projection(tmp_path):
    """A function that writes a projection for `lite`, or for an encoder of this fingerprint."""

    def write_projection(name, fingerprint=None, **facts):
        encoder = load_encoder("lite", device="cpu")
        generator = torch.Generator().manual_seed(0)
        factors = [torch.randn(4, encoder.dim, generator=generator) / 10 for _ in range(2)]
        known = {"images": 40, "views": 2, "change": 0.4} | facts
        told = ProjectionFacts("contrastive", "lite", fingerprint or encoder.fingerprint, **known)
        weights = (factors[0], factors[1].mT.contiguous())
        save_projection(tmp_path / name, SimilarityProjection(weights), told)
        return tmp_path / name

    return write_projection


def test_a_projection_is_kept_with_where_it_came_from(
    run, shapes, unseen, model, tmp_path, write_projection
):
    place = write_projection("proj.gpp", transductive=True)
    fitted = tmp_path / "m.gpc"
    code, out, err = run("fit", shapes, "-o", fitted, "--projection", place)
    assert (code, err) == (0, "")
    origin = "contrastive, from 40 unlabelled images with 2 views each; transductive"
    assert origin in out
    shutil.rmtree(place)  # the model keeps what it needs
    assert f"Similarity projection: {origin}" in (fitted / "README.md").read_text()
    assert origin in run("inspect", fitted)[1]
    told = json.loads(run("inspect", fitted, "--json")[1])["projection"]
    assert (told["transductive"], told["images"]) == (True, 40)
    answers = [run("predict", one, unseen, "--json") for one in (fitted, model)]
    assert answers[0][0] == answers[1][0] == 0
    assert answers[0][1] != answers[1][1]


def test_a_model_without_a_projection_says_nothing_of_one(run, model):
    assert "rojection" not in (model / "README.md").read_text()
    assert "projection" not in run("inspect", model)[1]
    assert json.loads(run("inspect", model, "--json")[1])["projection"] is None


def test_a_projection_that_does_not_belong_is_one_sentence(
    mistake, shapes, model, tmp_path, write_projection
):
    foreign = write_projection("foreign.gpp", fingerprint="f" * 64)
    place = ("-o", tmp_path / "m.gpc", "--projection")
    assert "not of 'lite'" in mistake("fit", shapes, *place, foreign)
    assert "is not a similarity projection" in mistake("fit", shapes, *place, model)
    assert "it has no config.json" in mistake("fit", shapes, *place, tmp_path / "none.gpp")
    own = write_projection("own.gpp")
    assert "ZeroShotClassifier does not compare images" in mistake(
        "fit", shapes, *place, own, "--method", "zero-shot"
    )
    assert not (tmp_path / "m.gpc").exists()


def test_a_projection_is_no_model_and_no_place_for_one(
    mistake, shapes, unseen, write_projection, tree
):
    place = write_projection("proj.gpp")
    before = tree(place)
    assert "is a similarity projection: choose another name" in mistake("fit", shapes, "-o", place)
    assert tree(place) == before
    for command in (("inspect", place), ("predict", place, unseen)):
        assert "is a similarity projection and no classifier" in mistake(*command)


def test_a_model_that_is_there_is_replaced_by_force_alone(run, mistake, own_model, shapes):
    before = (own_model / "config.json").read_bytes()
    said = mistake("fit", shapes, "-o", own_model, "--shots", "2")
    assert "add --force to replace it" in said
    assert (own_model / "config.json").read_bytes() == before
    assert run("fit", shapes, "-o", own_model, "--shots", "2", "--force")[0] == 0
    assert (own_model / "config.json").read_bytes() != before


@pytest.mark.parametrize(
    "options", [(), ("--no-text",), ("--thumbnails",), ("--method", "linear-probe", "--shots", "4")]
)
def test_a_dry_run_says_what_a_fit_takes_and_writes_nothing(run, shapes, tmp_path, options):
    place = tmp_path / "shapes.gpc"
    code, out, _ = run("fit", shapes, "-o", place, *options, "--dry-run", "--json")
    assert code == 0
    assert not place.exists()
    found = json.loads(out)
    assert run("fit", shapes, "-o", place, *options)[0] == 0
    written = sum(file.stat().st_size for file in place.iterdir())
    assert found["disk"] == pytest.approx(written, rel=0.2, abs=20_000)
    assert found["memory"] > 10**8
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert ("texts" in found["seconds"]) == ("--no-text" not in options)
    assert found["images"] == len(ImageClassifier.load(place).examples)


def test_a_dry_run_is_refused_where_a_fit_would_be(mistake, own_model, shapes, tmp_path):
    assert "add --force" in mistake("fit", shapes, "-o", own_model, "--dry-run")
    (tmp_path / "empty").mkdir()
    assert mistake("fit", tmp_path / "empty", "-o", tmp_path / "new.gpc", "--dry-run")


def test_a_dry_run_reads_like_this(run, shapes, tmp_path):
    out = run("fit", shapes, "-o", tmp_path / "new.gpc", "--dry-run")[1]
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["images", "seconds", "memory", "disk", "protocol"]


@pytest.mark.parametrize(("many", "kept"), [(False, ()), (True, ()), (True, ("--keep-shots",))])
def test_a_dry_run_of_a_store_encodes_nothing(run, shapes_store, tmp_path, monkeypatch, many, kept):
    if many:
        monkeypatch.setattr(setup, "EXACT_ROWS", 5)
    store, place = shapes_store, tmp_path / "m.gpc"
    code, out, _ = run("fit", store, "-o", place, *kept, "--dry-run", "--json")
    estimate = json.loads(out)
    assert (code, place.exists()) == (0, False)
    steps = ["encoder", "texts", "search", "passes"] if many else ["encoder", "texts", "fit"]
    assert list(estimate["seconds"]) == steps + ["shots"] * len(kept)
    assert estimate["memory"] > 10**8
    assert run("fit", store, "-o", place, *kept)[0] == 0
    written = sum(file.stat().st_size for file in place.iterdir())
    assert estimate["disk"] == pytest.approx(written, rel=0.25, abs=20_000)
