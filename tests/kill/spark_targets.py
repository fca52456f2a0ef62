"""Where the rows of a killed query go: one class for each way to write.

Owns: how a query writes, and what it has written. Must not know: what is killed, what must come out. A target
is named `module:class`, since the process of the queries makes it. Another module may have targets of its
own: `spark_loop.kill_stream` takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class Place:
    """What a query may write to."""

    folder: Path
    """Of its own; the first query of a target makes it."""
    connection_string: str
    queue: str
    """Exists where the target has `queue`."""


class Target:
    """A way to write. It promises each message once, if its query repeats batches with the same rows."""

    settings: ClassVar[dict[str, str]] = {}
    """Settings of Spark that it needs."""
    queue: ClassVar[dict[str, Any] | None] = None
    """Properties of the queue that it fills; None = it fills none."""
    once: ClassVar[bool] = True
    """Whether the promise is exactly once, else at least once."""

    def write(self, rows: DataFrame, place: Place) -> DataStreamWriter:
        """Return the writer of a query with all columns of the source, without checkpoint and trigger."""
        raise NotImplementedError

    def read(self, spark: SparkSession, place: Place) -> list[str] | None:
        """Return the bodies in its table; None if it fills none."""
        return None


class Table(Target):
    """A table of files, which Spark's own log of the sink makes exact."""

    file_format: ClassVar[str] = "parquet"

    def write(self, rows: DataFrame, place: Place) -> DataStreamWriter:
        """Append."""
        texts = rows.selectExpr("CAST(body AS STRING) AS body", "sequenceNumber")
        return texts.writeStream.format(self.file_format).option("path", str(place.folder))

    def read(self, spark: SparkSession, place: Place) -> list[str]:
        """Return the bodies; none if no batch has come."""
        if not place.folder.exists():
            return []
        rows = spark.read.format(self.file_format).load(str(place.folder))
        return [row.body for row in rows.select("body").collect()]


class Delta(Table):
    """A Delta table, whose log has the number of each batch."""

    file_format = "delta"
    settings: ClassVar = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


class Queue(Target):
    """A queue with duplicate detection, under ids that the sink makes."""

    queue: ClassVar = {"RequiresDuplicateDetection": True}

    def write(self, rows: DataFrame, place: Place) -> DataStreamWriter:
        """Send the bodies alone: the sink's own ids must be the same each time."""
        writer = rows.select("body").writeStream.format("servicebus")
        return writer.option("connectionString", place.connection_string).option("entity", place.queue)


class ForgetfulQueue(Queue):
    """A queue without duplicate detection."""

    queue: ClassVar = {"RequiresDuplicateDetection": False}
    once = False


class EachBatch(Target):
    """`foreachBatch`: a folder for each batch, and a queue by batch writes under ids from the source."""

    queue: ClassVar = {"RequiresDuplicateDetection": True}

    def write(self, rows: DataFrame, place: Place) -> DataStreamWriter:
        """Replace what an earlier attempt left of the folder, then send."""

        def each(batch: DataFrame, number: int) -> None:
            texts = batch.selectExpr("CAST(body AS STRING) AS body")
            texts.write.mode("overwrite").parquet(f"{place.folder}/batch={number}")
            named = batch.selectExpr("body", "concat(entity, '/', sequenceNumber) AS id")
            writer = named.write.format("servicebus").option("messageIdColumn", "id")
            writer = writer.option("connectionString", place.connection_string)
            writer.option("entity", place.queue).mode("append").save()

        return rows.writeStream.foreachBatch(each)

    def read(self, spark: SparkSession, place: Place) -> list[str]:
        """Return the bodies in all folders."""
        if not place.folder.exists():
            return []
        return [row.body for row in spark.read.parquet(str(place.folder)).select("body").collect()]
