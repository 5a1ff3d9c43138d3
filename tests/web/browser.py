"""A real server, real photos and a real browser for the tests of the page."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import playwright.sync_api as playwright
except ImportError:
    playwright = None
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    playwright is None or CHROMIUM is None, reason="no playwright, or no chromium on the PATH"
)

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared")) / "images"
if playwright is not None:
    # Beside Ray nodes and other browsers on two cores, a page may take long.
    playwright.expect.set_options(timeout=300_000)
# With an encoder that starts at once.
TINY = (str(Path(__file__).with_name("program.py")),)
LITE = ("-m", "gpcache", "serve", "--port", "0", "--workspace")
STEPS = ("collect", "check", "try", "grow", "use")


class Server:
    """A server on a workspace, in a process of its own."""

    def __init__(self, workspace, command=LITE):
        self.log = workspace.parent / f"{workspace.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", *command, str(workspace)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self.address = self._printed_address()
        self.origin, self.token = self.address.split("/?token=")

    def _printed_address(self):
        for _ in range(3_000):
            found = re.search(r"https?://\S+\?token=[\w-]+", self.log.read_text())
            if found:
                return found[0]
            try:
                self.process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        self.kill()
        raise AssertionError(f"The server printed no address: {self.log.read_text()}")

    def ask(self, method, path, content=None):
        """What the server answers to one request, past the page."""
        body = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.origin + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def labels(self):
        """The names of the photos by class."""
        state = self.ask("GET", "/v1/state")
        return {
            entry["name"]: [p["name"] for p in state["photos"] if p["label"] == entry["name"]]
            for entry in state["classes"]
        }

    def clear(self):
        """Delete every class, its photos with it, and the pool."""
        for name in self.labels():
            self.ask("DELETE", "/v1/classes", {"name": name})
        pool = self.ask("GET", "/v1/suggest?count=100")["photos"]
        if pool:
            self.ask("DELETE", "/v1/examples", {"ids": [photo["id"] for photo in pool]})

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Visitor:
    """A window on the page, what it complained of and what it asked for."""

    def __init__(self, context, address):
        self.context = context
        self.page = context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.open(address)

    def open(self, address):
        self.page.goto(address)
        try:
            playwright.expect(self.page.locator("#summary")).to_contain_text("photo")
        except AssertionError as error:
            error.add_note(f"complaints {self.complaints}, requests {self.requests}")
            raise

    def go(self, step):
        self.page.locator(f"nav a[href='#{step}']").click()
        playwright.expect(self.page.locator(f"#{step}")).to_be_visible()

    def column(self, name):
        return self.page.get_by_role("region", name=f"Class {name}", exact=True)

    def add_class(self, name):
        self.page.locator("#new-class-name").fill(name)
        self.page.keyboard.press("Enter")
        playwright.expect(self.column(name)).to_be_visible()

    def add_photos(self, name, files):
        """Choose files for a class and wait until the server has them."""
        column = self.column(name)
        before = column.locator("img").count()
        column.locator("input[type=file]").set_input_files(list(map(str, files)))
        playwright.expect(column.locator("img")).to_have_count(before + len(files))

    def collect(self, photos):
        for name, files in photos.items():
            self.add_class(name)
            self.add_photos(name, files)

    def try_photo(self, file):
        """The card that answers what a photo is."""
        before = self.page.locator("#answers > li").count()
        self.page.locator("#try-zone input").set_input_files(str(file))
        playwright.expect(self.page.locator("#answers > li")).to_have_count(before + 1)
        return self.page.locator("#answers > li").first

    def drop(self, target, *paths):
        """Let files or folders fall on an element, as the desktop does."""
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + min(box["height"] / 2, 40)}
        data = {"items": [], "files": list(map(str, paths)), "dragOperationsMask": 1}
        session = self.context.new_cdp_session(self.page)
        for kind in ("dragEnter", "dragOver", "drop"):
            session.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})


@contextmanager
def steady_network():
    """No test changes the machine's interfaces meanwhile: see tests/cluster/ray_nodes.py."""
    place = Path(tempfile.gettempdir()) / "gpcache-network.lock"
    with place.open("a") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


# Not for the session: while it lives, no other test of this thread can run an event loop.
@pytest.fixture(scope="module")
def browser():
    camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *camera])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    """`gpcache serve`, one for all tests."""
    server = Server(tmp_path_factory.mktemp("served") / "workspace")
    yield server
    server.kill()


@pytest.fixture
def server(running):
    """The server with an empty workspace."""
    running.clear()
    return running


@pytest.fixture
def visit(browser, server):
    """Opens a window on the page of the server."""
    contexts = []

    def opened(address=None, *, width=1200, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        return Visitor(context, address or server.address)

    with steady_network():
        yield opened
        for context in contexts:
            context.close()


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Ten pictures each of three kinds, drawn, and five of noise, unlike all of them."""
    folder, generator = tmp_path_factory.mktemp("drawn"), np.random.default_rng(0)
    photos = {}
    for kind, draw in (("ball", _ball), ("ladder", _ladder), ("star", _star)):
        (folder / kind).mkdir()
        photos[kind] = []
        for number in range(10):
            file = folder / kind / f"{kind}-{number}.png"
            draw(generator).save(file)
            photos[kind].append(file)
    noise = [folder / f"noise-{number}.png" for number in range(5)]
    for file in noise:
        Image.fromarray(generator.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(file)
    return photos, noise


@pytest.fixture(scope="session")
def photographed(tmp_path_factory):
    """Ten photos each of three kinds, and five of a fourth."""
    if not DATA.exists():
        pytest.skip(f"{DATA} is absent: set GPCACHE_DEV_DATA to the development data")
    folder = DATA / "caltech20" / "train"
    named = tmp_path_factory.mktemp("photographed")
    photos = {}
    for kind in ("accordion", "airplane", "butterfly", "elephant"):
        # Every class has an image_0001.jpg; here names tell photos apart.
        photos[kind] = [
            shutil.copy(file, named / f"{kind}-{file.name}")
            for file in sorted((folder / kind).iterdir())[:10]
        ]
    return photos, photos.pop("elephant")[:5]


def _canvas(generator):
    ground = tuple(generator.integers(215, 256, 3).tolist())
    image = Image.new("RGB", (224, 224), ground)
    return image, ImageDraw.Draw(image), generator.integers(40, 80, 2)


def _ball(generator):
    image, pen, (x, y) = _canvas(generator)
    pen.ellipse((x, y, x + 110, y + 110), fill=(200, int(generator.integers(20, 70)), 30))
    return image


def _ladder(generator):
    image, pen, (x, y) = _canvas(generator)
    colour = (30, 60, int(generator.integers(130, 200)))
    for side in (x, x + 70):
        pen.line((side, 10, side, 214), fill=colour, width=9)
    for rung in range(int(y) // 2, 214, 26):
        pen.line((x, rung, x + 70, rung), fill=colour, width=7)
    return image


def _star(generator):
    image, pen, (x, y) = _canvas(generator)
    angles = np.arange(10) * np.pi / 5 + generator.random()
    radii = np.where(np.arange(10) % 2, 30, 80)
    corners = zip(x + 60 + radii * np.cos(angles), y + 60 + radii * np.sin(angles), strict=True)
    pen.polygon([*corners], fill=(20, int(generator.integers(120, 170)), 60))
    return image
