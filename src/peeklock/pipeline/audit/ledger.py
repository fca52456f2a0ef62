"""A ledger of clients compared with the event log.

A ledger is a table (Parquet, or JSON lines) with a row for each action of a client with a known outcome:

    namespace        optional in an audit of one namespace
    client           name, only shown
    action           `sent`, `send_refused`, `send_unknown` (no answer), `received`, `completed`
                     (acknowledged); `OTHERS` are not compared
    entity           path of the queue, sub-queue, topic or subscription
    message_id       of the three send actions
    sequence_number  of all others
    at               UTC, when the client knew the outcome; without it the row counts as before the horizon

Clients write the rows of a transaction when its commit is acknowledged.
"""

from __future__ import annotations

from pathlib import Path

from py4j.protocol import Py4JJavaError  # Spark's own errors while reading files come as that
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it
from pyspark.sql.types import StructType

from peeklock.pipeline.audit.checks import (
    OTHERS,
    RECEIPTS,
    SAMPLES_MAX,
    SENDS,
    AuditInput,
    Check,
    Verdict,
)
from peeklock.pipeline.audit.log import Log, milliseconds

LEDGER_SCHEMA = (
    "namespace string, client string, action string, entity string, message_id string, sequence_number long, "
    "at timestamp"
)

_BROKEN = "_broken"
"""Column for lines that are not JSON or have values of other types."""


def read_ledger(spark: SparkSession, path: str) -> DataFrame:
    """Read a ledger. Raises: AuditInput."""
    table = read_table(spark, path, LEDGER_SCHEMA, required=("action", "entity"))
    strange = table.where(~F.col("action").isin(*SENDS, *RECEIPTS, *OTHERS)).select("action").first()
    if strange is not None:
        known = ", ".join((*SENDS, *RECEIPTS, *OTHERS))
        raise AuditInput(f"'{path}' has an unknown action '{strange.action}'; known are {known}")
    return table


def read_table(spark: SparkSession, path: str, schema: str, *, required: tuple[str, ...]) -> DataFrame:
    """Read a table of Parquet or JSON lines as columns of `schema`; missing ones are null.

    Raises:
        AuditInput: it is missing, cannot be read, or lacks a required value.
    """
    wanted = StructType.fromDDL(schema)
    assert isinstance(wanted, StructType)
    local = Path(path)
    is_parquet = path.rstrip("/").endswith(".parquet") or (
        local.is_dir() and next(local.rglob("*.parquet"), None) is not None
    )
    try:
        if is_parquet:
            found = spark.read.parquet(path)
            table = found.select(
                *(
                    (F.col(entry.name) if entry.name in found.columns else F.lit(None))
                    .cast(entry.dataType)
                    .alias(entry.name)
                    for entry in wanted
                )
            )
        else:
            table = (
                spark.read.schema(f"{schema}, {_BROKEN} string")
                .option("columnNameOfCorruptRecord", _BROKEN)
                .json(path)
            )
        lacking = table.agg(
            *(F.count_if(F.col(name).isNull()).alias(name) for name in required),
            *(F.count(name).alias(name) for name in table.columns if name == _BROKEN),
        ).first()
    except (PySparkException, Py4JJavaError) as failure:
        raise AuditInput(f"'{path}' cannot be read as {schema}: {_first_line(failure)}") from failure
    assert lacking is not None
    if lacking.asDict().get(_BROKEN):
        raise AuditInput(f"{lacking[_BROKEN]} lines of '{path}' cannot be read as JSON with {schema}")
    for name in required:
        if lacking[name]:
            raise AuditInput(f"{lacking[name]} rows of '{path}' have no {name}")
    return table.drop(_BROKEN)


def _first_line(failure: Exception) -> str:
    return (str(failure).splitlines() or [type(failure).__name__])[0]


def with_namespace(table: DataFrame, log: Log) -> DataFrame:
    """Fill the namespace where the table has none, if the log is of one namespace."""
    names = list(log.first_batch)
    if len(names) == 1:
        return table.withColumn("namespace", F.coalesce("namespace", F.lit(names[0])))
    if table.where(F.col("namespace").isNull()).limit(1).count():
        raise AuditInput(f"the log has {len(names)} namespaces: each row must name its own")
    return table


def check_ledger(log: Log, verdict: Verdict, table: DataFrame, horizon: dict[str, int]) -> None:
    """Compare a ledger with the log."""
    spark = log.events.sparkSession
    limits = F.broadcast(
        spark.createDataFrame(
            [
                (name, horizon[name], log.begins_late(name), any(gap.namespace == name for gap in log.gaps))
                for name in log.last_ms
            ],
            "namespace string, horizon_ms long, late boolean, gaps boolean",
        )
    )
    rows = (
        with_namespace(table, log)
        .withColumn("entity", F.lower("entity"))
        .join(limits, "namespace")
        .withColumn("judged", F.col("at").isNull() | (milliseconds("at") <= F.col("horizon_ms")))
        .withColumn("excused", F.col("late") | F.col("gaps"))
    )
    verdict.ledger_rows = table.count()
    excused = _check_sends(log, verdict, rows) + _check_receipts(log, verdict, rows)
    if excused:
        verdict.not_proven.append(
            f"{excused:,} rows of the ledger have no event in the log, which begins late or has gaps."
        )


def _check_sends(log: Log, verdict: Verdict, rows: DataFrame) -> int:
    """Compare sends with events enqueued or dropped as duplicates; return how many rows are excused."""
    key = ("namespace", "entity", "message_id")
    sent = (
        rows.where(F.col("action").isin(*SENDS) & F.col("message_id").isNotNull())
        .groupBy(*key)
        .agg(
            F.count_if((F.col("action") == "sent") & F.col("judged")).alias("sure"),
            F.count_if((F.col("action") == "send_unknown") | ~F.col("judged")).alias("unsure"),
            F.any_value("client").alias("client"),
            F.any_value("excused").alias("excused"),
        )
    )
    event_type = F.col("event_type")
    kept = (
        log.events.where(
            event_type.isin("enqueued", "scheduled", "duplicate_dropped") & F.col("message_id").isNotNull()
        )
        .groupBy("namespace", F.lower("entity").alias("entity"), "message_id")
        .agg(
            F.count_if(event_type != "duplicate_dropped").alias("kept"),
            F.count_if(event_type == "duplicate_dropped").alias("dropped"),
            F.min("sequence_number").alias("sequence_number"),
            F.min("batch_no").alias("batch_no"),
        )
    )
    compared = sent.join(kept, list(key), "left").fillna(0, ["kept", "dropped"])
    lost = F.col("kept") + F.col("dropped") < F.col("sure")
    twice = F.col("kept") > F.col("sure") + F.col("unsure")
    code = F.when(lost, int(Check.SENT_LOST)).when(twice, int(Check.SENT_TWICE))
    what = F.format_string(
        "message id '%s' of client '%s': %d sends acknowledged, %d enqueued, %d dropped as duplicates",
        "message_id",
        F.coalesce("client", F.lit("?")),
        "sure",
        "kept",
        "dropped",
    )
    return _report(verdict, compared, code, what)


def _check_receipts(log: Log, verdict: Verdict, rows: DataFrame) -> int:
    """Compare receipts and completions with the log; return how many rows are excused."""
    key = ("namespace", "entity", "sequence_number")
    told = (
        rows.where(F.col("action").isin(*RECEIPTS) & F.col("sequence_number").isNotNull() & F.col("judged"))
        .groupBy(*key)
        .agg(
            F.count_if(F.col("action") == "completed").alias("completed"),
            F.any_value("client").alias("client"),
            F.any_value("excused").alias("excused"),
        )
    )
    event_type = F.col("event_type")
    known = (
        log.events.where(event_type.isin("enqueued", "scheduled", "completed"))
        .groupBy("namespace", F.lower("entity").alias("entity"), "sequence_number")
        .agg(
            F.count_if(event_type == "completed").alias("ended"),
            F.count("*").alias("events"),
            F.min("batch_no").alias("batch_no"),
        )
    )
    compared = told.join(known, list(key), "left").fillna(0, ["ended", "events"])
    code = F.when(F.col("events") == 0, int(Check.RECEIVED_UNKNOWN)).when(
        (F.col("completed") > 0) & (F.col("ended") == 0), int(Check.COMPLETION_LOST)
    )
    what = F.format_string("client '%s'", F.coalesce("client", F.lit("?")))
    return _report(verdict, compared, code, what)


def _report(verdict: Verdict, compared: DataFrame, code: Column, what: Column) -> int:
    # A missing event may be in the missing beginning or in a gap of the log.
    lacking = code.isin(int(Check.SENT_LOST), int(Check.RECEIVED_UNKNOWN), int(Check.COMPLETION_LOST))
    wrong = (
        compared.withColumns({"code": code, "what": what})
        .where(F.col("code").isNotNull())
        .withColumn("excused", F.col("excused") & lacking)
    )
    sample = F.struct("namespace", "entity", "sequence_number", "batch_no", "what")
    found = (
        wrong.groupBy("code", "excused", F.pmod(F.xxhash64("what"), F.lit(SAMPLES_MAX)).alias("bucket"))
        .agg(F.count("*").alias("rows"), F.min(sample).alias("sample"))
        .orderBy("code", "sample")
        .collect()
    )
    for row in found:
        if not row.excused:
            verdict.add(Check(row.code), row.rows, *row.sample)
    return sum(row.rows for row in found if row.excused)
