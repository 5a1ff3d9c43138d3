"""`gpcache suggest`: which images to label next, with and without a model."""

import json
import shutil

import pytest


@pytest.fixture
def pool(unseen, tmp_path):
    """One photo five times, and two others; no labels."""
    folder = tmp_path / "pool"
    folder.mkdir()
    for number in range(5):
        shutil.copy(unseen / "circle" / "0.png", folder / f"same {number}.png")
    for shape in ("square", "triangle"):
        shutil.copy(unseen / shape / "0.png", folder / f"{shape}.png")
    return folder


def test_copies_are_not_worth_a_second_label(run, pool):
    code, out, err = run("suggest", pool, "-n", "3")
    assert (code, err) == (0, "")
    chosen = out.splitlines()
    assert {"square.png", "triangle.png"} < set(chosen)
    assert len([name for name in chosen if name.startswith("same")]) == 1


def test_a_model_knows_what_it_has_seen(run, model, shapes, unseen, tmp_path):
    """Of photos that it was trained on and one unlike them, the unlike one comes first."""
    folder = shutil.copytree(shapes / "circle", tmp_path / "pool")
    shutil.copy(unseen / "square" / "1.png", folder / "other.png")
    code, out, _ = run("suggest", model, folder, "-n", "2", "--json")
    found = json.loads(out)
    assert (code, len(found)) == (0, 2)
    assert found[0]["image"] == "other.png"
    assert found[0]["score"] > found[1]["score"] > 0


def test_more_than_there_are_is_all_of_them(run, pool):
    code, out, _ = run("suggest", pool, "-n", "100")
    assert (code, sorted(out.splitlines())) == (0, sorted(path.name for path in pool.iterdir()))


def test_hostile_names_reach_no_terminal(run, hostile):
    code, out, _ = run("suggest", hostile, "-n", "3")
    assert (code, out.count("\n")) == (0, 3)
    assert all(letter.isprintable() or letter == "\n" for letter in out)


def test_mistakes_are_one_sentence(mistake, model, text_model, pool, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "Give a pool of images, or a model and a pool." in mistake("suggest", model, pool, pool)
    assert "There is no image in" in mistake("suggest", tmp_path / "empty")
    assert "is not a gpcache model" in mistake("suggest", pool, pool)
    assert "keeps no cache to suggest from" in mistake("suggest", text_model, pool)
