"""Work on many photos in a real browser: zoom, selection, one undo, notices, figures, test sets."""

import importlib.util
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)
expect = tools.playwright and tools.playwright.expect

pytestmark = tools.needs_chromium


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server with an encoder that starts at once."""
    server = tools.Server(tmp_path_factory.mktemp("served") / "workspace", tools.TINY)
    yield server
    server.kill()


@pytest.fixture
def large(tmp_path):
    """A photo of 1,200 × 900 pixels with a mark of a few pixels."""
    image = Image.new("RGB", (1200, 900), (90, 140, 200))
    image.paste((250, 20, 20), (1000, 700, 1008, 708))
    image.save(tmp_path / "large.png")
    return tmp_path / "large.png"


def test_originals_are_shown_and_zoomed_where_photos_are_labelled(drawn, visit, large):
    photos, _ = drawn
    seen = visit()
    seen.collect({"ball": photos["ball"][:2], "star": photos["star"][:2]})
    seen.go("grow")
    seen.page.locator("#pool-choose input").first.set_input_files(str(large))
    image = seen.page.locator("#candidate img")
    expect(image).to_be_visible()
    expect(image).to_have_js_property("naturalWidth", 1200)  # after the small picture
    before = image.bounding_box()["width"]
    seen.page.keyboard.press("z")
    expect(seen.page.locator("#candidate .zoom")).to_have_class(re.compile("near"))
    assert image.bounding_box()["width"] >= 1200 > before
    seen.page.get_by_role("button", name="Zoom").click()
    assert image.bounding_box()["width"] == pytest.approx(before, abs=1)
    box = seen.page.locator("#candidate .zoom").bounding_box()
    seen.page.mouse.click(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.75)
    left = seen.page.locator("#candidate .zoom").evaluate("box => box.scrollLeft")
    assert left > 0  # where it was clicked
    seen.page.keyboard.press("1")
    expect(seen.page.locator("#labelling")).to_be_hidden()
    seen.go("collect")
    seen.column("ball").get_by_label(re.compile("large.png")).click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Zoom")).to_be_visible()
    expect(dialog.locator("img")).to_have_js_property("naturalWidth", 1200)
    assert seen.complaints == []


def test_several_photos_are_moved_removed_and_brought_back(drawn, server, visit):
    photos, _ = drawn
    seen = visit()
    seen.collect({"ball": photos["ball"][:5], "star": photos["star"][:3]})
    column = seen.column("ball").locator(".thumbnail")
    column.nth(0).click(modifiers=["Control"])
    column.nth(2).click(modifiers=["Shift"])
    bar = seen.page.get_by_role("group", name="Selected photos")
    expect(bar).to_contain_text("3 photos selected")
    bar.get_by_label("Move to…").select_option(label="star")
    expect(seen.column("star").locator("img")).to_have_count(6)
    assert len(server.labels()["ball"]) == 2
    seen.page.keyboard.press("Control+z")
    expect(seen.column("ball").locator("img")).to_have_count(5)
    seen.page.get_by_role("button", name="Select", exact=True).click()
    for place in (1, 3):
        column.nth(place).click()
    column.nth(1).drag_to(seen.column("star"))
    expect(seen.column("star").locator("img")).to_have_count(5)
    column.nth(0).click()
    column.nth(1).click()
    column.nth(1).press("Delete")
    expect(seen.column("ball").locator("img")).to_have_count(1)
    seen.page.get_by_role("button", name="Undo").click()
    expect(seen.column("ball").locator("img")).to_have_count(3)
    expect(bar).to_be_hidden()
    assert seen.complaints == []


def test_one_undo_takes_a_whole_drop_back(drawn, server, visit):
    """Two folders, each a class of ten photos: several requests, one step."""
    photos, _ = drawn
    seen = visit()
    seen.collect({"ladder": photos["ladder"][:2]})
    seen.drop(seen.page.locator("#board"), photos["ball"][0].parent, photos["star"][0].parent)
    expect(seen.page.locator(".column img")).to_have_count(22)
    expect(seen.page.locator("#undo-what")).to_have_text("adding 20 photos to 2 classes")
    seen.page.get_by_role("button", name="Undo").click()
    expect(seen.page.locator(".column")).to_have_count(1)
    assert server.labels() == {"ladder": ["ladder-0.png", "ladder-1.png"]}
    assert seen.complaints == []


def test_kept_and_suspect_have_colours_of_their_own(drawn, server, visit):
    photos, _ = drawn
    seen = visit()
    seen.collect({"ball": photos["ball"][:5], "star": [*photos["star"][:5], photos["ball"][5]]})
    mark = seen.column("star").locator(".flags span")
    expect(mark.filter(has_text="suspect").first).to_be_visible()
    suspect = colour(mark.filter(has_text="suspect").first)
    wrong = next(
        one["id"]
        for one in server.ask("GET", "/v1/state")["photos"]
        if one["name"] == photos["ball"][5].name
    )
    server.ask("PATCH", "/v1/examples", {"ids": [wrong], "keep": True})
    seen.page.reload()
    expect(mark.filter(has_text="kept")).to_have_count(1)
    assert colour(mark.filter(has_text="kept")) != suspect


def colour(locator):
    return locator.evaluate("node => getComputedStyle(node).backgroundColor")


@pytest.mark.parametrize("width", [1200, 360])
def test_notices_lie_over_no_button(drawn, visit, width):
    photos, _ = drawn
    seen = visit(width=width)
    seen.collect({"ball": photos["ball"][:6], "star": photos["star"][:6]})
    for step in tools.STEPS:
        seen.go(step)
        seen.page.evaluate(
            """async () => {
            const { complain, say } = await import("/static/notices.js");
            say("Something was done."); complain("Something went wrong."); complain("And more.");
            }"""
        )
        covered = seen.page.evaluate(
            """() => {
            const notices = [...document.querySelectorAll("footer .notice")];
            const boxes = notices.map((one) => one.getBoundingClientRect());
            const buttons = [...document.querySelectorAll("header button, main button, main a")];
            return boxes.length > 2 && buttons.some((one) => {
              const area = one.getBoundingClientRect();
              const main = document.querySelector("main").getBoundingClientRect();
              const bottom = one.closest("main") ? Math.min(area.bottom, main.bottom) : area.bottom;
              return one.checkVisibility() && boxes.some((box) => box.top < bottom
                && box.bottom > area.top && box.left < area.right && box.right > area.left);
            });
            }"""
        )
        assert covered is False, step


def test_an_empty_workspace_has_a_header_that_says_so(server, visit):
    seen = visit()
    assert seen.page.locator("#summary").inner_text() == (
        f"Empty: no class and no photo yet · encoder {server.ask('GET', '/v1/state')['encoder']}"
    )
    seen.add_class("crab")
    expect(seen.page.locator("#summary")).to_contain_text("1 class · 0 photos")
    expect(seen.page.locator("#summary")).to_contain_text("class names only")


def test_figures_are_of_the_same_classes_or_are_not_shown(drawn, visit):
    """No accuracy of one class; the curve of two begins again with a third, and forgets an undo."""
    photos, _ = drawn
    seen = visit()
    for name in ("ball", "star", "ladder"):
        seen.add_class(name)
    seen.add_photos("ball", photos["ball"][:4])
    expect(seen.page.locator("#summary")).not_to_contain_text("right")
    seen.go("check")
    expect(seen.page.locator("#check-wait")).to_contain_text("Only one class has photos")
    seen.go("collect")
    seen.add_photos("star", photos["star"][:4])
    expect(seen.page.locator("#summary")).not_to_contain_text("right")  # two of three classes
    seen.go("check")
    expect(seen.page.locator("#accuracy")).to_contain_text("right")
    seen.go("collect")
    seen.add_photos("star", photos["star"][4:6])
    seen.go("grow")
    points = seen.page.locator("#curve circle")
    expect(points).to_have_count(2)
    seen.page.get_by_role("button", name="Undo").click()
    expect(points).to_have_count(1)
    seen.go("collect")
    seen.add_photos("ladder", photos["ladder"][:4])
    expect(seen.page.locator("#summary")).to_contain_text("right when held out")
    seen.go("grow")
    expect(points).to_have_count(1)
    expect(points.locator("title")).to_contain_text("12 photos")
    assert seen.complaints == []


def test_a_test_set_has_its_figures_and_a_report(drawn, server, visit, tmp_path):
    photos, _ = drawn
    seen = visit()
    seen.collect({"ball": photos["ball"][:5], "star": photos["star"][:5]})
    seen.go("check")
    album = tmp_path / "album"
    for kind, files in {"ball": photos["ball"][4:8], "star": photos["star"][5:8]}.items():
        (album / kind).mkdir(parents=True)
        for file in files:
            (album / kind / file.name).write_bytes(file.read_bytes())
    (album / "tram").mkdir()
    (album / "tram" / "one.png").write_bytes(photos["ladder"][0].read_bytes())
    seen.page.locator("#test-choose input").set_input_files(str(album))
    found = seen.page.locator("#test-results")
    expect(found).to_contain_text(re.compile(r"\d+ % right.*6 photos.*I don’t know", re.S))
    expect(found).to_contain_text("2 others are training photos or of another class")
    expect(found).to_contain_text("Folders that are not a class: tram.")
    assert len(server.labels()["ball"]) == 5  # nothing of it is learned
    pytest.importorskip("matplotlib")
    with seen.page.expect_download() as waiting:
        seen.page.get_by_role("button", name="Download the report").click()
    report = Path(waiting.value.path()).read_text()
    assert "Hardest test images" in report
    assert "the test set" in report
    seen.page.get_by_role("button", name="Clear the test set").click()
    expect(found).to_be_empty()
    assert seen.complaints == []


@pytest.fixture
def network(tmp_path):
    """`gpcache serve --host 0.0.0.0`: the address it printed, and what it said."""
    servers = []

    def network(*options):
        command = ("-m", "gpcache", "serve", "--port", "0", "--host", "0.0.0.0", *options)
        servers.append(tools.Server(tmp_path / f"work{len(servers)}", (*command, "--workspace")))
        return servers[-1]

    yield network
    for one in servers:
        one.kill()


def test_sharing_in_a_network_asks_for_the_token(network, browser):
    server = network()
    said = server.log.read_text()
    assert "warning: The connection is not encrypted" in said
    assert "█" in said or "▀" in said  # the QR code
    host = server.origin.split("//")[1]
    assert not host.startswith("127.")
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(server.origin)
    field = page.get_by_label("Token that gpcache serve printed")
    field.fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("not the token")
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#summary")).to_contain_text("Empty")
    assert "token" not in page.url
    page.locator("#new-class-name").fill("crab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Class crab")).to_be_visible()
    context.close()
    for header in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        request = urllib.request.Request(server.origin + "/v1/state", headers=header)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=300)


def test_sharing_with_https(network, browser, tmp_path):
    pem = tmp_path / "pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=gpcache", "-keyout", f"{pem}.key", "-out", f"{pem}.crt"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    server = network("--certificate", f"{pem}.crt", "--key", f"{pem}.key")
    said = server.log.read_text()
    assert "not encrypted" not in said
    assert server.origin.startswith("https://")
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    page.goto(server.address)
    expect(page.locator("#summary")).to_contain_text("Empty")
    (cookie,) = context.cookies()
    assert cookie["secure"]
    assert page.evaluate("isSecureContext")  # so that the phone's camera may be used
    context.close()


def test_bad_options_of_sharing_are_one_sentence(tmp_path):
    def told(*options):
        done = subprocess.run(
            [sys.executable, "-m", "gpcache", "serve", "-w", str(tmp_path / "w"), *options],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 2
        return done.stderr

    assert "give --certificate and --key" in told("--certificate", "a.pem")
    assert "does not belong to this machine" in told("--host", "203.0.113.7", "--port", "0")
