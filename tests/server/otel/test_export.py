"""`serve --otlp`: a broker exports to a collector what an instrumented client caused.

The client is the official one with its own tracing, and exports to the same collector.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from peeklock.demo.broker import BrokerProcess
from peeklock.metrics import table
from peeklock.metrics.pages import CURSOR_METRICS
from peeklock.server.otel.export import INTERVAL_VARIABLE, STOP_S_MAX
from tests.server.otel.collector import Collector, attributes
from tests.server.waiting import SECONDS_MAX, until

CONFIG = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "orders"}]}]}}


class Exporting(BrokerProcess):
    """A broker that exports to a collector, its metrics every 0.2 s."""

    def __enter__(self) -> Exporting:
        self.start()
        return self

    def __init__(self, folder: Path, url: str) -> None:
        config = folder / "Config.json"
        config.write_text(json.dumps(CONFIG))
        super().__init__(folder, ["--durability=os", f"--config={config}", f"--otlp={url}"])

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.read_text().splitlines()) if line["event"] == event]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv(INTERVAL_VARIABLE, "200")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k1")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with Collector() as made:
        yield made


@pytest.fixture
def tracing(collector: Collector) -> Iterator[None]:
    """Let the official client of this process trace, and export to the collector."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    settings.tracing_implementation = "opentelemetry"
    yield
    settings.tracing_implementation.unset_value()
    trace._TRACER_PROVIDER = before
    provider.shutdown()


@pytest.mark.usefixtures("tracing")
def test_the_broker_s_spans_are_in_the_trace_of_the_client(tmp_path: Path, collector: Collector) -> None:
    with Exporting(tmp_path, collector.url) as broker:
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("orders") as sender,
            client.get_queue_receiver("orders", max_wait_time=10) as receiver,
        ):
            sender.send_messages(ServiceBusMessage("traced"))
            receiver.complete_message(next(receiver))
        assert until(lambda: len([span for span in collector.spans if span.name == "deliver orders"]) == 1)
        assert broker.stop() == 0
    spans = {span.name: span for span in collector.spans}
    message, accept, commit, deliver = (
        spans[name] for name in ("ServiceBus.message", "accept orders", "commit", "deliver orders")
    )
    assert {span.trace_id for span in (message, accept, commit, deliver)} == {message.trace_id}
    assert accept.parent_span_id == deliver.parent_span_id == message.span_id
    assert commit.parent_span_id == accept.span_id
    assert attributes(deliver)["messaging.destination.name"] == "orders"
    assert attributes(deliver)["messaging.servicebus.message.sequence_number"] == 1
    assert accept.start_time_unix_nano < commit.start_time_unix_nano < commit.end_time_unix_nano
    assert commit.end_time_unix_nano <= accept.end_time_unix_nano <= deliver.end_time_unix_nano


def test_metrics_have_the_figures_of_the_namespace(tmp_path: Path, collector: Collector) -> None:
    with Exporting(tmp_path, collector.url) as broker:
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        assert until(lambda: number(collector, "peeklock.messages.received") == 2)
        assert broker.stop() == 0
    expected = {metric.otel_name for metric in table.METRICS if metric.otel_name}
    of_clusters = {table.OWNED, table.RELAYED}
    absent = {table.BUILD, table.CAPTURE_BACKLOG, table.DEAD_LETTERED, *CURSOR_METRICS, *of_clusters}
    assert set(collector.metrics) == expected - {metric.otel_name for metric in absent}
    assert number(collector, "peeklock.messages.received_bytes") > 0
    received = collector.metrics["peeklock.messages.received"]
    assert received.sum.is_monotonic
    assert attributes(received.sum.data_points[0]) == {
        "messaging.system": "servicebus",
        "peeklock.namespace": "sbemulatorns",
    }
    states = collector.metrics["peeklock.messages"].gauge.data_points
    assert {attributes(each)["peeklock.state"]: each.as_int for each in states}["active"] == 2
    requests = collector.metrics["peeklock.requests"].sum.data_points
    assert {attributes(each)["messaging.operation.name"] for each in requests} >= {"send", "send_batch"}
    (commits,) = collector.metrics["peeklock.commit"].histogram.data_points
    assert sum(commits.bucket_counts) == commits.count > 0
    assert not commits.HasField("max"), "which is not known"
    assert len(commits.bucket_counts) == len(commits.explicit_bounds) + 1
    assert collector.metrics["peeklock.commit"].unit == "s"
    assert collector.metrics["peeklock.size"].unit == "By"
    resource = collector.resources[-1]
    assert resource["service.name"] == "peeklock"
    assert resource["service.version"]
    assert resource["deployment.environment.name"] == "test"
    assert collector.headers[-1]["api-key"] == "k1"


def number(collector: Collector, name: str) -> float:
    if name not in collector.metrics:
        return 0
    (point,) = collector.metrics[name].sum.data_points
    return float(point.as_int or point.as_double)


def test_a_collector_that_fails_is_told_of_once(tmp_path: Path, collector: Collector) -> None:
    collector.status = 401
    with Exporting(tmp_path, collector.url) as broker:
        assert until(lambda: broker.lines("the export by OTLP fails"))
        collector.status = 200
        assert until(lambda: broker.lines("the export by OTLP works again"))
        assert broker.stop() == 0
    (line,) = broker.lines("the export by OTLP fails")
    assert (line["what"], line["url"]) == ("metrics", collector.url)
    assert "401" in line["reason"]


def test_a_collector_that_never_answers_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INTERVAL_VARIABLE, "50")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS_MAX)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with Exporting(tmp_path, url) as broker:
            with server.accept()[0]:  # an export is under way
                began_s = time.monotonic()
                assert broker.stop() == 0
            assert time.monotonic() - began_s < 2 * STOP_S_MAX


def test_a_collector_that_is_not_there_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    with Exporting(tmp_path, "http://127.0.0.1:9") as broker:
        assert broker.stop() == 0
    assert os.path.exists(broker.data)
