"""Alert rules and dashboard name metrics that exist, and a real Prometheus scrapes a real broker."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from peeklock.demo.broker import BrokerProcess
from peeklock.metrics.table import METRICS
from tests.kept_keys import KeptKeys

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/peeklock.json"

NAMES = {metric.name for metric in METRICS} | {
    f"{metric.name}_{part}"
    for metric in METRICS
    if metric.kind == "histogram"
    for part in ("bucket", "sum", "count")
}
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="needs prometheus and promtool (Debian's package prometheus)",
)


def named(text: str) -> set[str]:
    return set(re.findall(r"\b(?:peeklock|process)_[a-z_]+", text))


def test_the_alerts_name_metrics_that_exist() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 10
    for rule in rules:
        assert named(rule["expr"]) <= NAMES, rule["alert"]
        assert {"summary", "do"} == set(rule["annotations"]), rule["alert"]


def test_the_dashboard_names_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    used = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(used) > 25
    for expression in used:
        assert named(expression)
        assert named(expression) <= NAMES, expression
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.long
@needs_prometheus
def test_the_rules_and_their_tests_pass() -> None:
    for command in (["check", "rules", ALERTS.name], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=ALERTS.parent, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, ["--durability=os", "--auth=sas"]) as process:
        yield process


@pytest.mark.long
@needs_prometheus
def test_a_prometheus_scrapes_a_broker_with_a_key(tmp_path: Path, broker: BrokerProcess) -> None:
    (rule,) = KeptKeys(broker.data).load()
    url = f"http://127.0.0.1:{broker.http_port}"
    login = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    login.add_password(None, url, rule.name, rule.primary_key)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(login))
    with opener.open(f"{url}/metrics", timeout=10) as answer:
        page = answer.read()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr.decode()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = {
        "job_name": "peeklock",
        "scrape_interval": "200ms",
        "scrape_timeout": "200ms",
        "basic_auth": {"username": rule.name, "password": rule.primary_key},
        "static_configs": [{"targets": [f"127.0.0.1:{broker.http_port}"]}],
    }
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump({"scrape_configs": [job], "rule_files": [str(ALERTS)]}))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as prometheus:
        try:
            assert wait_for(port, 'up{job="peeklock"}') == "1", (tmp_path / "log").read_text()
            labels = wait_for(port, "peeklock_build_info", labels=True)
            assert labels["namespace"] == "sbemulatorns"
            assert wait_for(port, "peeklock_ready") == "1"
        finally:
            prometheus.terminate()


def wait_for(port: int, query: str, *, labels: bool = False) -> Any:
    """Return the value of a query that has one series, or its labels."""
    until = time.monotonic() + 30
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
            if found:
                return found[0]["metric"] if labels else found[0]["value"][1]
        except OSError:
            pass  # it is starting
        assert time.monotonic() < until, query
        time.sleep(0.1)
