"""`gpcache predict`: every format, stdin, hostile names, closed pipes and interrupts."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import pytest
from PIL import Image

from gpcache import ImageClassifier

pyarrow_parquet = pytest.importorskip("pyarrow.parquet")


TOO_FEW = (
    "note: No image can be refused: a rate of 0.05 needs 19 or more training images that "
    "can be held out, and there are 12.\n"
)


@pytest.fixture(scope="module")
def expected(model, unseen):
    """What the classifier itself says, by name."""
    answers = ImageClassifier.load(model, device="cpu").predict(unseen)
    return {answer.name: answer for answer in answers}


def test_a_line_for_each_image(run, model, unseen, expected):
    code, out, err = run("predict", model, unseen)
    assert (code, err) == (0, TOO_FEW)
    lines = [re.fullmatch(r"(\S+)  (\S+)  (\d+\.\d) %", line) for line in out.splitlines()]
    assert [line[1] for line in lines] == sorted(expected)
    for line in lines:
        assert line[2] == line[1].split("/")[0] == expected[line[1]].label
        assert float(line[3]) == pytest.approx(100 * expected[line[1]].probability, abs=0.06)


@pytest.mark.parametrize("others", [[], ["one.png"]], ids=["a folder", "several paths"])
def test_a_link_out_of_the_folder_is_followed_if_asked(run, model, unseen, tmp_path, others):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "link.png").symlink_to(unseen / "circle" / "0.png")
    for name in ("one.png", "new/own.png"):
        (tmp_path / name).write_bytes((unseen / "square" / "0.png").read_bytes())
    asked = ("predict", model, tmp_path / "new", *(tmp_path / name for name in others), "--json")
    code, out, err = run(*asked)
    assert (code, len(out.splitlines())) == (1, 1 + len(others))
    assert "link.png  it is a link that leaves the folder (allowed with --follow" in err
    code, out, err = run(*asked, "--follow")
    assert (code, len(out.splitlines())) == (0, 2 + len(others))


def test_further_classes_and_reasons(run, model, unseen):
    code, out, _ = run("predict", model, unseen / "circle" / "0.png", "--top", "9", "--why")
    first, *others = out.splitlines()
    assert (code, first.split()[1]) == (0, "circle")
    classes = [line.split() for line in others if line.endswith(("circle", "square", "triangle"))]
    assert classes[0][2] == "circle"
    assert sum(float(line[0]) for line in classes) == pytest.approx(100, abs=0.2)
    reasons = [re.fullmatch(r" +([+-]\d+\.\d\d)  (\w+)/\d\.png \((\w+)\)", one) for one in others]
    reasons = [reason for reason in reasons if reason]
    assert len(reasons) == 5
    assert float(reasons[0][1]) > 0
    assert reasons[0][2] == reasons[0][3] == "circle"


def test_the_share_of_the_class_name(run, model, unseen, text_model):
    """It stands beside the shares of the images, in every format."""
    photo = unseen / "circle" / "0.png"
    classifier = ImageClassifier.load(model, device="cpu")
    (answer,) = classifier.predict(photo, why=3)
    encoder = classifier.encoder_
    with Image.open(photo) as image:
        features = encoder.encode_pixels(encoder.preprocess.pixels(image.convert("RGB"))[None])
    fitted = classifier.model.fitted_
    text = fitted.choice.gain * (features @ fitted.text.cpu().numpy().T)[0]
    expected = text[classifier.classes.index(answer.label)] - text.mean()
    assert answer.name_weight == pytest.approx(expected, rel=1e-4)
    _, out, _ = run("predict", model, photo, "--why")
    assert f"{answer.name_weight:+.2f}  the class name" in out.splitlines()[-1]
    _, out, _ = run("predict", model, photo, "--why", "--json")
    assert json.loads(out)["name_weight"] == pytest.approx(answer.name_weight, abs=1e-6)
    _, out, _ = run("predict", model, photo, "--why", "-f", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert float(row["name_weight"]) == pytest.approx(answer.name_weight, abs=1e-6)
    _, out, _ = run("predict", model, photo, "--json")
    assert "name_weight" not in json.loads(out)
    _, out, _ = run("predict", text_model, photo, "--why")
    assert "the class name" not in out


def test_sets_can_promise_each_class(run, mistake, model, unseen):
    options = ("predict", model, unseen, "--sets", "0.15", "--reject", "0", "--json")
    alike, own = (run(*options, *more)[1].splitlines() for more in ([], ["--per-class"]))
    sizes = [sum(len(json.loads(line)["plausible"]) for line in lines) for lines in (alike, own)]
    assert sizes[0] < sizes[1] == 27  # four images of a class rule nothing out at 0.15
    assert "3 of 3 classes are in every set" in run(*options, "--per-class")[2]
    assert "--per-class counts only with --sets" in mistake("predict", model, unseen, "--per-class")


def test_json_lines(run, model, unseen, expected):
    for option in (["--json"], ["--format", "jsonl"]):
        code, out, err = run("predict", model, unseen, *option, "--top", "3")
        assert (code, err) == (0, TOO_FEW)
        found = [json.loads(line) for line in out.splitlines()]
        assert [one["image"] for one in found] == list(expected)
        for one in found:
            answer = expected[one["image"]]
            assert one["label"] == answer.label
            assert one["probability"] == pytest.approx(answer.probability, abs=1e-6)
            assert {top["label"] for top in one["top"]} == {"circle", "square", "triangle"}


def test_the_rate_of_rejection_is_what_was_asked_for(run, model, unseen):
    _, out, _ = run("predict", model, unseen, "--json", "--reject", "0.9")
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["rejected"] for one in found] == [one["familiarity"] <= 0.9 for one in found]
    rejected = sum(one["rejected"] for one in found)
    assert rejected > 0
    for one in found:
        assert one["label"] == (None if one["rejected"] else one["nearest"])
    _, out, _ = run("predict", model, unseen, "-f", "csv", "--reject", "0.9", "--sets", "0.2")
    for one, row in zip(found, csv.DictReader(io.StringIO(out)), strict=True):
        assert (row["label"], row["nearest"]) == (one["label"] or "", one["nearest"])
        assert (row["plausible"] == "[]") == one["rejected"]
    _, out, _ = run("predict", model, unseen, "--reject", "0.9")
    assert out.count("I don't know  (unlike the training images; nearest ") == rejected
    _, out, _ = run("predict", model, unseen, "--reject", "0")
    assert "I don't know" not in out


def test_csv_and_parquet_hold_the_same(run, model, unseen, expected, tmp_path):
    table, binary = tmp_path / "a.csv", tmp_path / "a.parquet"
    for form, target in (("csv", table), ("parquet", binary)):
        options = ("-f", form, "-o", target, "--top", "5", "--reject", "0.1")
        assert run("predict", model, unseen, *options) == (0, "", "")
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    others = pyarrow_parquet.read_table(binary).to_pylist()
    assert [row["image"] for row in rows] == list(expected)
    for row, other in zip(rows, others, strict=True):
        assert list(row) == list(other)
        assert list(row)[-1] == "probability_3"  # there are no more classes
        assert {row[key] for key in ("label", "label_2", "label_3")} == {
            "circle",
            "square",
            "triangle",
        }
        for key, value in other.items():
            assert row[key] == str(value) or float(row[key]) == pytest.approx(value, abs=1e-9)
    umask = os.umask(0)
    os.umask(umask)
    assert table.stat().st_mode & 0o777 == binary.stat().st_mode & 0o777 == 0o666 & ~umask


def test_sets_are_listed_in_every_format(run, model, unseen, tmp_path):
    classifier = ImageClassifier.load(model, device="cpu")
    answers = classifier.predict(unseen, sets=0.2, reject=0.1)
    expected = {one.name: list(one.plausible) for one in answers}
    assert len({len(labels) for labels in expected.values()} - {3}) > 0  # something is ruled out
    options = ("predict", model, unseen, "--sets", "0.2", "--reject", "0.1")
    _, out, _ = run(*options, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert {one["image"]: one["plausible"] for one in found} == expected
    _, out, _ = run(*options, "-f", "csv")
    rows = csv.DictReader(io.StringIO(out))
    assert {row["image"]: json.loads(row["plausible"]) for row in rows} == expected
    target = tmp_path / "a.parquet"
    run(*options, "-f", "parquet", "-o", target, "--top", "2")
    rows = pyarrow_parquet.read_table(target).to_pylist()
    assert {row["image"]: row["plausible"] for row in rows} == expected
    _, out, _ = run(*options)
    for labels in expected.values():
        assert not labels or f"\n    one of: {', '.join(labels)}\n" in out
    assert out.count("I don't know") == sum(not labels for labels in expected.values())


def test_reasons_are_listed_in_every_format(run, model, unseen, tmp_path):
    classifier = ImageClassifier.load(model, device="cpu")
    expected = {
        one.name: [(why.name, why.label) for why in one.neighbours]
        for one in classifier.predict(unseen, why=5)
    }
    options = ("predict", model, unseen, "--why", "--sets", "0.2")
    _, out, _ = run(*options, "-f", "csv")
    rows = {row["image"]: json.loads(row["why"]) for row in csv.DictReader(io.StringIO(out))}
    target = tmp_path / "a.parquet"
    run(*options, "-f", "parquet", "-o", target)
    table = pyarrow_parquet.read_table(target).to_pylist()
    for found in (rows, {row["image"]: row["why"] for row in table}):
        names = {k: [(one["name"], one["label"]) for one in v] for k, v in found.items()}
        assert names == expected
        assert all(isinstance(one["weight"], float) for v in found.values() for one in v)


def test_why_a_set_is_everything_is_said_once(run, model, unseen):
    code, out, err = run("predict", model, unseen, "--sets", "0.05", "--reject", "0")
    assert code == 0
    assert out.count("one of: ") == 9
    assert err.count("Every set contains every class: 12 labelled rows cannot rule out") == 1


def test_csv_runs_no_formula_and_the_terminal_obeys_no_name(run, model, hostile):
    names = {str(path.relative_to(hostile)) for path in hostile.rglob("*.png")}
    _, out, _ = run("predict", model, hostile)
    assert all(letter.isprintable() or letter == "\n" for letter in out)
    assert len(out.splitlines()) == len(names)
    _, out, _ = run("predict", model, hostile, "--json")
    assert all(letter.isprintable() or letter == "\n" for letter in out)
    assert {json.loads(line)["image"] for line in out.splitlines()} == names
    _, out, _ = run("predict", model, hostile, "-f", "csv")
    cells = [row["image"] for row in csv.DictReader(io.StringIO(out))]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    assert {cell.removeprefix("'") for cell in cells} == names


def test_broken_images_are_listed_and_the_others_answered(run, model, broken, reasons):
    code, out, err = run("predict", model, broken, "--json")
    assert code == 1
    assert len(out.splitlines()) == 6
    assert "4 refused:" in err
    assert "\x1b" not in err
    for reason in reasons.values():
        assert reason in err


@pytest.mark.parametrize("form", ["csv", "jsonl", "table", "parquet"])
def test_no_answer_is_an_empty_file(run, model, tmp_path, form):
    target = tmp_path / "answers"
    code, out, err = run("predict", model, tmp_path / "no.jpg", "-f", form, "-o", target)
    assert (code, out) == (1, "")
    assert "no.jpg  there is no such file" in err
    if form == "parquet":
        assert pyarrow_parquet.read_table(target).num_rows == 0
    else:
        assert target.read_text().count("\n") == (form == "csv")


def test_paths_come_on_stdin_in_any_spelling(shell, model, unseen, tmp_path):
    odd = os.fsencode(tmp_path) + b"/caf\xe9.png"  # no UTF-8
    try:
        with open(odd, "wb") as file:
            file.write((unseen / "square" / "0.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    paths = [os.fsencode(unseen / "circle" / "0.png"), odd, b"no/such.jpg"]
    done = shell("predict", model, "-", "--json", stdin=b"\r\n".join([*paths, b"", b""]))
    assert done.returncode == 1
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["label"], second["label"]) == ("circle", "square")
    assert second["image"].endswith("caf\\xe9.png")
    assert b"no/such.jpg  there is no such file" in done.stderr


def test_folders_and_files_together(run, model, unseen, expected):
    """Each is named as it was given; one that is missing is refused by itself."""
    given = [unseen / "circle", unseen / "square" / "0.png", unseen / "none.png"]
    code, out, err = run("predict", model, *given)
    assert (code, "none.png" in err, "there is no such file" in err) == (1, True, True)
    lines = [line.split() for line in out.splitlines()]
    files = sorted((unseen / "circle").iterdir())
    assert [line[0] for line in lines] == [*map(str, files), str(given[1])]
    for name, label, *_ in lines:
        assert label == expected[os.path.relpath(name, unseen)].label


def test_subfolders_mean_nothing_to_an_answer(run, model, unseen, expected, tmp_path):
    """Loose images beside folders, and folders whose names differ only in case, are answered."""
    for number, name in enumerate(("a.png", "Trip/b.png", "trip/c.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((unseen / "circle" / f"{number}.png").read_bytes())
    code, out, _ = run("predict", model, tmp_path)
    assert code == 0
    labels = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    assert labels == {
        name: expected[f"circle/{number}.png"].label
        for number, name in enumerate(("a.png", "Trip/b.png", "trip/c.png"))
    }


def test_nothing_on_stdin_is_one_sentence(mistake, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert "There is no path on stdin: give one on each line." in mistake("predict", model, "-")


@pytest.mark.parametrize("command", [["predict", "{unseen}", "--json"], ["inspect", "--json"]])
def test_a_reader_that_leaves_is_no_error(model, unseen, command):
    name, *others = (unseen if one == "{unseen}" else one for one in command)
    with subprocess.Popen(
        [sys.executable, "-m", "gpcache", name, model, *others],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def test_an_interrupt_leaves_the_old_file(model, unseen, tmp_path):
    """Ctrl-C while answers are written, which is when their temporary file is there."""
    target = tmp_path / "answers.csv"
    target.write_text("old")
    code = (
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from gpcache.cli.app import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it\n"
        "def watch():\n"
        f"    while not list(Path({str(tmp_path)!r}).glob('.answers.csv.*')):\n"
        "        time.sleep(0.002)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        f"sys.argv = ['gpcache', 'predict', {str(model)!r}, {str(unseen)!r}, '-f', 'csv', "
        f"'-o', {str(target)!r}]\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{unseen}", "-f", "parquet"], "give a file with --output"),
        (["{unseen}", "-o", "{unseen}"], "is a folder: give the name of a file"),
        (["{unseen}", "-o", "{unseen}/no/a.csv"], "cannot be written: make the folder"),
        (["{unseen}", "--json", "-f", "csv"], "--json and --format csv contradict each other"),
        (["{unseen}/no"], "There is no file or folder"),
        (["{unseen}", "--device", "tpu"], "device must be"),
    ],
)
def test_a_mistake_is_one_sentence(mistake, model, unseen, arguments, sentence):
    given = (argument.format(unseen=unseen) for argument in arguments)
    assert sentence in mistake("predict", model, *given)


@pytest.mark.parametrize(
    ("file", "missing"),
    [("model.safetensors", "is missing"), ("config.json", "is not a gpcache model")],
)
def test_a_damaged_model_is_one_sentence(mistake, own_model, unseen, file, missing):
    place = own_model / file
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    assert "is damaged" in mistake("predict", own_model, unseen)
    place.unlink()
    assert missing in mistake("predict", own_model, unseen)
