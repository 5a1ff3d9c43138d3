"""The page as a page: nothing from outside, names as text, light and dark, narrow, fast."""

import importlib.util
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)
expect = tools.playwright and tools.playwright.expect

pytestmark = tools.needs_chromium

STATIC = tools.ROOT / "src" / "gpcache" / "web" / "static"
HOSTILE = ("<img src=x onerror=alert(1)> " + "long" * 40, "سرطان 🦀")


@pytest.fixture
def filled(drawn, visit):
    """Opens the page with photos, answers and a pool, so that every part of it shows."""

    def opened(**options):
        photos, noise = drawn
        seen = visit(**options)
        shots = {kind: files[:7] for kind, files in photos.items()}
        seen.collect(shots | {"star": [*shots["star"], photos["ball"][7]]})
        seen.go("check")
        expect(seen.page.locator("#confusion td button").first).to_be_visible()
        seen.go("try")
        seen.try_photo(photos["ball"][9])
        seen.try_photo(noise[0])
        seen.go("grow")
        pool = list(map(str, photos["star"][7:]))
        seen.page.locator("#pool-choose input").first.set_input_files(pool)
        expect(seen.page.locator("#queue button").first).to_be_visible()
        return seen

    return opened


def axe_violations(page):
    """The rules of axe that the page breaks now, of every impact, with an element each."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    violations = axe.run(page).response["violations"]
    return [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in violations]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360)])
def test_axe_finds_no_fault_in_a_filled_workspace(filled, scheme, width):
    seen = filled(scheme=scheme, width=width)
    for step in tools.STEPS:
        seen.go(step)
        assert axe_violations(seen.page) == [], step
    assert seen.complaints == []


@pytest.mark.parametrize("width", [1200, 360])
def test_axe_finds_no_fault_in_an_empty_workspace(visit, width):
    seen = visit(width=width)
    for step in tools.STEPS:
        seen.go(step)
        assert axe_violations(seen.page) == [], step


def test_axe_finds_no_fault_in_dialogs_lists_and_the_test_set(drawn, visit, tmp_path):
    photos, _ = drawn
    seen = visit()
    (tmp_path / "broken.png").write_bytes(b"not an image")
    seen.collect({kind: photos[kind][:5] for kind in ("ball", "star")})
    column = seen.column("ball")
    column.locator("input[type=file]").set_input_files(str(tmp_path / "broken.png"))
    expect(seen.page.locator("#refused")).to_be_visible()
    seen.page.locator("#refused summary").click()
    seen.page.locator("#select").click()
    column.locator(".thumbnail").first.click()
    expect(seen.page.locator("#selection")).to_be_visible()
    assert axe_violations(seen.page) == [], "refused files and selected photos"
    seen.page.reload()
    column.locator(".thumbnail").first.click()
    expect(seen.page.get_by_role("dialog")).to_be_visible()
    assert axe_violations(seen.page) == [], "a photo"
    seen.page.keyboard.press("Escape")
    seen.go("check")
    album = tmp_path / "album"
    for kind in ("ball", "star"):
        (album / kind).mkdir(parents=True)
        for file in photos[kind][5:8]:
            (album / kind / file.name).write_bytes(file.read_bytes())
    seen.page.locator("#test-choose input").set_input_files(str(album))
    expect(seen.page.locator("#test-results")).to_contain_text("right")
    assert axe_violations(seen.page) == [], "test set"


def test_axe_finds_no_fault_where_the_token_is_asked_for(server, browser):
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    for address in (server.origin, f"{server.origin}/?token=wrong"):
        page.goto(address)
        expect(page.get_by_label("Token")).to_be_visible()
        assert axe_violations(page) == [], address
    context.close()


def test_nothing_is_wider_than_a_phone(filled):
    seen = filled(width=360)
    for step in tools.STEPS:
        seen.go(step)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360, step
        expect(seen.page.locator("#undo")).to_be_in_viewport()


def test_hostile_names_are_text(drawn, server, visit):
    photos, _ = drawn
    seen = visit(width=360)
    for name in HOSTILE:
        server.ask("POST", "/v1/classes", {"name": name})
    seen.page.reload()
    expect(seen.page.locator(".column")).to_have_count(2)
    for name, kind in zip(HOSTILE, ("ball", "star"), strict=True):
        seen.add_photos(name, photos[kind][:3])
    for step in tools.STEPS:
        seen.go(step)
        if step == "try":
            seen.try_photo(photos["ball"][4])
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360, step
    assert seen.page.locator("img[onerror]").count() == 0
    assert seen.complaints == []


def test_the_first_paint_waits_for_little(visit):
    """The page, its style and the choice of colours: 30 kB. Everything else is loaded after it."""
    entries = visit().page.evaluate(
        """performance.getEntries().map((one) => [new URL(one.name, location).pathname,
        one.entryType, one.renderBlockingStatus, one.encodedBodySize])"""
    )
    needed = {
        path: size
        for path, kind, blocking, size in entries
        if kind == "navigation" or (kind == "resource" and blocking == "blocking")
    }
    assert set(needed) == {"/", "/static/style.css", "/static/theme.js"}
    assert 0 < sum(needed.values()) < 30_000


def test_colours_follow_the_system_and_the_button(visit):
    for scheme in ("light", "dark"):
        seen = visit(scheme=scheme)
        assert is_light(seen.page) is (scheme == "light")
        seen.page.get_by_role("button", name="Light or dark").click()
        assert is_light(seen.page) is (scheme == "dark")
        seen.page.reload()
        assert is_light(seen.page) is (scheme == "dark")


def test_whole_page_comes_from_the_server_alone(visit, server):
    seen = visit()
    for step in tools.STEPS:
        seen.go(step)
    assert all(url.startswith(server.origin) for url in seen.requests)
    assert seen.complaints == []
    served = {Path(url).name for url in seen.requests if "/static/" in url}
    assert served >= {file.name for file in STATIC.glob("*.js")}


def test_undo_leaves_typing_in_a_field_alone(visit, server):
    seen = visit()
    seen.add_class("crab")
    field = seen.page.locator("#new-class-name")
    field.type("dolphin")
    seen.page.keyboard.press("Control+z")
    assert server.labels().keys() == {"crab"}
    seen.page.locator("h2").first.focus()
    seen.page.keyboard.press("Control+z")
    expect(seen.page.locator(".column")).to_have_count(0)


def is_light(page):
    with Image.open(BytesIO(page.screenshot())) as picture:
        return bool(np.asarray(picture.convert("L"), dtype=float).mean() > 128)
