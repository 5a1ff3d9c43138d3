"""The pictures of the documentation: the page on a real server, the report, the drawn pictures.

`python benchmarks/screenshots.py` takes some minutes; it needs playwright and a chromium on the
PATH.
All images in them are drawn by `gpcache.images.drawn`: nobody's photographs are shown.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from serving import served

from gpcache.images.drawn import DRAWN_CLASSES, draw_picture, draw_pictures

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "images"
CLASSES = ("knitting", "sea", "wood")
EACH = 10
WIDTH = 1160


def opened(browser: Browser, address: str, *, width: int = WIDTH, scheme: str = "light") -> Page:
    """A window on the page."""
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.goto(address)
    expect(page.locator("#summary")).to_contain_text("photo")
    return page


def go(page: Page, step: str) -> None:
    """Open a step."""
    page.locator(f"nav a[href='#{step}']").click()
    expect(page.locator(f"#{step}")).to_be_visible()


def take(page: Page, name: str, height: int) -> None:
    """Write a picture of the top of the page, once all of it is there."""
    page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    # Notices say what was just done, and go after some seconds.
    expect(page.locator("#messages")).to_be_empty()
    page.mouse.move(0, 0)
    page.evaluate("for (const one of [window, document.querySelector('main')]) one.scrollTo(0, 0)")
    save(page, name)


def save(page: Page, name: str) -> None:
    """Write what the window shows, in 256 colours: a third of the size."""
    with Image.open(io.BytesIO(page.screenshot(animations="disabled"))) as picture:
        picture.convert("RGB").quantize().save(PICTURES / f"{name}.png", optimize=True)


def files(drawn: Path, name: str) -> list[str]:
    """The drawn pictures of a class."""
    return [str(file) for file in sorted((drawn / name).iterdir())]


def collect(page: Page, drawn: Path) -> None:
    """Three classes, one picture in the wrong one, and a prediction from class names only."""
    for name in CLASSES:
        page.locator("#new-class-name").fill(name)
        page.keyboard.press("Enter")
        put(page, name, files(drawn, name)[:EACH])
    put(page, "wood", [files(drawn, "sea")[EACH]])
    page.locator("#preview input").set_input_files(files(drawn, "knitting")[EACH + 1])
    expect(page.locator("#preview-answer img")).to_be_visible()
    page.locator("#new-class-name").blur()
    take(page, "web-collect", 980)


def put(page: Page, name: str, chosen: list[str]) -> None:
    """Give pictures to a class."""
    column = page.get_by_role("region", name=f"Class {name}", exact=True)
    count = column.locator("img").count() + len(chosen)
    column.locator("input[type=file]").set_input_files(chosen)
    expect(column.locator("img")).to_have_count(count)


def check(page: Page) -> None:
    """The figures, the suspect, and a cell of the grid; afterwards the label is fixed."""
    go(page, "check")
    page.locator("#confusion .wrong button").first.click()
    take(page, "web-check", 1180)
    page.get_by_role("button", name="Relabel to sea").click()
    expect(page.get_by_role("button", name="Relabel to sea")).to_have_count(0)


def ask(page: Page, drawn: Path) -> None:
    """A picture of a class, and one of none."""
    go(page, "try")
    asked = files(drawn, "sea")[EACH + 1], files(drawn, "clock")[0]
    for count, file in enumerate(asked, start=1):
        page.locator("#try-zone input").set_input_files(file)
        expect(page.locator("#answers > li")).to_have_count(count)


def grow(page: Page, drawn: Path) -> None:
    """Pictures to label next, of which three are labelled as the model guesses."""
    go(page, "grow")
    unlabelled = [one for name in CLASSES for one in files(drawn, name)[EACH + 2 : EACH + 6]]
    page.locator("#pool-choose input").first.set_input_files(unlabelled)
    expect(page.locator("#queue img")).to_have_count(10)
    for left in (9, 8, 7):
        page.keyboard.press("Enter")
        expect(page.locator("#queue img")).to_have_count(left)
    take(page, "web-grow-dark", 1260)


def report(browser: Browser, temporary: Path) -> None:
    """The report that `gpcache demo` writes, in light and dark colours."""
    place = temporary / "gpcache-demo"
    subprocess.run([sys.executable, "-m", "gpcache", "demo", "-o", place], check=True)
    page = place / "report.html"
    # Where the folder lies on this machine concerns nobody.
    page.write_text(page.read_text().replace(f"{temporary}/", ""))
    narrow = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    wide = browser.new_page(viewport={"width": 1200, "height": 1190})
    for window, name in ((narrow, "report-narrow-dark"), (wide, "report")):
        window.goto(page.as_uri())
        save(window, name)
    wide.set_viewport_size({"width": 1200, "height": 920})
    wide.get_by_role("link", name="Hardest test images").click()
    save(wide, "report-cases")


def contact_sheet(columns: int = 5, each: int = 2, size: tuple[int, int] = (200, 150)) -> None:
    """Some pictures of each class side by side."""
    (width, height), rows = size, len(DRAWN_CLASSES) // columns * each
    sheet = Image.new("RGB", (columns * width, rows * height))
    for (place, name), number in product(enumerate(DRAWN_CLASSES), range(each)):
        # The pictures of a class are below each other.
        column, row = place % columns, place // columns * each + number
        picture = draw_picture(name, 10 + number).resize(size, Image.Resampling.LANCZOS)
        sheet.paste(picture, (column * width, row * height))
    sheet.save(PICTURES / "drawn.jpg", quality=85)


def main() -> None:
    """Draw, then go through the steps of the page once, in windows of three kinds."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    expect.set_options(timeout=60_000)  # the machine may be busy
    contact_sheet()
    with (
        tempfile.TemporaryDirectory() as temporary,
        tempfile.TemporaryDirectory() as workspace,
        served(Path(workspace), photos=0) as server,
        sync_playwright() as driver,
    ):
        address = f"{server.address}/?token={server.token}"
        drawn = draw_pictures(Path(temporary) / "drawn", (*CLASSES, "clock"), each=EACH + 6)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = opened(browser, address)
        paints = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        print(f"The first paint took {page.evaluate(paints):.0f} ms (goal: less than 1,000).")
        collect(page, drawn)
        check(page)
        ask(page, drawn)
        take(page, "web-try", 820)
        grow(opened(browser, address, scheme="dark"), drawn)
        narrow = opened(browser, address, width=390)
        ask(narrow, drawn)
        take(narrow, "web-narrow", 844)
        report(browser, Path(temporary))
        browser.close()


if __name__ == "__main__":
    main()
