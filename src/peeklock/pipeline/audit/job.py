"""Runs the audit: reads its inputs, runs the checks in order, and prints the verdict.

An audit reads the log a few times and changes nothing. It compares the log's events with each other and,
where given, with a ledger of clients and with the messages left at the end. It reports what it could not
check; then it is not clean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from peeklock.pipeline.audit import ledger
from peeklock.pipeline.audit import passes as audit_passes
from peeklock.pipeline.audit.checks import ALWAYS, SAMPLES_MAX, WITH_LEDGER, WITH_LEFT, AuditInput, Verdict
from peeklock.pipeline.audit.exchange import judge_log
from peeklock.pipeline.audit.files import events_of, look
from peeklock.pipeline.audit.log import Log, survey
from peeklock.pipeline.audit.returned import list_returned
from peeklock.pipeline.audit.seen import place_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEFT_SCHEMA = "namespace string, entity string, sequence_number long"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of an audit."""

    folders: tuple[str, ...]
    """Event logs. Several are one audit; each must be of another namespace."""
    ledger: str | None = None
    """Ledger of clients: a folder or file of Parquet or JSON lines."""
    left: str | None = None
    """Messages left at the end: Parquet or JSON lines with namespace, entity, sequence_number."""
    drained: bool = False
    """No message is left at the end."""
    horizon_ms: int | None = None
    """UTC; for later events nothing need follow. None = the log's last event."""
    report: str | None = None
    """File for the verdict as JSON."""


def run(spark: SparkSession, options: AuditOptions, *, step: Callable[[str], None] | None = None) -> Verdict:
    """Audit event logs.

    Args:
        step: called with the name of the next step, for a progress line.

    Raises:
        LogError: a folder is missing, empty or damaged.
        AuditInput: another input cannot be used.
    """
    started = time.monotonic()
    tell = step or (lambda text: None)
    tell("files and survey")
    logs, seen = look(spark, options.folders)
    log = survey(events_of(spark, logs), logs, seen)
    horizon = _horizon(log, options)
    left = _left(spark, log, options)
    more = (*(WITH_LEFT if left is not None else ()), *(WITH_LEDGER if options.ledger else ()))
    verdict = Verdict((*ALWAYS, *more))
    verdict.events = log.count
    verdict.entities = sum(1 for place in log.places.values() if place.events)
    verdict.horizon_ms = max(horizon.values())
    tell("lives, sequence numbers, sessions")
    audit_passes.check_segments(log, verdict)
    audit_passes.check_events(log, verdict)
    judged = judge_log(log, verdict, horizon, left)
    audit_passes.check_batches(judged, verdict)
    tell("duplicates, transactions, copies")
    audit_passes.check_duplicates(log, judged, verdict, horizon)
    audit_passes.check_transactions(log, judged, verdict)
    audit_passes.check_copies(judged, verdict)
    tell("restores")
    list_returned(log, verdict)
    if options.ledger is not None:
        tell("ledger")
        ledger.check_ledger(log, verdict, ledger.read_ledger(spark, options.ledger), horizon)
    verdict.seconds = time.monotonic() - started
    if options.report is not None:
        Path(options.report).write_text(json.dumps(verdict.report(), indent=2) + "\n")
    return verdict


def _horizon(log: Log, options: AuditOptions) -> dict[str, int]:
    """Return for each namespace until when due changes must have happened."""
    latest = options.horizon_ms
    return {name: last if latest is None else min(last, latest) for name, last in log.last_ms.items()}


def _left(spark: SparkSession, log: Log, options: AuditOptions) -> DataFrame | None:
    if options.drained and options.left is not None:
        raise AuditInput("--left and --drained exclude each other")
    if options.drained:
        return spark.createDataFrame([], LEFT_SCHEMA)
    if options.left is None:
        return None
    left = ledger.read_table(spark, options.left, LEFT_SCHEMA, required=("entity", "sequence_number"))
    left = ledger.with_namespace(left, log)
    for row in left.select("entity", place_key()).distinct().collect():
        if row.place not in log.places:
            raise AuditInput(
                f"the messages left (--left) name '{row.entity}', an entity that is not in the log"
            )
    return left


def show(verdict: Verdict, console: Console) -> None:
    """Print the verdict: a row for each check, samples of violations, and what was not proven."""
    table = Table(title="Audit of the event log", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("violations", justify="right")
    table.add_column("what must hold")
    for check in verdict.checked:
        finding = verdict.findings.get(check)
        style = "bold red" if finding else None
        table.add_row(check.title, f"{finding.count:,}" if finding else "0", check.promise, style=style)
    console.print(table)
    for check in sorted(verdict.findings):
        finding = verdict.findings[check]
        console.print(f"{check.title}: {finding.count:,}, for example", style="bold")
        for sample in finding.samples:
            console.print(f"  {sample}", markup=False, highlight=False)
    if verdict.returned:
        console.print(_returned(verdict))
    for sentence in (*verdict.not_proven, *verdict.notes):
        console.print(sentence, markup=False, highlight=False)
    console.print(
        f"{verdict.outcome} {verdict.open_lives:,} were under way at the end; {verdict.seconds:.1f} s.",
        markup=False,
        highlight=False,
    )


def _returned(verdict: Verdict) -> Table:
    """Return a table of the first messages that a restore brought back."""
    table = Table(title="Settled after the back-up, and restored", title_justify="left")
    for name in ("entity", "sequence number", "settled", "at (UTC)", "since the restore"):
        table.add_column(name, justify="right" if name == "sequence number" else "left")
    for message in verdict.returned[:SAMPLES_MAX]:
        table.add_row(*message.cells())
    return table
