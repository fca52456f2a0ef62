"""How the page is served: headers, validators, compression, and to whom."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.explorer.files import HEADERS, read
from peeklock.testing.served import ServedBroker
from tests.explorer.brokers import ExploredBroker

Answer = tuple[int, dict[str, str], bytes]


def ask(port: int, method: str, path: str, **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ServedBroker() as broker:
        yield broker.port


def test_the_page_is_at_the_root_with_its_policy(port: int) -> None:
    status, headers, content = ask(port, "GET", "/")
    assert (status, content) == (200, read("index.html", asks_for_secret=False).content)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert set(HEADERS) <= set(headers.items())


def test_a_file_is_compressed_for_those_who_take_it(port: int) -> None:
    status, headers, content = ask(port, "GET", "/$explorer/app.css", Accept_Encoding="gzip, br")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert gzip.decompress(content) == ask(port, "GET", "/%24explorer/app.css")[2] == read("app.css").content


def test_a_current_file_is_not_sent_again(port: int) -> None:
    etag = ask(port, "GET", "/$explorer/app.js")[1]["ETag"]
    status, headers, content = ask(port, "GET", "/$explorer/app.js", If_None_Match=etag)
    assert (status, headers["ETag"], content) == (304, etag, b"")
    assert ask(port, "GET", "/$explorer/app.js", If_None_Match='"old"')[0] == 200


def test_a_file_is_only_read(port: int) -> None:
    status, _, content = ask(port, "HEAD", "/$explorer/views/overview.js")
    assert (status, content) == (200, b"")
    status, headers, _ = ask(port, "POST", "/")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/$explorer/", "/$explorer/files.py", "/$explorer/views/../files.py"])
def test_nothing_else_is_served(port: int, path: str) -> None:
    assert ask(port, "GET", path)[0] in (401, 404)


def test_a_broker_without_keys_serves_it_under_its_own_names_only(port: int) -> None:
    """A page of another site cannot read it, and so cannot use the well-known key."""
    assert ask(port, "GET", "/", Host="rebound.example")[0] == 421
    assert ask(port, "GET", "/live", Host="rebound.example")[0] == 200


def test_the_administration_keeps_the_root_of_its_clients(port: int) -> None:
    assert ask(port, "GET", "/?api-version=2021-05")[0] == 401


def test_a_broker_can_leave_it_out(tmp_path: Path) -> None:
    with ExploredBroker(tmp_path, ["--explorer=off"]) as broker:
        assert ask(broker.http_port, "GET", "/")[0] == 401
        assert ask(broker.http_port, "GET", "/$explorer/app.js")[0] == 401
