"""The frame of the page: themes, narrow windows, a path of a proxy, and text that means harm."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit

pytestmark = pytest.mark.page

HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe\u0000\u200b\ud800end"
PREFIX = "/broker"


@pytest.fixture
def proxy(broker: ExploredBroker) -> Iterator[int]:
    """A proxy that serves the broker below a path; its port."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path.startswith(f"{PREFIX}/")
            behind = http.client.HTTPConnection("localhost", broker.http_port, timeout=20)
            headers = {name: text for name, text in self.headers.items() if name.lower() != "host"}
            behind.request("GET", self.path.removeprefix(PREFIX), headers=headers)
            answer = behind.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, text in answer.getheaders():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(content)
            behind.close()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_works_below_a_path(proxy: int, open_page: OpenPage) -> None:
    page = open_page(f"http://localhost:{proxy}{PREFIX}/")
    page.locator(".entity-name", has_text="orders").click()
    page.wait_for_selector("h1:has-text('orders')")
    assert page.url.startswith(f"http://localhost:{proxy}{PREFIX}/#/entities/orders")


def test_the_theme_is_that_of_the_system_until_it_is_chosen(
    broker: ExploredBroker, open_page: OpenPage
) -> None:
    page = open_page(broker.url, color_scheme="dark")
    page.wait_for_selector("h1")
    back = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.get_by_role("button", name="Theme: auto").click()
    light = page.evaluate(back)
    assert light != dark
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(back) == dark
    page.get_by_role("button", name="Theme: dark").click()
    assert page.evaluate(back) == light


def test_the_menu_of_a_narrow_window_opens_and_closes(broker: ExploredBroker, open_page: OpenPage) -> None:
    page = open_page(broker.url, viewport={"width": 360, "height": 700})
    item = page.get_by_role("link", name="Connect", exact=True)
    page.get_by_role("button", name="Menu").click()
    item.click()
    page.wait_for_selector("h1:has-text('Connect')")
    item.wait_for(state="hidden")


def test_a_place_that_is_not_there_says_so(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("nowhere/at/all"))
    page.wait_for_selector("text=There is no such page")


def test_an_entity_that_is_not_there_says_so(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("entities/none"), expected=("404",))
    page.wait_for_selector(".refusal:has-text('none')")


def test_hostile_text_is_shown_for_what_it_is(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.url)
    page.wait_for_selector("h1")
    found = page.evaluate(
        "async (text) => {"
        "  const { html, render } = await import('./$explorer/lib.js');"
        "  const { Code, Text } = await import('./$explorer/ui.js');"
        "  const box = document.createElement('div');"
        "  document.querySelector('main').append(box);"
        "  render(html`<p id=text><${Text} value=${text} /></p>"
        "    <div id=code><${Code} text=${text} noCopy /></div>`, box);"
        "  const counted = box.querySelectorAll('img').length;"
        "  box.remove();"
        "  return [box.querySelector('#text').textContent, box.querySelector('#code').textContent, counted];"
        "}",
        HOSTILE,
    )
    shown = r"<img src=x onerror=alert(1)>\u202egnp.exe\x00\u200b\ud800end"
    assert found == [shown, shown + "\n", 0]


@pytest.mark.parametrize(
    ("text", "indented"),
    [
        (
            '{"a":[1,{"b":"x, {y}"}],"c":{}}',
            '{\n  "a": [\n    1,\n    {\n      "b": "x, {y}"\n    }\n  ],\n  "c": {}\n}',
        ),
        ('{"n":12345678901234567890,"n":1.10}', '{\n  "n": 12345678901234567890,\n  "n": 1.10\n}'),
        ("[]", "[]"),
        ('"one"', '"one"'),
        ("{not json}", "{not json}"),
    ],
)
def test_json_is_indented_and_stays_what_it_is(
    broker: ExploredBroker, visit: Visit, text: str, indented: str
) -> None:
    """Numbers beyond 2**53 and repeated names too, which parsing would change."""
    page = visit(broker.url)
    indent = "async (text) => (await import('./$explorer/ui/code.js')).indentJson(text)"
    assert page.evaluate(indent, text) == indented


def test_figures_are_written_as_intl_does(broker: ExploredBroker, visit: Visit) -> None:
    """Which the page does without: its first use takes long."""
    page = visit(broker.url)
    both = """async (values) => {
      const { number } = await import('./$explorer/format.js');
      const intl = new Intl.NumberFormat("en");
      return values.map((value) => [number(value), intl.format(value)]);
    }"""
    values = [0, 7, 999, 1000, 12_345, 123_456, 1_234_567, -12, -1234, 12.5, 1234.567]
    for own, published in page.evaluate(both, values):
        assert own == published


@pytest.mark.parametrize(
    ("text", "module", "function", "size"),
    [
        ("[" + "{}," * 40_000 + "{}]", "ui/code.js", "indentJson", 240_008),
        ("[" * 25_000 + "]" * 25_000, "ui/code.js", "indentJson", 3_297_822),
        ("<a>" * 25_000 + "</a>" * 25_000, "messages/xml.js", "indentXml", 3_422_822),
    ],
)
def test_no_body_takes_an_indentation_long(
    broker: ExploredBroker, visit: Visit, text: str, module: str, function: str, size: int
) -> None:
    """A quadratic one would hang the page of an operator for a minute."""
    page = visit(broker.url)
    measure = """async ([text, module, name]) => {
      const indent = (await import(`./$explorer/${module}`))[name];
      const begun = performance.now();
      return [indent(text).length, performance.now() - begun];
    }"""
    length, spent_ms = page.evaluate(measure, [text, module, function])
    assert length == size
    assert spent_ms < 10_000
