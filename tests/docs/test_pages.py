"""Every page runs, fits on a screen where it is a how-to, and links to what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PARTS = ("get-started", "how-to", "concepts", "reference")
PAGES = sorted(
    [ROOT / "README.md", *(page for part in PARTS for page in (DOCS / part).glob("*.md"))]
)
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
RUNNING = [page for page in PAGES if re.search(r"```(sh|python)\n", page.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, run_page):
    run_page(page)


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_how_to_fits_on_a_screen(page):
    assert len(page.read_text().splitlines()) <= 65


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text)
    built = ("../gallery",)  # made by sphinx-gallery
    missing = [
        target
        for target in targets
        if not (page.parent / target).exists() and not target.startswith(built)
    ]
    assert missing == []


# Sentences that nobody understood; they must not come back.
GONE = [
    "So many classes an image",
    "so large a share of all",
    "knows when it does not know out",
    "to learn it anew",
    "at the numbers in use",
    "nats in all",
    "no shot is of it",
    "of so many rows is inverted",
    "everything learned anew",
    "told to come back",
    "the names alone say",
    "as far as its label is believed",
]
# Names that misled readers.
FORMER_NAMES = ("told", "errors_told", "_is_silent", "_weighs_anew", "_knows_shots_alone")
FORMER_NAMES += ("said_of_copies", "Judge", "JUDGED", "Belief")


@pytest.mark.parametrize("sentence", GONE)
def test_no_riddle_is_left(sentence):
    files = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.py")]
    for kind in ("py", "html", "js"):
        files += (ROOT / "src").rglob(f"*.{kind}")
    found = [file for file in files if sentence in " ".join(file.read_text().split())]
    assert found == []


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_no_misleading_name_is_left(name):
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js")]
    files += (ROOT / "benchmarks").glob("*.py")
    assert [file for file in files if re.search(rf"\b{name}\b", file.read_text())] == []
