"""`gpcache demo`: the main job from end to end, on a folder of the user's own."""

import json


def test_demo_on_own_photos(run, shapes, tmp_path):
    place = tmp_path / "demo"
    code, out, err = run("demo", shapes, "-o", place, "--shots", "2", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["held_out"]["n"], found["test"]["n"]) == (6, 6)
    assert (place / "report.html").is_file()
    code, out, _ = run("predict", found["model"], shapes / "circle" / "0.png", "--json")
    assert (code, json.loads(out)["label"]) == (0, "circle")


def test_demo_speaks_to_people(run, shapes, tmp_path):
    code, out, _ = run("demo", shapes, "-o", tmp_path, "--shots", "2")
    assert code == 0
    assert "Learned 6 images of 3 classes" in out
    assert out.count("accuracy") == 2
    assert f"gpcache predict {tmp_path / 'demo.gpc'}" in out


def test_mistakes_are_one_sentence(mistake, shapes, tmp_path):
    assert "no class folders" in mistake("demo", shapes / "circle", "-o", tmp_path / "demo")
    assert "no file or folder" in mistake("demo", tmp_path / "no", "-o", tmp_path / "demo")
