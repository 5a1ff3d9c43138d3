"""The pictures of docs/get-started/browser.md: the page on a real server, with photos beside the project.

`python benchmarks/screenshots.py` takes a minute; it needs playwright and a chromium on the PATH.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from development_data import folder
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "images"
CLASSES = ("butterfly", "crab", "dolphin")
EACH = 10
WIDTH = 1160


@contextmanager
def served() -> Iterator[str]:
    """The address of `gpcache serve` on an empty workspace."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "gpcache", "serve", "--port", "0", "--workspace"]
        process = subprocess.Popen(
            [*command, temporary], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        process.wait(30)


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
    width = page.viewport_size["width"] if page.viewport_size else WIDTH
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    # Notices say what was just done, and go after some seconds.
    expect(page.locator("#said")).to_be_empty(timeout=30_000)
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")
    with Image.open(io.BytesIO(page.screenshot(animations="disabled"))) as picture:
        # 256 colours: a third of the size.
        picture.convert("RGB").quantize().save(PICTURES / f"{name}.png", optimize=True)


def photos(name: str) -> list[Path]:
    """The photos of a class."""
    return sorted((folder("images") / "caltech20" / "train" / name).iterdir())


def collect(page: Page) -> None:
    """Three classes, one photo in the wrong one, and what the names alone say of another."""
    for name in CLASSES:
        page.locator("#new-class-name").fill(name)
        page.keyboard.press("Enter")
        put(page, name, photos(name)[:EACH])
    put(page, "dolphin", [photos("crab")[EACH]])
    page.locator("#preview input").set_input_files(str(photos("dolphin")[EACH]))
    expect(page.locator("#preview-answer img")).to_be_visible()
    page.locator("#new-class-name").blur()
    take(page, "web-collect", 980)


def put(page: Page, name: str, files: list[Path]) -> None:
    """Give photos to a class."""
    column = page.get_by_role("region", name=f"Class {name}", exact=True)
    count = column.locator("img").count() + len(files)
    column.locator("input[type=file]").set_input_files([str(file) for file in files])
    expect(column.locator("img")).to_have_count(count, timeout=60_000)


def check(page: Page) -> None:
    """The figures, the suspect, and a cell of the grid; afterwards the label is mended."""
    go(page, "check")
    page.locator("#confusion .wrong button").first.click()
    take(page, "web-check", 1180)
    page.get_by_role("button", name="Relabel to crab").click()
    expect(page.get_by_role("button", name="Relabel to crab")).to_have_count(0)


def ask(page: Page) -> None:
    """A photo of a class, and one of none."""
    go(page, "try")
    stranger = sorted((folder("images") / "unlabelled").iterdir())[0]
    for count, file in enumerate((photos("butterfly")[EACH + 1], stranger), start=1):
        page.locator("#try-zone input").set_input_files(str(file))
        expect(page.locator("#answers > li")).to_have_count(count)


def grow(page: Page, pool: Path) -> None:
    """Photos to label next, of which three are labelled as the model guesses."""
    go(page, "grow")
    files = [
        shutil.copy(file, pool / f"{name}-{file.name}")
        for name in CLASSES
        for file in photos(name)[EACH + 2 : EACH + 6]
    ]
    page.locator("#pool-choose input").first.set_input_files([str(file) for file in files])
    expect(page.locator("#queue img")).to_have_count(10)
    for left in (9, 8, 7):
        page.keyboard.press("Enter")
        expect(page.locator("#queue img")).to_have_count(left)
    take(page, "web-grow-dark", 1260)


def main() -> None:
    """Go through the steps once, in windows of three kinds."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with served() as address, sync_playwright() as driver, tempfile.TemporaryDirectory() as pool:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = opened(browser, address)
        collect(page)
        check(page)
        ask(page)
        take(page, "web-try", 820)
        grow(opened(browser, address, scheme="dark"), Path(pool))
        narrow = opened(browser, address, width=390)
        ask(narrow)
        take(narrow, "web-narrow", 844)
        browser.close()


if __name__ == "__main__":
    main()
