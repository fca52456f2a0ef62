"""Connections as JSON: of the schema that the document has, with rates of two views."""

from __future__ import annotations

from typing import Any

from peeklock.api.connections import CONNECTION, Where, connection_json, counts_of
from peeklock.api.schema import check
from peeklock.gateway.views import Client, ConnectionView, LinkView

WHERE = Where(7, "ns", "10.0.0.1:4000", False, 1_000_000)


def link(deliveries: int, handle: int = 0, session_id: str | None = None) -> LinkView:
    return LinkView("orders", "receiver", 10, 3, deliveries, (0, handle), session_id)


def rendered(before: ConnectionView | None, now: ConnectionView, elapsed_s: float = 2.0) -> dict[str, Any]:
    counts = {} if before is None else counts_of(before)
    found = connection_json(WHERE, now, counts, elapsed_s, 1_004_500)
    assert check(found, CONNECTION, {}) == found
    return found


def view(*links: LinkView) -> ConnectionView:
    return ConnectionView(Client("azsdk", "7.1", "c"), ["web"], list(links))


def test_a_connection_has_what_the_document_says() -> None:
    found = rendered(view(link(100)), view(link(140, session_id="s")))
    assert (found["id"], found["namespace"], found["peer"], found["tls"]) == (7, "ns", "10.0.0.1:4000", False)
    assert (found["identities"], found["ageSeconds"]) == (["web"], 4.5)
    assert found["openedAt"] == "1970-01-01T00:16:40.000Z"
    assert found["links"][0] == {
        "entity": "orders",
        "role": "receiver",
        "credit": 10,
        "unsettled": 3,
        "deliveries": 140,
        "rate": 20.0,
        "sessionId": "s",
    }


def test_rates_are_of_the_time_between_two_views() -> None:
    before = view(link(100, 0), link(50, 1), link(30, 2))
    after = view(link(110, 0), link(4, 1), link(30, 2), link(6, 3))  # 1 is another link, 3 a new one
    found = rendered(before, after)
    assert [each["rate"] for each in found["links"]] == [5.0, 2.0, 0.0, 3.0]
    assert found["rate"] == 10.0
    assert rendered(None, view(link(8)))["rate"] == 4.0


def test_a_connection_without_links_is_shown() -> None:
    assert rendered(None, view())["links"] == []
