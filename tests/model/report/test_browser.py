"""The page in a real browser: no complaint, no request, light and dark, on a phone, sortable."""

import shutil
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from gpcache.model.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a report in a window; returns the page, what it complained of and what it asked for."""
    contexts = []

    def opened(report, *, width=1200, scheme="light", scripts=True):
        file = tmp_path / "report.html"
        write_report(report, file)
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page, complaints, requests = context.new_page(), [], []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page, complaints, [r for r in requests if not r.startswith("data:")]

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(full, visit, scheme):
    page, complaints, requests = visit(full(), scheme=scheme)
    assert complaints == []
    assert requests == [page.url]
    with Image.open(BytesIO(page.screenshot())) as picture:
        brightness = np.asarray(picture.convert("L"), dtype=float)
    assert brightness.std() > 10
    assert (brightness.mean() > 200) if scheme == "light" else (brightness.mean() < 80)


def test_hostile_names_do_nothing_and_fit(hostile, visit):
    for width in (1200, 360):
        page, complaints, requests = visit(hostile, width=width)
        assert complaints == []
        assert requests == [page.url]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_columns_sort_by_number_and_back(full, visit):
    page, complaints, _ = visit(full(c=12))
    table = page.locator("table[data-sortable]")
    head = table.get_by_role("columnheader").filter(has_text="precision")
    head.get_by_role("button").press("Enter")
    cells = "[...document.querySelectorAll('table[data-sortable] tbody tr')].map(r => r.cells[3])"
    up = page.evaluate(f"{cells}.map(c => +c.dataset.value)")
    assert up == sorted(up)
    assert len(set(up)) > 3
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").click()
    assert page.evaluate(f"{cells}.map(c => +c.dataset.value)") == sorted(up, reverse=True)
    assert complaints == []


def test_page_is_complete_without_scripts(full, visit):
    page, complaints, _ = visit(full(), scripts=False)
    assert complaints == []
    assert page.locator("table[data-sortable] tbody tr").count() == 5
    assert page.locator("button").count() == 0


def test_words_contrast_with_their_ground(full, visit):
    """WCAG 2 AA, 4.5 : 1, for the inks of the style sheet on the grounds they stand on."""
    for scheme in ("light", "dark"):
        page, _, _ = visit(full(), scheme=scheme)
        value = "getComputedStyle(document.documentElement).getPropertyValue"
        colour = {n: page.evaluate(f"{value}('--{n}').trim()") for n in
                  ("page", "surface", "ink", "muted", "for", "against")}  # fmt: skip
        for ground in ("page", "surface"):
            for ink in ("ink", "muted", "for", "against"):
                assert contrast(colour[ink], colour[ground]) >= 4.5, (scheme, ink, ground)


def contrast(first, second):
    def luminance(colour):
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)
