"""`gpcache add`, `remove` and `relabel`: the model in its place, changed or untouched."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpcache import ImageClassifier, ModelFileError


@pytest.fixture
def more(unseen, tmp_path):
    """A further circle, and a class that the model does not know."""
    folder = tmp_path / "more"
    for name in ("circle", "box"):
        (folder / name).mkdir(parents=True)
    shutil.copy(unseen / "circle" / "0.png", folder / "circle" / "new.png")
    shutil.copy(unseen / "square" / "0.png", folder / "box" / "new.png")
    (folder / "box" / "empty.png").write_bytes(b"")
    (folder / "box" / "notes.txt").write_text("words")
    return folder


def probabilities(run, model, unseen):
    _, out, _ = run("predict", model, unseen, "--json", "--top", "9")
    return {
        (answer["image"], top["label"]): top["probability"]
        for answer in map(json.loads, out.splitlines())
        for top in answer["top"]
    }


def test_add_learns_images_and_classes(run, own_model, more):
    code, out, err = run("add", own_model, more)
    assert code == 0
    assert f"{own_model}: 4 classes, 14 images" in out
    assert "accuracy" in out
    assert "1 refused:\n  box/empty.png  it is empty\n" in err
    assert "note: 1 file that cannot be an image skipped: 'box/notes.txt'." in err
    _, out, _ = run("inspect", own_model, "--json")
    assert json.loads(out)["classes"] == {"box": 1, "circle": 5, "square": 4, "triangle": 4}


def test_what_was_added_and_removed_again_leaves_no_trace(run, own_model, model, more, unseen):
    before = probabilities(run, model, unseen)
    assert run("add", own_model, more)[0] == 0
    code, out, _ = run("remove", own_model, "--class", "box", "--json")
    assert (code, json.loads(out)["classes"]) == (0, ["circle", "square", "triangle"])
    code, out, _ = run("remove", own_model, "--image", "circle/new.png", "--json")
    assert (code, json.loads(out)["images"]) == (0, 12)
    assert probabilities(run, own_model, unseen) == pytest.approx(before, abs=1e-6)


def test_relabel_and_back_again(run, own_model, model, unseen):
    code, out, _ = run("relabel", own_model, "circle/0.png", "square", "--json")
    assert code == 0
    assert json.loads(out)["held_out"]["per_class"]["square"]["n"] == 5
    changed = probabilities(run, own_model, unseen)
    before = probabilities(run, model, unseen)
    assert changed != pytest.approx(before, abs=1e-3)
    assert run("relabel", own_model, "circle/0.png", "circle")[0] == 0
    assert probabilities(run, own_model, unseen) == pytest.approx(before, abs=1e-6)


def test_an_image_is_found_by_name_path_or_content(run, own_model, shapes, tmp_path):
    """A name that only one image has, the path it was fitted from, and a copy of it elsewhere."""
    circle = shapes / "circle" / "0.png"
    elsewhere = shutil.copy(circle, tmp_path / "renamed.png")
    for given in ("circle/0.png", circle, f"some/where/circle/{circle.name}", elsewhere):
        code, out, _ = run("relabel", own_model, given, "square", "--json")
        assert code == 0
        assert json.loads(out)["held_out"]["per_class"]["square"]["n"] == 5
        assert run("relabel", own_model, "circle/0.png", "circle")[0] == 0
    code, out, _ = run("remove", own_model, "--image", shapes / "square" / "1.png", "--json")
    assert (code, json.loads(out)["images"]) == (0, 11)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "0.png",
            "'0.png' matches 3 training images: give one of 'circle/0.png', 'square/0.png', ",
        ),
        ("circle/00.png", "no training image 'circle/00.png': did you mean 'circle/0.png', "),
        ("star/0.png", "no training image 'star/0.png': did you mean 'square/0.png'"),
        ("zzz", "no training image 'zzz': it has 'circle/0.png', 'circle/1.png', "),
    ],
)
def test_a_name_that_fits_none_or_several_is_answered_by_candidates(
    mistake, own_model, tree, given, sentence
):
    before = tree(own_model)
    assert sentence in mistake("relabel", own_model, given, "square")
    assert sentence in mistake("remove", own_model, "--image", given)
    assert tree(own_model) == before


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        ("remove", [], "Give the class or the image to remove: --class NAME or --image NAME."),
        ("remove", ["--class", "star"], "The model has no class 'star': it has 'circle'"),
        ("remove", ["--image", "star.png"], "The model has no training image 'star.png'"),
        ("relabel", ["star.png", "circle"], "The model has no training image 'star.png'"),
        ("relabel", ["circle/0.png", "star"], "'star'"),
        ("add", ["{empty}"], "There is no image in"),
        ("add", ["{flat}"], "No labelled image can be added: '0.png': it has no label."),
    ],
)
def test_a_mistake_leaves_the_model_as_it_was(
    mistake, own_model, shapes, tmp_path, tree, command, arguments, sentence
):
    (tmp_path / "empty").mkdir()
    before = tree(own_model)
    given = (one.format(empty=tmp_path / "empty", flat=shapes / "circle") for one in arguments)
    assert sentence in mistake(command, own_model, *given)
    assert tree(own_model) == before


def test_the_last_image_stays(run, mistake, own_model):
    for name in ("circle", "square"):
        assert run("remove", own_model, "--class", name)[0] == 0
    assert "keep at least one" in mistake("remove", own_model, "--class", "triangle")


def test_a_model_of_text_alone_cannot_be_updated(mistake, text_model, more):
    assert "must keep images" in mistake("add", text_model, more)


def test_additions_at_the_same_time_are_all_kept(own_model, unseen, tmp_path, shell):
    """Each process reads the model that the one before it has written."""
    folders = []
    for number in range(3):
        folder = tmp_path / f"more{number}"
        (folder / "circle").mkdir(parents=True)
        shutil.copy(unseen / "circle" / f"{number}.png", folder / "circle" / f"new{number}.png")
        folders.append(folder)
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda folder: shell("add", own_model, folder), folders))
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]
    names = {example.name for example in ImageClassifier.load(own_model).examples}
    assert {f"circle/new{number}.png" for number in range(3)} <= names


def test_a_model_that_changed_since_it_was_read_is_not_overwritten(own_model):
    first, second = (ImageClassifier.load(own_model, device="cpu") for _ in range(2))
    first.remove(names=[first.examples[0].name]).save(own_model)
    with pytest.raises(ModelFileError, match="changed by another process since it was read"):
        second.remove(names=[second.examples[1].name]).save(own_model)
    assert len(ImageClassifier.load(own_model).examples) == 11
    first.remove(names=[first.examples[0].name]).save(own_model)  # its own change is known to it
    second.save(own_model.with_name("other.gpc"))
