"""`gpcache check`: what it finds decides the exit code."""

import json
import shutil

import pytest


@pytest.fixture
def copies(write_shapes, tmp_path):
    """Two photos of each shape; three of them lie in another class as well."""
    folder = write_shapes(tmp_path / "copies", 2, 12)
    shutil.copy(folder / "circle" / "0.png", folder / "square" / "a.png")
    shutil.copy(folder / "circle" / "1.png", folder / "square" / "b.png")
    shutil.copy(folder / "circle" / "1.png", folder / "circle" / "c.png")
    return folder


def test_nothing_found_is_exit_code_zero(run, write_shapes, tmp_path):
    photos = write_shapes(tmp_path / "photos", 2, 13)
    code, out, err = run("check", photos)
    assert (code, out) == (0, "6 images of 3 classes: nothing found.\n")
    assert err.startswith("note: Outliers were not looked for")
    code, out, _ = run("check", photos, "--json")
    found = json.loads(out)
    assert (code, found["images"], found["classes"], found["findings"]) == (0, 6, 3, [])
    assert found["notices"]


def test_copies_in_two_classes_are_found(run, copies):
    code, out, _ = run("check", copies, "--json")
    findings = json.loads(out)["findings"]
    pairs = {frozenset((one["image"], one["other_image"])) for one in findings}
    assert code == 1
    assert frozenset(("circle/0.png", "square/a.png")) in pairs
    kinds = {one["kind"] for one in findings}
    assert "leak" in kinds
    code, out, _ = run("check", copies)
    assert code == 1
    doubts = sum(one["kind"] in ("look", "harmful", "outlier") for one in findings)
    faults = len(findings) - doubts
    assert out.startswith(f"9 images of 3 classes: {faults} faults, {doubts} worth a look.\n")
    assert "\nCopies in two classes or groups (" in out
    assert "is the same image as" in out


def test_what_is_worth_a_look_alone_is_exit_code_zero(run, write_shapes, tmp_path):
    """Hard photos with their true labels: listed as hard or wrong, and no reason to fail."""
    folder = write_shapes(tmp_path / "photos", 6, 3)
    for name in ("0.png", "1.png"):  # squares that lie with the circles
        (folder / "square" / name).rename(folder / "circle" / f"square{name}")
    code, out, _ = run("check", folder, "--json")
    kinds = {one["kind"] for one in json.loads(out)["findings"]}
    assert kinds & {"look", "label"}
    assert code == bool(kinds & {"leak", "label", "duplicate", "near-duplicate"})


def test_advice_follows_where_labels_are_at_random(run, write_shapes, tmp_path):
    """Each class has photos of all shapes: no model can be better than guessing."""
    folder = write_shapes(tmp_path / "photos", 6, 5)
    names = sorted(place.name for place in folder.iterdir())
    for number, file in enumerate(sorted(folder.glob("*/*.png"))):
        file.rename(folder / names[number % 3] / f"n{number}.png")
    _, out, _ = run("check", folder)
    advice = out.split("\nAdvice\n")[1]
    assert "The model is not measurably better than guessing: " in advice
    _, out, _ = run("check", folder, "--json")
    found = json.loads(out)["advice"]
    assert [one["sentence"] for one in found] == [line.strip() for line in advice.splitlines()]
    _, out, _ = run("fit", folder, "-o", tmp_path / "bad.gpc", "--json")
    assert "guessing" in [one["kind"] for one in json.loads(out)["advice"]]
    unseen = write_shapes(tmp_path / "unseen", 3, 6)
    report = tmp_path / "report.html"
    _, out, _ = run("evaluate", tmp_path / "bad.gpc", unseen, "--report", report)
    assert "\nadvice " in out
    assert ">Advice<" in report.read_text()


def test_top_shortens_the_lists(run, copies):
    _, out, _ = run("check", copies, "--top", "1")
    leaks = out.split("Copies in two classes or groups")[1].split("\n\n")[0].splitlines()
    assert len(leaks) == 3
    assert leaks[2].endswith("more (--top).")


@pytest.mark.parametrize(("groups", "kind"), [("list", "leak"), ("none", "duplicate")])
def test_the_bursts_of_a_list_count_unless_told_otherwise(
    run, write_shapes, tmp_path, groups, kind
):
    """A copy in another burst is a leak; where bursts do not count, it is but a copy."""
    folder = write_shapes(tmp_path / "photos", 1, 14)
    shutil.copy(folder / "circle" / "0.png", folder / "circle" / "copy.png")
    table = folder / "list.csv"
    table.write_text(
        "path,label,group\ncircle/0.png,circle,monday\ncircle/copy.png,circle,tuesday\n"
        "square/0.png,square,monday\n"
    )
    code, out, _ = run("check", table, "--groups", groups, "--json")
    assert code == 1
    assert [one["kind"] for one in json.loads(out)["findings"]] == [kind]


def test_broken_files_are_listed(run, broken, reasons):
    _, out, err = run("check", broken, "--json")
    assert {one["path"] for one in json.loads(out)["refused"]} == set(reasons)
    assert "4 refused:" in err
    assert "\x1b" not in out + err


def test_hostile_names_reach_no_terminal(run, hostile_classes):
    photo = next(hostile_classes.glob("*/\x1b*.png"))
    shutil.copy(photo, photo.with_name(f"{photo.name}.copy.png"))
    _, out, err = run("check", hostile_classes)
    assert "\N{REPLACEMENT CHARACTER}" in out
    assert all(letter.isprintable() or letter == "\n" for letter in out + err)


def test_mistakes_are_one_sentence(mistake, shapes, tmp_path):
    assert "no labelled image" in mistake("check", shapes / "circle")
    assert "There is no image in" in mistake("check", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert ", which holds 'config.json': put images" in mistake("check", tmp_path)
    assert "groups must be one of" in mistake("check", shapes, "--groups", "bursts")
