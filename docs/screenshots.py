"""Write the pictures of the explorer in docs/how-to/explorer: each view in both themes.

    PYTHONPATH=src:. python -m docs.screenshots [VIEW...]

It needs Chromium and Pillow. The broker and the places are those of the tests in tests/explorer.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from tests.explorer.brokers import ExploredBroker
from tests.explorer.chromium import launch, watch
from tests.explorer.places import VIEWS, shown

FOLDER = Path(__file__).parent / "how-to" / "explorer"
SIZE: ViewportSize = {"width": 1280, "height": 800}
COLOURS = 256
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def save(name: str, picture: bytes) -> None:
    """Write a picture with few colours: a tenth of the size, and no difference to see."""
    image = Image.open(BytesIO(picture)).convert("RGB").quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE)
    image.save(FOLDER / f"{name}.png", optimize=True)


def draw(browser: Browser, broker: ExploredBroker, names: list[str]) -> None:
    """Write the pictures of some views."""
    for scheme in SCHEMES:
        faults: list[str] = []
        context = browser.new_context(viewport=SIZE, color_scheme=scheme)
        page = context.new_page()
        watch(page, faults)
        for name in names:
            page.goto(broker.at(VIEWS[name]))
            shown(page)
            page.wait_for_timeout(2500 if name == "overview" else 400)  # charts and late lines
            save(f"{name}-{scheme}", page.screenshot())
        context.close()
        assert faults == [], faults


def main(names: list[str]) -> None:
    """Write the pictures of the views with these names; of all, without any."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "apt-get install chromium"
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        ExploredBroker(Path(folder)) as broker,
        sync_playwright() as playwright,
    ):
        broker.fill()
        browser = launch(playwright, chromium)
        draw(browser, broker, names or list(VIEWS))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
