"""Commands of the jobs over queues: capture, replay, resubmit, release, cursors."""

from __future__ import annotations

import sys
from typing import Any

import click

from peeklock.pipeline.display import count_progress, counted, show_table, task_progress, tell
from peeklock.pipeline.options import (
    CONNECTION,
    SINK_FORMAT,
    TO_TABLE,
    SparkChoice,
    guarded,
    on_spark,
    on_spark_options,
    place,
    stacked,
    stopped_by_signals,
)

NEEDED = "give --connection-string TEXT, or SERVICEBUS_CONNECTION_STRING in the environment."

KEPT_IDS = (
    "Message ids are kept: an entity with duplicate detection drops messages that it has seen within its "
    "window, without an error. Replay has no option for new ids."
)

ENTITY = click.option("--entity", required=True, metavar="NAME", help="Queue, or TOPIC/Subscriptions/NAME.")
LIMIT = click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only print what would be done.")


def _needed(connection_string: str | None) -> str:
    if not connection_string:
        raise click.UsageError(NEEDED)
    return connection_string


@click.command()
@CONNECTION
@click.option(
    "--entity",
    "entities",
    required=True,
    multiple=True,
    metavar="NAME",
    help="Queue, or TOPIC/Subscriptions/NAME. May be repeated.",
)
@click.option(
    "--sub-queue",
    type=click.Choice(["deadLetter", "transferDeadLetter"]),
    help="Capture this sub-queue of each entity instead.",
)
@TO_TABLE
@SINK_FORMAT
@click.option(
    "--stream",
    is_flag=True,
    help="Run until Ctrl-C or SIGTERM, not just until the messages there now are captured.",
)
@click.option(
    "--mode",
    type=click.Choice(["cursor", "peekLock", "browse"]),
    default="cursor",
    show_default=True,
    help="cursor: each message once, removed from the queue (peeklock only); peekLock: the same with any "
    "Service Bus, at least once for sessions; browse: copies, nothing is removed.",
)
@click.option(
    "--consumer",
    metavar="NAME",
    help="Name of the cursor, which no other reader has.  [default: one that the checkpoint keeps]",
)
@click.option("--encoded", is_flag=True, help="Also store each whole message, for a lossless replay.")
@click.option(
    "--max-messages",
    "messages_max",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Maximum number of messages in one micro-batch.",
)
@click.option(
    "--checkpoint",
    callback=place,
    metavar="DIR",
    help="Where the job keeps its progress.  [default: TO/_checkpoint]",
)
@on_spark_options
def capture(
    connection_string: str | None,
    target: str,
    sink_format: str,
    stream: bool,
    checkpoint: str | None,
    choice: SparkChoice,
    **given: Any,
) -> None:
    """Move the messages of queues into a lake table, each exactly once, partitioned by date.

    A message leaves its queue when its row is in the table. The same command continues from there.
    Exit status: 0 done, 1 failed.
    """
    text = _needed(connection_string)
    with on_spark(choice) as (spark, console):
        from peeklock.pipeline.capture import Capture, run_capture, summarise_capture
        from peeklock.pipeline.running import Table

        table, checkpoint = Table(target, sink_format), checkpoint or target.rstrip("/") + "/_checkpoint"
        wanted = Capture(connection_string=text, **given)
        stop = stopped_by_signals()
        with task_progress(spark):
            run_capture(spark, wanted, table, checkpoint=checkpoint, once=not stream, tell=tell, stop=stop)
        rows = table.read_if_there(spark)
        if rows is None:
            console.print("Nothing was captured: the table has no rows yet.")
            return
        show_table(console, "In the table", summarise_capture(rows))
        console.print(f"table: {target}", highlight=False, soft_wrap=True)


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    callback=place,
    metavar="DIR",
    help="A table that capture wrote, or an event log with bodies.",
)
@click.option(
    "--source-format", default="parquet", show_default=True, metavar="FORMAT", help="Format of the table."
)
@CONNECTION
@click.option("--entity", required=True, metavar="NAME", help="Queue or topic to send to.")
@click.option("--where", metavar="SQL", help="Only rows that meet this condition on the columns of DIR.")
@stacked(LIMIT, DRY_RUN, on_spark_options)
def replay(
    source: str,
    source_format: str,
    connection_string: str | None,
    entity: str,
    where: str | None,
    limit: int | None,
    dry_run: bool,
    choice: SparkChoice,
) -> None:
    """Send the rows of a table, or the bodies of an event log, as messages again.

    Message ids are kept: a target with duplicate detection drops messages that it has seen within its window,
    such as those of a second replay. Without it, every replay adds all messages.
    Exit status: 0 sent, 1 failed.
    """
    text = _needed(connection_string)
    with on_spark(choice) as (spark, console):
        from peeklock.pipeline.replay import rows_to_send, send_rows

        with task_progress(spark):
            rows = rows_to_send(spark, source, source_format, where, limit)
            count = rows.count() if dry_run else send_rows(spark, rows, text, entity)
        said = "would be sent" if dry_run else "sent"
        console.print(f"{counted(count, 'message')} {said} to {entity}", highlight=False)
        if count:
            console.print(KEPT_IDS, highlight=False, soft_wrap=True)


@click.command()
@CONNECTION
@ENTITY
@click.option(
    "--to-entity", "target", metavar="NAME", help="Queue or topic to send to.  [default: the original]"
)
@click.option(
    "--reason", "reasons", multiple=True, metavar="TEXT", help="Only with this reason. May be repeated."
)
@click.option("--where", metavar="SQL", help="Only messages that meet this condition on their columns.")
@click.option(
    "--keep-ids",
    is_flag=True,
    help="Keep message ids. Not with duplicate detection: the target drops messages whose ids it has seen, "
    "and they are lost.",
)
@stacked(LIMIT, DRY_RUN, on_spark_options)
def resubmit(
    connection_string: str | None,
    entity: str,
    target: str | None,
    reasons: tuple[str, ...],
    where: str | None,
    keep_ids: bool,
    limit: int | None,
    dry_run: bool,
    choice: SparkChoice,
) -> None:
    """Send dead letters again, and remove each from the dead-letter queue when it is accepted.

    Exactly once where the namespace has transactions. Else at least once: a crash may leave a message in both
    places; the next run sends it again with the same id, <old id>+resubmitted-<number>. A target with
    duplicate detection stores it once. `peeklock dead-letters resubmit` does the same without Spark.
    Exit status: 0 all done, 1 failed.
    """
    text = _needed(connection_string)
    with on_spark(choice) as (spark, console):
        from peeklock.client.connection import BlockingConnection
        from peeklock.client.connection_string import ConnectionString
        from peeklock.pipeline.deadletters import as_dead_letters, browse_dead_letters, triage
        from peeklock.pipeline.resubmit import choose, default_target
        from peeklock.pipeline.resubmit import resubmit as run

        to = target or default_target(entity)
        with task_progress(spark):
            chosen = choose(browse_dead_letters(spark, text, (entity,)), reasons, where, limit).persist()
            numbers = {row.sequenceNumber for row in chosen.select("sequenceNumber").collect()}
        show_table(console, "Chosen", triage(as_dead_letters(chosen)))
        chosen.unpersist()
        if dry_run or not numbers:
            console.print(f"{counted(len(numbers), 'message')} would be sent to {to}", highlight=False)
            return
        connection = BlockingConnection(ConnectionString.parse(text))
        try:
            with count_progress(len(numbers)) as reached:
                outcome = run(connection, entity, to, numbers, keep_ids=keep_ids, tell=reached)
        finally:
            connection.close()
        console.print(f"{counted(outcome.sent, 'message')} sent to {to}", highlight=False)
        if outcome.unsettled:
            tell(
                f"peeklock: {outcome.unsettled:,} of them are still dead letters of {entity!r}: their locks "
                "were lost before they were completed. The next run sends them again with the same ids."
            )
        if outcome.missing:
            tell(
                f"peeklock: {outcome.missing:,} of the chosen were not received: other receivers have "
                "locked or settled them. Run the command again later."
            )
    if outcome.unsettled or outcome.missing:
        sys.exit(1)


@click.command()
@stacked(CONNECTION, ENTITY, DRY_RUN)
def release(connection_string: str | None, entity: str, dry_run: bool) -> None:
    """Release messages that a stream in mode peekLock deferred and left behind.

    Stop the stream first. The messages go to the dead-letter queue; `resubmit` sends them from there.
    Exit status: 0 done, 1 failed or some are locked.
    """
    text = _needed(connection_string)
    with guarded():
        from peeklock.client.connection_string import ConnectionString
        from peeklock.spark.source.deferred import release_deferred

        with count_progress(None) as reached:
            settings = ConnectionString.parse(text)
            done = release_deferred(settings, entity, dry_run=dry_run, progress=reached)
        said = "would go" if dry_run else "went"
        click.echo(f"{counted(done.moved, 'deferred message')} of {entity} {said} to its dead-letter queue")
        if done.locked:
            tell(
                f"peeklock: {counted(done.locked, 'deferred message')} of {entity!r} left: locked by "
                "other receivers, or by a run of this job that was killed. Run the command again when the "
                "locks have ended."
            )
            sys.exit(1)


@click.command()
@stacked(CONNECTION, ENTITY)
def cursors(connection_string: str | None, entity: str) -> None:
    """Show the cursors of a queue: whose they are, what they hold, and how far behind they are.

    Exit status: 0 shown, 1 failed.
    """
    text = _needed(connection_string)
    with guarded():
        from rich.console import Console

        from peeklock.client.claims import list_cursors
        from peeklock.client.connection_string import ConnectionString
        from peeklock.pipeline.display import show_cursors
        from peeklock.pipeline.options import WIDTH

        found, now_ms = list_cursors(ConnectionString.parse(text), entity)
        out = Console()
        show_cursors(out if out.is_terminal else Console(width=WIDTH), entity, found, now_ms)


ALL = (capture, replay, resubmit, release, cursors)
