"""The pages of a node: as the OpenAPI document and the reference describe them."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from peeklock.api import cluster_pages
from peeklock.api.schema import check as check_schema
from peeklock.server.settings import CaptureSettings
from tests.postgres_server import PostgresServer
from tests.server.cluster.nodes import Cluster, in_cluster
from tests.server.cluster.test_relay import http, opened, two_nodes

HEALTH_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "health.md"

OF_PROCESS = {"peeklock_cluster_namespaces", "peeklock_cluster_relayed_connections", "peeklock_ready"}


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"pages{uuid.uuid4().hex}")


async def asked(port: int, method: str, path: str) -> tuple[str, bytes]:
    """Return status and body of an answer."""
    text = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    reader, writer = await opened(port, text.encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.split()[1].decode(), body


def test_the_pages_are_as_the_document_says(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        await cluster.until_seen(first, "a", "b")
        for path in ("/owner", "/$api/v1/cluster"):
            for broker in (first, second):
                status, body = await asked(broker.http_port, "GET", path)
                content = cluster_pages.PATHS[path]["get"]["responses"][status]["content"]
                check_schema(json.loads(body), content["application/json"]["schema"], {})
        moving = cluster_pages.PATHS["/$api/v1/cluster/{name}"]["post"]["responses"]
        for path, expected in (("main?to=b", "204"), ("main?to=none", "409"), ("none", "404")):
            status, _ = await asked(first.http_port, "POST", f"/$api/v1/cluster/{path}")
            assert (status, status in moving) == (expected, True)

    in_cluster(check, url, tmp_path, ["main"])


def test_each_figure_of_health_of_a_node_is_documented(url: str, tmp_path: Path) -> None:
    page = HEALTH_PAGE.read_text(encoding="utf-8").split("\n## `GET /health`\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    documented = {key for row in rows for key in re.findall(r"`(\w+)`", row)}

    async def check(cluster: Cluster) -> None:
        capture = CaptureSettings(tmp_path / "log")
        first = await cluster.start("a", capture=capture)
        await cluster.until_owned(a=["default"])
        second = await cluster.start("b", capture=capture)
        found = []
        for broker in (first, second):
            _, body = await asked(broker.http_port, "GET", "/health")
            found.append(set(json.loads(body)))
        assert found[0] == documented - {"tls"}  # which is there at times
        assert found[1] == documented - {"tls", "capture"}

    in_cluster(check, url, tmp_path, ["main"])


def test_a_node_shows_the_figures_of_what_it_serves_and_of_itself(url: str, tmp_path: Path) -> None:
    """The sum over all nodes has each namespace once."""

    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        shown = []
        for broker in (first, second):
            text = (await http(broker.http_port, "/metrics")).partition(b"\r\n\r\n")[2].decode()
            shown.append({sample.name: sample for family in read_text(text) for sample in family.samples})
        assert shown[0].keys() >= {"peeklock_entities", "peeklock_messages", *OF_PROCESS}
        assert [name for name in shown[1] if name in shown[0]] == [*shown[1]]
        assert shown[1].keys() >= {"process_cpu_seconds_total", "peeklock_build_info", *OF_PROCESS}
        of_namespaces = {
            "entities",
            "messages",
            "messages_received_total",
            "connections",
            "send_seconds_count",
        }
        assert not shown[1].keys() & {f"peeklock_{name}" for name in of_namespaces}
        assert shown[1]["peeklock_ready"].value == 1

    in_cluster(check, url, tmp_path, ["main"])
