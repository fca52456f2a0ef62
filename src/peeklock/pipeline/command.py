"""Commands of the jobs over the event log, and the group `peeklock pipeline` of all jobs.

A job's modules are imported when it runs, so help works without Spark.
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from peeklock.pipeline import queue_commands
from peeklock.pipeline.display import show_table, step_progress, task_progress, tell
from peeklock.pipeline.options import (
    CONNECTION,
    ENTITIES,
    FOLLOWING,
    FROM_LOG,
    OVERWRITE,
    PLOT,
    SINK_FORMAT,
    TO_TABLE,
    Command,
    SparkChoice,
    on_spark,
    on_spark_options,
    place,
    places,
    stacked,
    stopped_by_signals,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCRATCH = "peeklock-scratch-"
"""Prefix of the folder of a temporary table."""
Summary = tuple[str, "Callable[[DataFrame], DataFrame]"]
"""A title, and the function that makes its table of the job's rows."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
def pipeline() -> None:
    """Work on the event log and on queues with Spark: lives, metrics, audit, capture, replay.

    \b
    Every message's life:   peeklock pipeline lives --from LOG --to DIR
    Figures per minute:     peeklock pipeline metrics --from LOG --to DIR
    Why messages died:      peeklock pipeline deadletters --from LOG
    Is the broker honest?   peeklock pipeline audit --from LOG

    LOG is the folder that `peeklock serve --capture` writes to. It needs pip install 'peeklock[spark]';
    docs/reference/pipeline.md has the columns of the tables, and how to run the jobs on a cluster.
    """


for queue_command in queue_commands.ALL:
    pipeline.add_command(queue_command)


@dataclass(frozen=True, slots=True)
class LogRun:
    """Options that the jobs over the event log share."""

    source: str
    target: str
    sink_format: str
    entities: tuple[str, ...]
    stream: bool
    once: bool
    checkpoint: str | None
    overwrite: bool
    plot: str | None
    no_plot: bool
    choice: SparkChoice

    def check(self) -> None:
        if self.stream and self.once:
            raise click.UsageError("--stream and --once exclude each other.")
        if self.checkpoint is not None and not (self.stream or self.once):
            raise click.UsageError("--checkpoint requires --stream or --once.")
        if self.overwrite and (self.stream or self.once):
            raise click.UsageError("--overwrite excludes --stream and --once, which only add.")
        if self.plot is not None and self.no_plot:
            raise click.UsageError("--plot and --no-plot exclude each other.")

    def picture(self) -> Path | None:
        """Return the file of the plot; None if it has none, or the table is not on this machine."""
        if self.no_plot:
            return None
        if self.plot is not None:
            return Path(self.plot.removeprefix("file:"))
        if re.match("(?!file:)[a-z0-9+.-]+:", self.target):
            return None
        return Path(self.target.removeprefix("file:").rstrip("/") + ".png")


def _log_options(command: Command) -> Command:
    """Add the options of `LogRun` to a command, as one argument `run`."""

    @functools.wraps(command)
    def with_run(**given: Any) -> None:
        run = LogRun(**{name: given.pop(name) for name in LogRun.__slots__})
        run.check()
        command(run=run, **given)

    options = stacked(FROM_LOG, TO_TABLE, SINK_FORMAT, ENTITIES, FOLLOWING, OVERWRITE, PLOT, on_spark_options)
    return options(with_run)  # type: ignore[return-value]  # click takes any function


@pipeline.command()
@_log_options
def lives(run: LogRun) -> None:
    """Write one row for the life of each message: arrival, wait, locks, and how it ended.

    A whole run also has the lives that are still open. --stream and --once write a life when it has ended.
    Exit status: 0 written, 1 failed.
    """
    with on_spark(run.choice) as (spark, console):
        from peeklock.pipeline import lives as job
        from peeklock.pipeline import plots

        def draw(table: DataFrame, path: Path) -> None:
            plots.draw_queues(plots.steps_of_lives(table), path)

        _run_on_log(
            spark,
            console,
            run,
            "lives",
            job.advance_lives,
            "enqueued_date",
            [("How lives ended", job.summarise_ends), ("How long they took, ms", job.summarise_times)],
            draw,
        )


@pipeline.command()
@_log_options
def metrics(run: LogRun) -> None:
    """Write figures for each entity and minute: rates, time in queue and under lock, depth.

    Percentiles are approximate: their rank is off by a thousandth at most. --stream and --once write a minute
    when the log has passed it.
    Exit status: 0 written, 1 failed.
    """
    with on_spark(run.choice) as (spark, console):
        from peeklock.pipeline import metrics as job
        from peeklock.pipeline import plots

        _run_on_log(
            spark,
            console,
            run,
            "metrics",
            job.advance_metrics,
            "minute_date",
            [("Totals", job.summarise_flow), ("Maximum of any minute (times in ms)", job.summarise_peaks)],
            plots.draw_minutes,
        )


@pipeline.command()
@click.option("--from", "source", callback=place, metavar="LOG", help="Folder of the event log.")
@CONNECTION
@click.option("--to", "target", callback=place, metavar="DIR", help="Write a table to this folder.")
@stacked(SINK_FORMAT, ENTITIES, FOLLOWING, OVERWRITE, PLOT, on_spark_options)
def deadletters(source: str | None, connection_string: str | None, target: str | None, **given: Any) -> None:
    """Group dead letters by entity and reason, from the event log or from the queues.

    With --from, all dead letters of the log. Without it, those now in the dead-letter queue of each --entity,
    which is only read.
    Exit status: 0 done, 1 failed.
    """
    if source is None and not (connection_string and given["entities"]):
        raise click.UsageError("give --from LOG, or --connection-string and at least one --entity.")
    if target is None and (given["stream"] or given["once"] or given["plot"]):
        raise click.UsageError("--stream, --once and --plot need --to DIR.")
    if source is None and (given["stream"] or given["once"]):
        raise click.UsageError("--stream and --once follow the event log: give --from LOG.")
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
        run = LogRun(
            source=source or "",
            target=target or str(Path(scratch) / "table"),
            **{**given, "no_plot": given["no_plot"] or target is None},
        )
        run.check()
        with on_spark(run.choice) as (spark, console):
            from peeklock.pipeline import deadletters as job
            from peeklock.pipeline import plots
            from peeklock.pipeline.running import Table, write_whole

            shown, draw = [("Dead letters", job.triage)], plots.draw_dead_letters
            if source is not None:
                advance = job.advance_deadletters
                _run_on_log(spark, console, run, "deadletters", advance, "dead_lettered_date", shown, draw)
                return
            assert connection_string is not None
            table = Table(run.target, run.sink_format)
            rows = job.as_dead_letters(job.browse_dead_letters(spark, connection_string, run.entities))
            write_whole(spark, rows, table, date="enqueued_date", overwrite=run.overwrite)
            _show(spark, console, table, shown, draw, run.picture())


def _utc_ms(context: click.Context, parameter: click.Parameter, time: datetime | None) -> int | None:
    return None if time is None else round(time.replace(tzinfo=UTC).timestamp() * 1000)


@pipeline.command()
@click.option(
    "--from",
    "folders",
    required=True,
    multiple=True,
    callback=places,
    metavar="LOG",
    help="Folder of an event log. May be repeated, for logs of different namespaces.",
)
@click.option(
    "--ledger",
    callback=place,
    metavar="PATH",
    help="List of what clients sent and received: Parquet or JSON lines.",
)
@click.option(
    "--left",
    callback=place,
    metavar="PATH",
    help="List of the messages in the entities at the end: Parquet or JSON lines.",
)
@click.option("--drained", is_flag=True, help="Check that the entities are empty at the end.")
@click.option(
    "--horizon",
    "horizon_ms",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"]),
    callback=_utc_ms,
    metavar="TIME",
    help="Do not check events after this time (UTC).  [default: the log's last event]",
)
@click.option("--report", callback=place, metavar="FILE", help="Also write the verdict as JSON.")
@on_spark_options
def audit(choice: SparkChoice, **given: Any) -> None:
    """Prove the broker's promises from its event log, or show violations.

    Checks for gaps, losses, double settlement, overlapping locks, wrong delivery counts, disorder in
    sessions, and more; docs/reference/audit.md has all checks.
    Exit status: 0 clean, 1 violations, 2 not proven or invalid input.
    """
    with on_spark(choice, bad_input=2) as (spark, console):
        from peeklock.pipeline.audit import job

        with step_progress() as step:
            verdict = job.run(spark, job.AuditOptions(**given), step=step)
        job.show(verdict, console)
    sys.exit(verdict.exit_status)


def _run_on_log(
    spark: SparkSession,
    console: Console,
    run: LogRun,
    name: str,
    job: Any,
    date: str,
    summaries: Sequence[Summary],
    draw: Callable[[DataFrame, Path], None],
) -> None:
    from peeklock.pipeline.running import Table, run_batch, run_stream

    table, source, entities = Table(run.target, run.sink_format), run.source, run.entities
    with task_progress(spark):
        if run.stream or run.once:
            run_stream(
                spark,
                job,
                name,
                source,
                table,
                date=date,
                checkpoint=run.checkpoint or run.target.rstrip("/") + "/_checkpoint",
                once=run.once,
                entities=entities,
                tell=tell,
                stop=stopped_by_signals(),
            )
        else:
            overwrite = run.overwrite
            run_batch(spark, job, source, table, date=date, overwrite=overwrite, entities=entities, tell=tell)
    _show(spark, console, table, summaries, draw, run.picture())


def _show(
    spark: SparkSession,
    console: Console,
    table: Any,
    summaries: Sequence[Summary],
    draw: Callable[[DataFrame, Path], None],
    picture: Path | None,
) -> None:
    rows = table.read_if_there(spark)
    if rows is None:
        console.print("No rows were written yet.")
        return
    if picture is not None:
        with task_progress(spark):
            draw(rows, picture)
    for title, summarise in summaries:
        show_table(console, title, summarise(rows))
    if SCRATCH not in table.path:
        console.print(f"table: {table.path}", highlight=False, soft_wrap=True)
    if picture is not None:
        console.print(f"plot:  {picture}", highlight=False, soft_wrap=True)
