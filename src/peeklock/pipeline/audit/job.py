"""The audit: proves the broker's promises from its event log, or shows where they were broken.

Owns: the order of the checks, what is given to them, how the verdict is shown. Must not know: how a check is
computed (`audit_lives`, `audit_passes`, `ledger`), what it says (`audit_checks`).

An audit reads the log a few times and changes nothing. It judges what the log says against itself; where they
are given, against what clients say they sent and received (`ledger`) and against what is there at the end
(`left`). What it could not look at it tells, and is not clean then.
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
from peeklock.pipeline.audit import lives as audit_lives
from peeklock.pipeline.audit import passes as audit_passes
from peeklock.pipeline.audit.checks import ALWAYS, SENTENCES, WITH_LEDGER, WITH_LEFT, Verdict
from peeklock.pipeline.audit.log import AuditInput, Log, survey
from peeklock.pipeline.events import find_segments, read_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEFT_SCHEMA = "namespace string, entity string, sequence_number long"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What to audit."""

    folders: tuple[str, ...]
    """Event logs. Several are one audit; each must be of another namespace."""
    ledger: str | None = None
    """What clients say (see `ledger`): a folder or file of Parquet or JSON lines."""
    left: str | None = None
    """What is there at the end: Parquet or JSON lines with namespace, entity, sequence_number."""
    drained: bool = False
    """Nothing is there at the end."""
    horizon_ms: int | None = None
    """UTC: what happened later is not judged by what did not follow. None = the log's last event."""
    report: str | None = None
    """File for the verdict as JSON."""


def run(spark: SparkSession, options: AuditOptions, *, step: Callable[[str], None] | None = None) -> Verdict:
    """Audit event logs.

    Args:
        step: told what is looked at next, for a progress line.

    Raises:
        LogError: a folder is missing, empty or damaged.
        AuditInput: something else given cannot be used.
    """
    started = time.monotonic()
    tell = step or (lambda text: None)
    tell("survey")
    segments = {folder: find_segments(spark, folder) for folder in options.folders}
    log = survey(read_events(spark, *options.folders), segments)
    horizon = _horizon(log, options)
    left = _left(spark, log, options)
    more = (*(WITH_LEFT if left is not None else ()), *(WITH_LEDGER if options.ledger else ()))
    verdict = Verdict((*ALWAYS, *more))
    verdict.events = log.count
    verdict.entities = len(log.places)
    verdict.horizon_ms = max(horizon.values())
    tell("files and batches")
    audit_passes.check_segments(log, verdict)
    audit_passes.check_batches(log, verdict)
    tell("lives")
    audit_lives.check_lives(log, verdict, horizon, left)
    tell("sequence numbers")
    audit_passes.check_numbers(log, verdict, horizon)
    tell("sessions")
    audit_passes.check_sessions(log, verdict, horizon)
    tell("duplicates, transactions, copies")
    audit_passes.check_default_ttl(log, verdict)
    audit_passes.check_duplicates(log, verdict, horizon)
    audit_passes.check_transactions(log, verdict)
    audit_passes.check_copies(log, verdict)
    if options.ledger is not None:
        tell("what clients say")
        ledger.check_ledger(log, verdict, ledger.read_ledger(spark, options.ledger), horizon)
    verdict.seconds = time.monotonic() - started
    if options.report is not None:
        Path(options.report).write_text(json.dumps(verdict.report(), indent=2) + "\n")
    return verdict


def _horizon(log: Log, options: AuditOptions) -> dict[str, int]:
    """Give for each namespace until when things must have happened."""
    latest = options.horizon_ms
    return {name: last if latest is None else min(last, latest) for name, last in log.last_ms.items()}


def _left(spark: SparkSession, log: Log, options: AuditOptions) -> DataFrame | None:
    if options.drained and options.left is not None:
        raise AuditInput("give either what is left or that nothing is, not both")
    if options.drained:
        return spark.createDataFrame([], LEFT_SCHEMA)
    if options.left is None:
        return None
    left = ledger.read_table(spark, options.left, LEFT_SCHEMA, required=("entity", "sequence_number"))
    return ledger.with_namespace(left, log)


def show(verdict: Verdict, console: Console) -> None:
    """Print the verdict: a row for each check, samples of what is wrong, what was not proven."""
    table = Table(title="Audit of the event log", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("violations", justify="right")
    table.add_column("what must hold")
    for check in verdict.checked:
        finding = verdict.findings.get(check)
        style = "bold red" if finding else None
        table.add_row(check.title, f"{finding.count:,}" if finding else "0", SENTENCES[check], style=style)
    console.print(table)
    for check in sorted(verdict.findings):
        finding = verdict.findings[check]
        console.print(f"{check.title}: {finding.count:,}, for example", style="bold")
        for sample in finding.samples:
            console.print(f"  {sample}", markup=False, highlight=False)
    for sentence in (*verdict.not_proven, *verdict.notes):
        console.print(sentence, markup=False, highlight=False)
    console.print(
        f"{verdict.outcome} {verdict.open_lives:,} were under way at the end; {verdict.seconds:.1f} s.",
        markup=False,
        highlight=False,
    )
