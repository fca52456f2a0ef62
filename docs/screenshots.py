"""Write the pictures of the explorer in docs/how-to/explorer: each view in both themes.

    PYTHONPATH=src:. python -m docs.screenshots [VIEW...]

It needs Chromium and Pillow. The broker and the places are those of the tests in tests/explorer.
"""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Literal

from azure.servicebus import ServiceBusClient
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from peeklock.demo.broker import BrokerProcess
from tests.explorer.brokers import ExploredBroker
from tests.explorer.chromium import launch, watch
from tests.explorer.places import VIEWS, shown
from tests.kept_keys import KeptKeys

FOLDER = Path(__file__).parent / "how-to" / "explorer"
SIZE: ViewportSize = {"width": 1280, "height": 800}
COLOURS = 256
CHART_MS = 90_000
"""Of what the charts show."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def save(name: str, picture: bytes) -> None:
    """Write a picture with few colours: a tenth of the size, and no difference to see."""
    image = Image.open(BytesIO(picture)).convert("RGB").quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE)
    image.save(FOLDER / f"{name}.png", optimize=True)


def open_pages(browser: Browser, url: str, faults: list[str]) -> dict[str, Page]:
    """Open a page for each theme."""
    pages: dict[str, Page] = {}
    for scheme in SCHEMES:
        pages[scheme] = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()
        watch(pages[scheme], faults)
        pages[scheme].goto(url)
    return pages


def make_traffic(broker: ExploredBroker, stopped: threading.Event) -> None:
    """Send and complete messages in waves, so that the charts have something to show."""
    locks = "entities/letters/locks"
    for turn in itertools.count():
        if stopped.wait(0.4):
            return
        broker.send("letters", [{"body": f"letter {turn}"}] * int(12 + 9 * math.sin(turn / 9)))
        many = {"max": int(11 + 8 * math.sin(turn / 7 - 1))}
        for delivery in broker.api("POST", locks, many)["deliveries"]:
            broker.api("DELETE", f"{locks}/{delivery['lock']['token']}")


def draw(browser: Browser, broker: ExploredBroker, names: list[str]) -> None:
    """Write the pictures of some views; that of the overview last, since its charts fill slowly."""
    faults: list[str] = []
    overviews = open_pages(browser, broker.url, faults)
    pages = open_pages(browser, broker.url, faults)
    for name, (scheme, page) in itertools.product(names, pages.items()):
        if name not in ("overview", "keys"):
            page.goto(broker.at(VIEWS[name]))
            shown(page)
            page.wait_for_function("() => !document.querySelector('.progress-bar.unknown')")
            page.wait_for_timeout(400)  # lines that come late
            save(f"{name}-{scheme}", page.screenshot())
    if "overview" in names:
        pages["light"].wait_for_timeout(CHART_MS)
        for scheme, page in overviews.items():
            save(f"overview-{scheme}", page.screenshot())
            page.keyboard.press("Control+k")
            page.keyboard.type("e")
            save(f"palette-{scheme}", page.screenshot())
    assert faults == [], faults


def draw_keyed(browser: Browser, folder: Path) -> None:
    """Write the pictures that need a broker with keys."""
    with BrokerProcess(folder, ["--durability=os", "--auth=sas"]) as broker:
        keys = KeptKeys(broker.data)
        keys.add("web", ["Send"])
        keys.add("worker", ["Listen", "Send"])
        [rule] = [rule for rule in keys.load() if rule.name == "RootManageSharedAccessKey"]
        text = f"{broker.connection_string}SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key}"
        url = f"http://localhost:{broker.http_port}/"
        for scheme, page in open_pages(browser, f"{url}#/keys", []).items():
            page.wait_for_selector("h1")
            save(f"sign-in-{scheme}", page.screenshot())
            page.get_by_label("Connection string or token").fill(text)
            page.keyboard.press("Enter")
            page.wait_for_selector("main :text('worker')")
            page.wait_for_timeout(400)
            save(f"keys-{scheme}", page.screenshot())


def main(names: list[str]) -> None:
    """Write the pictures of the views with these names; of all, without any."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "apt-get install chromium"
    FOLDER.mkdir(exist_ok=True)
    stopped = threading.Event()
    with (
        tempfile.TemporaryDirectory() as folder,
        ExploredBroker(Path(folder)) as broker,
        sync_playwright() as playwright,
        ThreadPoolExecutor(1) as pool,
        ExitStack() as stack,
    ):
        broker.fill()
        client = stack.enter_context(ServiceBusClient.from_connection_string(broker.connection_string))
        for entity in ("shipping/europe", "letters"):
            receiver = stack.enter_context(client.get_queue_receiver(entity))
            receiver.peek_messages(max_message_count=1)
        browser = launch(playwright, chromium)
        broker.api("POST", "jobs", {"work": "move", "entity": "invoices/$deadletterqueue", "to": "letters"})
        broker.api("POST", "jobs", {"work": "resubmit", "entity": "orders/$deadletterqueue", "rate": 0.05})
        traffic = pool.submit(make_traffic, broker, stopped)
        try:
            draw(browser, broker, names or list(VIEWS))
        finally:
            stopped.set()
        traffic.result()
        if not names:
            (keyed := Path(folder, "keyed")).mkdir()
            draw_keyed(browser, keyed)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
