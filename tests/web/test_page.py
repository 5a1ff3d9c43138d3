"""The page of `gpcache serve` in a real browser, on a real server: from nothing to a model."""

import csv
import importlib.util
import io
import re
import shutil
import zipfile
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)
expect = tools.playwright and tools.playwright.expect

pytestmark = tools.needs_chromium


@pytest.fixture(params=["drawn", "photographed"])
def material(request):
    """Photos by class, and photos of none of them."""
    return request.getfixturevalue(request.param)


def test_from_nothing_to_a_model(material, server, visit):
    """Collect, find a wrong label and fix it, try, be told "I don't know", grow a class."""
    photos, strangers = material
    (first, second, third), seen = photos, visit()
    page = seen.page
    seen.collect({name: files[:8] for name, files in photos.items()})
    expect(page.locator("#summary")).to_contain_text("3 classes · 24 photos")

    planted = photos[first][8]
    seen.add_photos(second, [planted])
    seen.go("check")
    expect(page.locator("#accuracy")).to_contain_text(re.compile(r"\d+ % right.*25 photos", re.S))
    suspect = page.get_by_label(f"Suspect {planted.name}").first
    expect(suspect).to_contain_text(f"Relabel to {first}")
    suspect.focus()
    page.keyboard.press("r")
    expect(page.get_by_role("button", name=f"Relabel to {first}")).to_have_count(0)
    assert planted.name in server.labels()[first]
    page.keyboard.press("Control+z")
    expect(suspect).to_be_visible()
    assert planted.name in server.labels()[second]
    suspect.focus()
    page.keyboard.press("d")
    expect(page.locator("#summary")).to_contain_text("24 photos")

    seen.go("try")
    answer = seen.try_photo(photos[third][9])
    expect(answer.locator(".headline strong")).to_have_text(third)
    assert answer.locator(".strip img").count() > 2
    assert re.fullmatch(r"[+−]\d+\.\d\d", answer.locator(".strip b").first.inner_text())
    expect(answer.locator(".chip").filter(has_text=third)).to_have_count(1)
    answer = seen.try_photo(strangers[0])
    expect(answer.locator(".headline strong")).to_have_text("I don’t know")

    seen.go("collect")
    seen.collect({"stranger": strangers[:4]})
    expect(page.locator("#summary")).to_contain_text("4 classes · 28 photos")
    seen.go("try")
    answer = seen.try_photo(strangers[4])
    expect(answer.locator(".bars .name").first).to_have_text("stranger")
    assert seen.complaints == []
    assert {url.split("/")[2] for url in seen.requests if not url.startswith("blob:")} == {
        server.origin.split("/")[2]
    }


def test_confusion_cell_shows_its_photos(drawn, server, visit):
    photos, _ = drawn
    seen = visit()
    seen.collect({"ball": photos["ball"][:5], "star": [*photos["star"][:5], photos["ball"][5]]})
    seen.go("check")
    seen.page.get_by_role("button", name="1 photo of star classified as ball").press("Enter")
    shown = seen.page.locator("#cell-photos button")
    expect(shown).to_have_count(1)
    expect(shown).to_have_attribute("aria-label", re.compile("ball-5.png"))
    shown.click()
    seen.page.get_by_label("Move to…").select_option("ball")
    # The model proposed this label: it counts once a person has looked.
    seen.page.get_by_role("button", name=re.compile("I have looked")).click()
    expect(
        seen.page.get_by_role("button", name=re.compile("star classified as ball"))
    ).to_have_count(0)
    assert photos["ball"][5].name in server.labels()["ball"]
    assert seen.complaints == []


def test_a_kept_suspect_stays_away(drawn, server, visit):
    photos, _ = drawn
    seen = visit()
    seen.collect({"ball": photos["ball"][:5], "star": [*photos["star"][:5], photos["ball"][5]]})
    seen.go("check")
    suspect = seen.page.get_by_label("Suspect ball-5.png")
    expect(suspect.first).to_be_visible()
    suspect.first.press("k")
    expect(suspect).to_have_count(0)
    seen.page.reload()
    expect(seen.page.locator("#confusion button").first).to_be_visible()
    assert suspect.count() == 0
    assert "ball-5.png" in server.labels()["star"]
    other = visit()  # another browser
    other.go("check")
    expect(other.page.locator("#confusion button").first).to_be_visible()
    assert other.page.get_by_label("Suspect ball-5.png").count() == 0
    seen.go("collect")
    seen.column("star").get_by_label("ball-5.png, kept").click()
    seen.page.get_by_role("button", name="Question again").click()
    seen.go("check")
    expect(suspect.first).to_be_visible()
    seen.page.keyboard.press("Control+z")
    expect(suspect).to_have_count(0)
    assert seen.complaints == []


def test_refused_files_lie_in_the_tray_with_their_reasons(drawn, visit, tmp_path):
    photos, _ = drawn
    letter, huge = tmp_path / "letter.jpg", tmp_path / "huge.png"
    letter.write_text("Dear photo,")
    with huge.open("wb") as file:
        file.truncate(21_000_000)
    seen = visit()
    seen.add_class("ball")
    field = seen.column("ball").locator("input[type=file]")
    field.set_input_files([str(letter), str(huge), str(photos["ball"][0])])
    expect(seen.column("ball").locator("img")).to_have_count(1)
    tray = seen.page.locator("#refused")
    tray.locator("summary").click()
    expect(tray).to_contain_text(re.compile("letter.jpg.*not an image", re.S))
    expect(tray).to_contain_text(re.compile("huge.png.*20 MB", re.S))


def test_folders_become_classes_and_files_fall_on_theirs(drawn, server, visit):
    photos, _ = drawn
    seen = visit()
    seen.drop(seen.page.locator("#board"), photos["ball"][0].parent, photos["star"][0].parent)
    expect(seen.page.locator(".column img")).to_have_count(20)
    seen.drop(seen.column("star"), photos["ladder"][0])
    expect(seen.page.locator(".column img")).to_have_count(21)
    labels = server.labels()
    assert labels.keys() == {"ball", "star"}
    assert labels["star"][-1] == "ladder-0.png"
    seen.column("star").get_by_label(re.compile("ladder-0.png")).press("Delete")
    expect(seen.page.locator(".column img")).to_have_count(20)
    assert seen.complaints == []


def test_webcam_takes_a_burst(server, visit):
    seen = visit()
    seen.add_class("test card")
    seen.column("test card").get_by_role("button", name="Webcam").click()
    dialog = seen.page.get_by_role("dialog")
    take = dialog.get_by_role("button", name="Take")
    take.focus()
    seen.page.keyboard.down("Space")
    expect(dialog).to_contain_text(re.compile("[3-9] photos taken"))
    seen.page.keyboard.up("Space")
    dialog.get_by_role("button", name="Add photos").click()
    expect(seen.column("test card").locator("img").nth(2)).to_be_visible()
    assert len(server.labels()["test card"]) >= 3
    assert seen.complaints == []


def test_names_alone_answer_and_follow_their_edits(drawn, visit):
    photos, _ = drawn
    seen = visit()
    for name in ("ball", "star"):
        seen.add_class(name)
    seen.page.locator("#preview input[type=file]").set_input_files(str(photos["ball"][0]))
    bars = seen.page.locator("#preview-answer li")
    expect(bars).to_have_count(2)
    name = seen.column("star").get_by_label("Class name")
    name.fill("ladder")
    name.press("Enter")
    expect(seen.page.locator("#preview-answer")).to_contain_text("ladder")
    before = seen.page.locator("#preview-answer").inner_text()
    prompt = seen.column("ladder").get_by_label("Prompt")
    prompt.fill("a tennis ball")
    prompt.blur()
    expect(seen.page.locator("#preview-answer")).not_to_have_text(before, use_inner_text=True)
    assert seen.complaints == []


def test_pasted_photo_goes_to_the_chosen_class(server, visit):
    seen = visit()
    seen.add_class("first")
    seen.add_class("second")
    seen.column("first").get_by_role("button", name="Webcam").focus()
    seen.page.evaluate(
        """async () => {
        const canvas = new OffscreenCanvas(64, 64);
        canvas.getContext("2d").fillRect(8, 8, 30, 40);
        const transfer = new DataTransfer();
        transfer.items.add(new File([await canvas.convertToBlob()], "image.png"));
        document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
        }"""
    )
    expect(seen.column("first").locator("img")).to_have_count(1)
    assert server.labels()["first"][0].startswith("pasted-")
    assert server.labels()["second"] == []


def test_pool_is_labelled_by_keys(drawn, server, visit):
    photos, _ = drawn
    seen = visit()
    seen.collect({name: files[:3] for name, files in photos.items()})
    seen.go("grow")
    pool = [*photos["ball"][3:7], *photos["star"][3:7]]
    seen.page.locator("#pool-choose input").first.set_input_files(list(map(str, pool)))
    queue = seen.page.locator("#queue button")
    expect(queue).to_have_count(8)
    seen.page.keyboard.press("ArrowRight")
    expect(queue.nth(1)).to_have_attribute("aria-pressed", "true")
    name = queue.nth(1).get_attribute("aria-label").split(": ")[1]
    seen.page.keyboard.press("2")
    expect(queue).to_have_count(7)
    assert name in server.labels()["ladder"]
    expect(seen.page.locator("#curve title").last).to_contain_text("10 photos: ")
    assert seen.complaints == []


def test_batch_and_downloads(drawn, visit):
    photos, _ = drawn
    seen = visit()
    seen.collect({name: files[:4] for name, files in photos.items()})
    seen.go("use")
    asked = [*photos["ball"][4:10], *photos["star"][4:10]]
    seen.page.locator("#batch-choose input").first.set_input_files(list(map(str, asked)))
    table = downloaded(seen.page, "Download answers.csv").read_text()
    answers = {Path(row["image"]).name: row["label"] for row in csv.DictReader(io.StringIO(table))}
    assert answers.keys() == {file.name for file in asked}
    right = sum(name.startswith(label) for name, label in answers.items())
    assert right >= 10
    with zipfile.ZipFile(downloaded(seen.page, "Download the model (.gpc, zipped)")) as model:
        assert {"config.json", "model.safetensors"} <= {Path(n).name for n in model.namelist()}
    assert downloaded(seen.page, "Download the model card").read_text().count("ladder") > 0
    expect(seen.page.locator("#snippets pre").first).to_contain_text("gpcache predict")
    assert seen.complaints == []


def test_a_batch_of_folders_has_a_row_for_every_photo(drawn, visit, tmp_path):
    photos, _ = drawn
    for number, kind in enumerate(photos):
        folder = tmp_path / "album" / f"part {number}"
        folder.mkdir(parents=True)
        shutil.copy(photos[kind][9], folder / "1.png")
    seen = visit()
    seen.collect({name: files[:4] for name, files in photos.items()})
    seen.go("use")
    seen.page.locator("#batch-choose input").last.set_input_files(str(tmp_path / "album"))
    table = downloaded(seen.page, "Download answers.csv").read_text()
    answers = {row["image"]: row["label"] for row in csv.DictReader(io.StringIO(table))}
    expected = {f"album/part {number}/1.png": kind for number, kind in enumerate(photos)}
    assert answers == expected
    assert seen.complaints == []


def test_batch_goes_on_where_it_was_cut_off(drawn, visit):
    photos, _ = drawn
    seen = visit()
    seen.collect({name: files[:4] for name, files in photos.items()})
    seen.go("use")
    field = seen.page.locator("#batch-choose input").first
    seen.page.route("**/files", lambda route: route.abort())
    field.set_input_files(list(map(str, photos["ball"])))
    expect(seen.page.get_by_role("alert")).to_contain_text("does not answer")
    seen.page.unroute("**/files")
    seen.page.reload()
    expect(seen.page.locator("#batch-resume")).to_contain_text("interrupted")
    field.set_input_files(list(map(str, photos["ball"])))
    expect(seen.page.locator("#batch-progress")).to_contain_text("10 files in the table")
    expect(seen.page.locator("#batch-resume")).to_be_empty()
    assert sum(url.endswith("/v1/batch") for url in seen.requests) == 1


def test_a_dropped_question_is_asked_again(visit):
    """A browser drops requests when the network of the machine changes."""
    seen = visit()
    seen.add_class("ball")
    dropped = []

    def drop_first(route):
        dropped.append(route.request.url)
        route.abort() if len(dropped) == 1 else route.continue_()

    seen.page.route("**/v1/state", drop_first)
    seen.page.reload()
    expect(seen.page.locator("#summary")).to_contain_text("1 class")
    assert len(dropped) >= 2
    expect(seen.page.get_by_role("alert")).not_to_contain_text("does not answer")


def test_two_windows_do_not_overwrite_each_other(server, visit):
    one, other = visit(), visit()
    other.add_class("theirs")
    one.page.locator("#new-class-name").fill("mine")
    one.page.keyboard.press("Enter")
    expect(one.page.get_by_role("alert")).to_contain_text("latest state")
    expect(one.column("theirs")).to_be_visible()
    one.page.keyboard.press("Enter")
    expect(one.column("mine")).to_be_visible()
    assert server.labels().keys() == {"theirs", "mine"}


def test_all_is_there_again_after_a_kill(drawn, visit, start, tmp_path):
    photos, _ = drawn
    server = tools.Server(tmp_path / "workspace", tools.TINY)
    try:
        seen = visit(server.address)
        seen.collect({name: files[:3] for name, files in photos.items()})
        before = server.ask("GET", "/v1/state")
    finally:
        server.kill()
    seen.page.get_by_role("button", name="Undo").click()
    expect(seen.page.get_by_role("alert")).to_contain_text("gpcache serve")
    again = start()
    seen = visit(f"{again.address}/?token={server.token}")
    expect(seen.page.locator(".column img")).to_have_count(9)
    assert again.client.get("/v1/state").json() == before
    seen.page.keyboard.press("Control+z")
    expect(seen.page.locator(".column img")).to_have_count(6)


def downloaded(page, label):
    with page.expect_download() as waiting:
        page.get_by_role("button", name=label).click()
    return waiting.value.path()
