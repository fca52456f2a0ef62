"""The figures of the README are those of the benchmarks, the requirements and the clients' results."""

from __future__ import annotations

import json
import re
from pathlib import Path

from peeklock.pipeline.audit.checks import Check

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "tests/interop/results"
CLIENTS = {
    "Python, sync and asyncio": ("python-sync", "azure-servicebus"),
    "JavaScript": ("javascript", "@azure/service-bus"),
    "Java": ("java", "com.azure:azure-messaging-servicebus"),
    "Java, retired client": ("java-retired", "com.microsoft.azure:azure-servicebus"),
    "Go": ("go", "azservicebus"),
    "Rust, over REST": ("rust", "azure_messaging_servicebus"),
    "Qpid JMS": ("qpid-jms", "org.apache.qpid:qpid-jms-client"),
    "rhea, plain AMQP 1.0": ("rhea", "rhea"),
    "Celery": ("celery", "celery"),
}


def _cells(scenario: str, measure: str) -> list[str]:
    """Return the medians of a row of the benchmarks: ours, Artemis, RabbitMQ classic and quorum."""
    results = (ROOT / "bench/results/results.md").read_text(encoding="utf-8").partition("## All measures")[2]
    (row,) = re.findall(rf"^\| {re.escape(scenario)} \| {re.escape(measure)} \|(.*)$", results, re.MULTILINE)
    return [(cell.split() or [""])[0] for cell in row.split("|")[:4]]


def test_the_figures_of_the_benchmarks_are_current() -> None:
    ours, artemis, classic, quorum = _cells("end to end", "rate (msg/s)")
    p99_us = float(_cells("1,000 msg/s offered", "p99 send to accepted (us)")[0])
    start, _, rabbit_start, _ = (float(cell or 0) for cell in _cells("start-up", "spawn to ready (s)"))
    memory, _, rabbit_memory, _ = (float(cell or 0) for cell in _cells("start-up", "idle RSS (MB)"))
    stated = [
        f"**Fast.** {ours} messages",
        f"| {ours} | not measured | {quorum} quorum, {classic} classic |",
        f"does {artemis} a second",
        f"within {p99_us / 1000:.1f} ms",
        f"| {start:.1f} s, {memory:.0f} MB | not measured | {rabbit_start:.1f} s, {rabbit_memory:.0f} MB |",
        f"2,000 cost {_cells('idle connections', '2,000 cost (MB)')[0]} MB",
    ]
    text = " ".join(README.split())
    assert [figure for figure in stated if figure not in text] == []


def test_the_number_of_requirements_is_current() -> None:
    page = (ROOT / "docs/reference/compatibility.md").read_text(encoding="utf-8")
    counts = re.search(
        r"^(\d+) requirements: (\d+) work, (\d+) work in part, (\d+) differ, 0 not yet\.$", page, re.MULTILINE
    )
    assert counts is not None
    stated = "of {} requirements {} work, {} work in part and {} differ from Azure".format(*counts.groups())
    assert stated in README.replace("\n  ", " ")
    assert f"checks {len(Check)} promises" in README


def test_each_client_has_its_row_with_its_version_and_results() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\d+) of (\d+) features \|", README, re.MULTILINE)
    expected = []
    for title, (name, package) in CLIENTS.items():
        result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        statuses = [feature["status"] for feature in result["features"].values()]
        works, offered = statuses.count("works"), len(statuses) - statuses.count("not offered")
        expected.append((title, result["versions"][package], str(works), str(offered)))
    assert rows == expected
    assert {name for name, _ in CLIENTS.values()} | {"python-aio"} == {
        path.stem for path in RESULTS.glob("*.json")
    }
