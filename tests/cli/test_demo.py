"""`gpcache demo`: the whole story, on drawn pictures and on a folder of the user's own."""

import json
import re
from pathlib import Path

import gpcache
from gpcache.images.drawn import DRAWN_CLASSES

ROOT = Path(__file__).resolve().parents[2]
FIGURES = re.compile(r"^ *(?:Held-out|Test) accuracy +(\d+\.\d) % .*$", re.MULTILINE)


def test_demo_tells_its_story_on_drawn_pictures(run, tmp_path):
    place = tmp_path / "demo"
    code, out, err = run("demo", "-o", place)
    assert (code, err) == (0, "")
    assert "Drawn by a program: these are not photographs." in out
    assert ", ".join(DRAWN_CLASSES) in out
    held_out, test = map(float, FIGURES.findall(out))
    # Worth watching: neither poor nor too easy. The interval of 50 held-out pictures is wide.
    assert 80 <= held_out <= 100
    assert 88 <= test < 100
    planted = re.search(r"one training picture of (\w+) as (\w+): (\S+)\.\n", out)
    assert re.search(rf"Found(, as worth a look)?: {planted[3]} is labelled {planted[2]!r}", out)
    assert f"but looks like {planted[1]!r}" in out
    assert int(re.search(r"are wrong or worth a look: (\d+)\.", out)[1]) <= 10
    # A missed stranger in four is no failure of the demo.
    assert out.count("I don't know  (unlike") >= 3
    assert len(re.search(r"Label these first:\n(.*)\n", out)[1].split(", ")) == 5
    assert f"{place / 'report.html'} in a browser" in out
    assert f"gpcache serve {place / 'demo.gpc'}\n" in out
    assert (place / "report.html").is_file()
    assert len(list((place / "pictures").rglob("*.jpg"))) == 200
    # Figures of the demo in the documentation are those that it prints.
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for shown in FIGURES.finditer(page.read_text()):
            assert shown[0].strip() in out, page.name


def test_demo_on_own_photos(run, shapes, tmp_path):
    place = tmp_path / "demo"
    code, out, err = run("demo", shapes, "-o", place, "--shots", "2", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["held_out"]["n"], found["test"]["n"]) == (6, 6)
    assert (found["pictures"], found["drawn"]) == (str(shapes), False)
    assert found["planted"]["label"] != found["planted"]["truth"]
    assert [Path(other["image"]).parent.name for other in found["others"]] == [
        "bubbles", "bubbles", "clock", "clock",
    ]  # fmt: skip
    assert len(found["label_next"]) == 5
    assert (place / "report.html").is_file()
    # The planted label is not in the model.
    examples = gpcache.ImageClassifier.load(found["model"]).examples
    assert [one.label for one in examples] == [one.name.split("/")[0] for one in examples]
    code, out, _ = run("predict", found["model"], shapes / "circle" / "0.png", "--json")
    assert (code, json.loads(out)["label"]) == (0, "circle")


def test_one_image_a_class(run, shapes, tmp_path):
    code, out, err = run("demo", shapes, "-o", tmp_path, "--shots", "1")
    assert code == 0
    assert "No image can be refused" in err
    assert "Trained on 3 pictures" in out
    assert f"gpcache predict {tmp_path / 'demo.gpc'}" in out
    assert "not known: no class has two training pictures" in out
    assert "wrong label" not in out


def test_mistakes_are_one_sentence(mistake, shapes, tmp_path):
    assert "no class folders" in mistake("demo", shapes / "circle", "-o", tmp_path / "demo")
    assert "no file or folder" in mistake("demo", tmp_path / "no", "-o", tmp_path / "demo")
