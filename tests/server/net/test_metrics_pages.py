"""`/metrics` of a real broker: totals, entities, patterns, keys."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from peeklock.auth import generate
from peeklock.demo.broker import BrokerProcess
from tests.kept_keys import KeptKeys


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("metrics")
    config = folder / "Config.json"
    queues = [{"Name": name} for name in ("orders", "orders-eu", "prices")]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": queues}]}}))
    with BrokerProcess(folder, ["--durability=os", f"--config={config}"]) as process:
        for _ in range(3):
            request = urllib.request.Request(
                f"http://127.0.0.1:{process.http_port}/orders/messages",
                b"x",
                {"Authorization": token()},
            )
            urllib.request.urlopen(request, timeout=10).close()
        yield process


def token() -> str:
    return generate("sb://localhost/", "RootManageSharedAccessKey", "SAS_KEY_VALUE", 4_000_000_000_000)


def page(broker: BrokerProcess, path: str, **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{broker.http_port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith(("text/plain; version", "application/openmetrics"))
        text: str = answer.read().decode()
    return text


def value(text: str, name: str, labels: Mapping[str, str]) -> float:
    (found,) = [
        sample.value
        for family in read_text(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return float(found)


def test_the_totals_are_those_of_the_namespace(broker: BrokerProcess) -> None:
    text = page(broker, "/metrics")
    shop = {"namespace": "shop"}
    assert value(text, "peeklock_messages_received_total", shop) == 3
    assert value(text, "peeklock_messages", {**shop, "state": "active"}) == 3
    assert value(text, "peeklock_entities", shop) == 3
    assert value(text, "peeklock_ready", shop) == 1
    assert value(text, "peeklock_oldest_message_age_seconds", shop) > 0
    assert value(text, "peeklock_send_seconds_count", shop) == 3
    assert value(text, "peeklock_commit_seconds_count", shop) >= 3
    assert value(text, "peeklock_batch_bytes_sum", shop) > 0
    assert value(text, "peeklock_build_info", {**shop, "durability": "os", "tier": "standard"}) == 1
    assert value(text, "process_resident_memory_bytes", shop) > 1_000_000
    assert 'entity="' not in text


def test_openmetrics_is_answered_where_it_is_accepted(broker: BrokerProcess) -> None:
    for path in ("/metrics", "/metrics/entities"):
        text = page(broker, path, Accept="application/openmetrics-text; version=1.0.0")
        families = [*read_openmetrics(text)]  # type: ignore[no-untyped-call]  # it has no types
        assert len(families) > 10


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", {"orders", "orders-eu", "prices"}),
        ("?match=orders.*", {"orders", "orders-eu"}),
        ("?match=PRICES", {"prices"}),
        ("?match=none", set()),
    ],
)
def test_entities_are_those_whose_name_matches(broker: BrokerProcess, query: str, names: set[str]) -> None:
    text = page(broker, f"/metrics/entities{query}")
    found = {sample.labels["entity"] for family in read_text(text) for sample in family.samples}
    assert found == names
    if names == {"prices"}:
        assert value(text, "peeklock_messages", {"entity": "prices", "state": "active"}) == 0


@pytest.mark.parametrize(("pattern", "said"), [("(", "not a regular expression"), ("(a*)*", "take too long")])
def test_a_pattern_that_cannot_be_used_is_refused(broker: BrokerProcess, pattern: str, said: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        page(broker, f"/metrics/entities?match={urllib.parse.quote(pattern)}")
    assert refused.value.code == 400
    assert said in refused.value.read().decode()


def test_with_keys_a_page_asks_for_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, ["--durability=os", "--auth=sas"]) as process:
        for path in ("/metrics", "/metrics/entities"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                page(process, path)
            assert refused.value.code == 401
            assert "Basic" in refused.value.headers["WWW-Authenticate"]
        rule = KeptKeys(process.data).load()[0]
        shown = base64.b64encode(f"{rule.name}:{rule.primary_key}".encode()).decode()
        assert "peeklock_ready" in page(process, "/metrics", Authorization=f"Basic {shown}")
