"""The command line of the jobs: `peeklock pipeline ...`, and the same under spark-submit.

Owns: the group of all jobs; for those over the event log their help, and the order of run, summary and plot.
Must not know: what a job computes. Spark is imported when a job runs.
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
from peeklock.pipeline.options import (
    CONNECTION,
    ENTITIES,
    FOLLOWING,
    FROM_LOG,
    ON_SPARK,
    OVERWRITE,
    PLOT,
    SINK_FORMAT,
    TO_TABLE,
    Command,
    on_spark,
    place,
    places,
    stacked,
    stopped_by_signals,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCRATCH = "peeklock-scratch-"
"""Begins the name of the folder of a table that nobody asked for."""
Summary = tuple[str, "Callable[[DataFrame], DataFrame]"]
"""A title and what makes its table of the job's rows."""
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
    """What is the same for the jobs over the event log."""

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
    master: str
    conf: dict[str, str]

    def check(self) -> None:
        if self.stream and self.once:
            raise click.UsageError("--stream goes on, --once ends: choose one.")
        if self.checkpoint is not None and not (self.stream or self.once):
            raise click.UsageError("--checkpoint belongs to --stream or --once: a whole run keeps nothing.")
        if self.overwrite and (self.stream or self.once):
            raise click.UsageError("--overwrite is for whole runs: --stream and --once only add.")
        if self.plot is not None and self.no_plot:
            raise click.UsageError("--plot and --no-plot exclude each other.")

    def picture(self) -> Path | None:
        """Return where the plot goes; nowhere if the table is not on this machine and no place was given."""
        if self.no_plot:
            return None
        if self.plot is not None:
            return Path(self.plot.removeprefix("file:"))
        if re.match("(?!file:)[a-z0-9+.-]+:", self.target):
            return None
        return Path(self.target.removeprefix("file:").rstrip("/") + ".png")


def _log_options(command: Command) -> Command:
    """Give a command the options of `LogRun`, as one argument `run`."""

    @functools.wraps(command)
    def with_run(**given: Any) -> None:
        run = LogRun(**{name: given.pop(name) for name in LogRun.__slots__})
        run.check()
        command(run=run, **given)

    options = stacked(FROM_LOG, TO_TABLE, SINK_FORMAT, ENTITIES, FOLLOWING, OVERWRITE, PLOT, ON_SPARK)
    return options(with_run)  # type: ignore[return-value]  # click takes any function


@pipeline.command()
@_log_options
def lives(run: LogRun) -> None:
    """Write one row for the life of each message: when it came, waited, was held, and how it ended.

    A whole run also tells the lives that are still open. --stream and --once tell a life when it has ended.
    Exit status: 0 written, 1 not.
    """
    with on_spark(run.master, run.conf) as (spark, console):
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
            [
                ("How lives ended", job.summarise_ends),
                ("How long they took, ms", job.summarise_times),
            ],
            draw,
        )


@pipeline.command()
@_log_options
def metrics(run: LogRun) -> None:
    """Write figures for each entity and minute: rates, time in queue and under lock, depth.

    Percentiles are approximate: their rank is off by a thousandth at most. --stream and --once tell a minute
    when the log has passed it.
    Exit status: 0 written, 1 not.
    """
    with on_spark(run.master, run.conf) as (spark, console):
        from peeklock.pipeline import metrics as job
        from peeklock.pipeline import plots

        _run_on_log(
            spark,
            console,
            run,
            "metrics",
            job.advance_metrics,
            "minute_date",
            [
                ("What passed", job.summarise_flow),
                ("Highest of any minute (times in ms)", job.summarise_peaks),
            ],
            plots.draw_minutes,
        )


@pipeline.command()
@click.option("--from", "source", callback=place, metavar="LOG", help="Folder of the event log.")
@CONNECTION
@click.option("--to", "target", callback=place, metavar="DIR", help="Folder of the table, if one is wanted.")
@stacked(SINK_FORMAT, ENTITIES, FOLLOWING, OVERWRITE, PLOT, ON_SPARK)
def deadletters(source: str | None, connection_string: str | None, target: str | None, **given: Any) -> None:
    """Group dead letters by entity and reason, from the event log or as they lie in the queues now.

    With --from the log tells of all that became dead letters; else the dead-letter queues of each --entity
    are looked through, and nothing in them is changed.
    Exit status: 0 done, 1 not.
    """
    if source is None and not (connection_string and given["entities"]):
        raise click.UsageError(
            "say where to look: --from LOG, or --connection-string and at least one --entity."
        )
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
        with on_spark(run.master, run.conf) as (spark, console):
            from peeklock.pipeline import deadletters as job
            from peeklock.pipeline import plots
            from peeklock.pipeline.running import Table, write_whole

            shown = [("Dead letters", job.triage)]
            if source is not None:
                _run_on_log(
                    spark,
                    console,
                    run,
                    "deadletters",
                    job.advance_deadletters,
                    "dead_lettered_date",
                    shown,
                    plots.draw_dead_letters,
                )
                return
            assert connection_string is not None
            table = Table(run.target, run.sink_format)
            rows = job.as_dead_letters(job.browse_dead_letters(spark, connection_string, run.entities))
            write_whole(spark, rows, table, date="enqueued_date", overwrite=run.overwrite)
            _show(spark, console, table, shown, plots.draw_dead_letters, run.picture())


@pipeline.command()
@click.option(
    "--from",
    "sources",
    required=True,
    multiple=True,
    callback=places,
    metavar="LOG",
    help="Folder of an event log. May be repeated, for logs of different namespaces.",
)
@click.option(
    "--ledger", callback=place, metavar="PATH", help="What clients say they did: Parquet or JSON lines."
)
@click.option(
    "--left",
    callback=place,
    metavar="PATH",
    help="What is in the entities at the end: Parquet or JSON lines.",
)
@click.option("--drained", is_flag=True, help="Nothing is in the entities at the end.")
@click.option(
    "--horizon",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"]),
    metavar="TIME",
    help="What happened later, UTC, may still be under way.  [default: the log's last event]",
)
@click.option("--report", callback=place, metavar="FILE", help="Write the verdict as JSON too.")
@ON_SPARK
def audit(
    sources: tuple[str, ...],
    ledger: str | None,
    left: str | None,
    drained: bool,
    horizon: datetime | None,
    report: str | None,
    master: str,
    conf: dict[str, str],
) -> None:
    """Prove the broker's promises from its event log, or show where they were broken.

    Looks for gaps, losses, double settlement, overlapping locks, wrong delivery counts, disorder in sessions,
    and more; docs/reference/audit.md has all checks.
    Exit status: 0 clean, 1 violations, 2 not proven, or what was given cannot be used.
    """
    from peeklock.pipeline.display import StepProgress

    with on_spark(master, conf, bad_input=2) as (spark, console):
        from peeklock.pipeline.audit import job

        options = job.AuditOptions(
            folders=sources,
            ledger=ledger,
            left=left,
            drained=drained,
            horizon_ms=None if horizon is None else round(horizon.replace(tzinfo=UTC).timestamp() * 1000),
            report=report,
        )
        with StepProgress(Console(stderr=True)) as progress:
            verdict = job.run(spark, options, step=progress.step)
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
    from peeklock.pipeline.display import TaskProgress
    from peeklock.pipeline.running import Table, run_batch, run_stream

    errors = Console(stderr=True)

    def tell(text: str) -> None:
        errors.print(text, highlight=False, markup=False, soft_wrap=True)

    table = Table(run.target, run.sink_format)
    with TaskProgress(spark, errors):
        if run.stream or run.once:
            run_stream(
                spark,
                job,
                name,
                run.source,
                table,
                date=date,
                checkpoint=run.checkpoint or run.target.rstrip("/") + "/_checkpoint",
                once=run.once,
                entities=run.entities,
                tell=tell,
                stop=stopped_by_signals(),
            )
        else:
            run_batch(
                spark,
                job,
                run.source,
                table,
                date=date,
                overwrite=run.overwrite,
                entities=run.entities,
                tell=tell,
            )
    _show(spark, console, table, summaries, draw, run.picture())


def _show(
    spark: SparkSession,
    console: Console,
    table: Any,
    summaries: Sequence[Summary],
    draw: Callable[[DataFrame, Path], None],
    picture: Path | None,
) -> None:
    from peeklock.pipeline.display import TaskProgress, show_table

    rows = table.read_if_there(spark)
    if rows is None:
        console.print("Nothing to tell yet: no rows were written.")
        return
    with TaskProgress(spark, Console(stderr=True)):
        if picture is not None:
            draw(rows, picture)
    for title, summarise in summaries:
        show_table(console, title, summarise(rows))
    if SCRATCH not in table.path:
        console.print(f"table: {table.path}", highlight=False, soft_wrap=True)
    if picture is not None:
        console.print(f"plot:  {picture}", highlight=False, soft_wrap=True)
