"""The step Check in a real browser: what looks wrong cannot be fixed into a ruin."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)
expect = tools.playwright and tools.playwright.expect

pytestmark = tools.needs_chromium
MOST_PRESSES = 45


@pytest.fixture(scope="session")
def trash(tmp_path_factory):
    """Sixty photos of six materials, which are hard, and one that lies in the wrong class."""
    folder = tools.DATA / "trash6" / "train"
    if not folder.exists():
        pytest.skip(f"{folder} is absent: set GPCACHE_DEV_DATA to the development data")
    named = tmp_path_factory.mktemp("trash")
    photos = {
        kind.name: [
            Path(shutil.copy(file, named / f"{kind.name}-{file.name}"))
            for file in sorted(kind.iterdir())[:10]
        ]
        for kind in sorted(folder.iterdir())
    }
    stray = sorted((folder / "glass").iterdir())[10]
    photos["cardboard"].append(Path(shutil.copy(stray, named / "stray.jpg")))
    return photos


def figure(page):
    return int(re.search(r"(\d+)(?:\.\d)? %", page.locator("#accuracy strong").inner_text())[1])


def settled(seen, server):
    """What the server says, once the page shows it."""
    found = server.ask("GET", "/v1/loo")
    suspects = sorted(found["suspects"], key=lambda one: not one["certain"])
    cards = seen.page.locator("li.suspect p")
    expect(cards).to_have_text([one["reason"] for one in suspects])
    expect(seen.page.locator("#accuracy strong")).to_have_text(
        re.compile(f"^{100 * found['accuracy']:.0f}")
    )
    return found


def wait_for_proposals(page, server, count):
    """Until the server has so many labels that the model proposed."""
    for _ in range(300):
        if (found := server.ask("GET", "/v1/loo")["proposed"]) == count:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{found} labels are proposals instead of {count}")


def test_pressing_r_on_everything_ruins_nothing_silently(trash, server, visit):
    seen = visit()
    page = seen.page
    seen.collect(trash)
    seen.go("check")
    first, labels = settled(seen, server), server.labels()
    shown, warnings, presses = [figure(page)], [], 0
    while page.locator("li.suspect button[data-key=r]", has_text="Relabel to").count():
        assert presses < MOST_PRESSES
        card = page.locator("li.suspect").filter(has_text="Relabel to").first
        card.focus()
        page.keyboard.press("r")
        presses += 1
        if page.locator("dialog[open]").count():
            warnings.append(page.locator("dialog[open]").inner_text())
            page.get_by_role("button", name="Relabel anyway").click()
        wait_for_proposals(page, server, presses)
        settled(seen, server)
        shown.append(figure(page))
    assert presses > 3
    assert shown == sorted(shown, reverse=True)
    expect(page.locator("#accuracy")).to_contain_text("that the model proposed")
    for name, after in server.labels().items():
        left = set(labels[name]) & set(after)
        if 3 * (len(labels[name]) - len(left)) >= len(labels[name]):
            assert any(f"“{name}”" in sentence for sentence in warnings)
        if not after:
            assert any(f"“{name}”: the class will be empty" in one for one in warnings)
    for left in reversed(range(presses)):
        page.keyboard.press("Control+z")
        wait_for_proposals(page, server, left)
        settled(seen, server)
    expect(page.locator("#accuracy")).not_to_contain_text("proposal")
    assert settled(seen, server) == first
    assert server.labels() == labels
    assert seen.complaints == []


def test_the_last_photo_of_a_class_is_not_taken_without_a_warning(drawn, server, visit):
    photos, _ = drawn
    seen = visit()
    page = seen.page
    seen.collect({"ball": photos["ball"][:6], "ladder": photos["ladder"][:6]})
    seen.collect({"star": [photos["star"][0], photos["ball"][6]]})
    seen.go("check")
    settled(seen, server)
    card = page.get_by_label("Suspect ball-6.png")
    card.first.focus()
    page.keyboard.press("z")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Zoom")).to_be_visible()
    page.keyboard.press("z")
    expect(dialog.locator(".zoom")).to_have_class(re.compile("near"))
    dialog.get_by_role("button", name="Close").click()
    card.first.locator("img").click()
    dialog.get_by_role("button", name="Close").click()
    card.first.focus()
    page.keyboard.press("d")
    expect(dialog).to_contain_text("With this, “star” has lost 1 of the 2 photos")
    page.keyboard.press("d")  # no key of the page works meanwhile
    dialog.get_by_role("button", name="Leave it").click()
    assert len(server.labels()["star"]) == 2
    page.keyboard.press("d")
    dialog.get_by_role("button", name="Drop anyway").click()
    expect(page.locator("#summary")).to_contain_text("13 photos")
    seen.go("collect")
    expect(seen.column("star").locator("img")).to_have_count(1)
    assert seen.complaints == []
