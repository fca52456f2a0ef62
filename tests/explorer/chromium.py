"""Starting Debian's Chromium, and watching a page for what should not be."""

from __future__ import annotations

from collections.abc import Sequence

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright

ARGUMENTS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


def launch(playwright: Playwright, executable: str) -> Browser:
    return playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))


def watch(page: Page, faults: list[str], expected: Sequence[str] = ()) -> None:
    """Note each error of a page in `faults`, but those with a text of `expected` in them."""

    def note(text: str) -> None:
        if not any(part in text for part in expected):
            faults.append(text)

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            note(f"console: {message.text} {message.location.get('url', '')}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: note(f"page: {error}"))
    page.add_init_script(_VIOLATIONS)
