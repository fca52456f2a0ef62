"""Tables and streams written to a broker by a real Spark; the official client sees what arrived."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from peeklock.testing.served import ServedBroker

pytestmark = pytest.mark.spark


@pytest.fixture
def queue(make_queue: Callable[..., str], request: pytest.FixtureRequest) -> str:
    """Make a queue of the test's own; `request.param` are its settings."""
    return make_queue(**getattr(request, "param", {}))


def writer(broker: ServedBroker, rows: Any, queue: str | None, **options: str) -> Any:
    """Return the writer of a DataFrame."""
    made = rows.write.format("servicebus").option("connectionString", broker.connection_string)
    if queue is not None:
        made = made.option("entity", queue)
    return made.options(**options).mode("append")


def arrived(client: Any, queue: str, expected: int, **options: Any) -> list[Any]:
    """Receive and delete the messages of a queue; there must be as many as `expected`."""
    from azure.servicebus import ServiceBusReceiveMode

    found: list[Any] = []
    with client.get_queue_receiver(
        queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=0, **options
    ) as receiver:
        while len(found) < expected:
            came = receiver.receive_messages(max_message_count=expected - len(found), max_wait_time=10)
            assert came, f"{len(found)} of {expected} messages arrived"
            found += came
        assert receiver.peek_messages() == []
    return found


def count_of(administration: Any, queue: str) -> int:
    """Return how many messages a queue holds."""
    counted: int = administration.get_queue_runtime_properties(queue).total_message_count
    return counted


def failure(action: Any) -> str:
    """Return the text with which Spark fails."""
    with pytest.raises(Exception) as failed:  # Spark has many kinds; the text is checked
        action()
    return str(failed.value)


def test_columns_arrive_as_properties_of_the_message(
    spark: Any, broker: ServedBroker, client: Any, queue: str
) -> None:
    """Req: X-01"""
    rows = spark.sql(
        "SELECT 'hello' AS body, 'm-1' AS messageId, 'c-1' AS correlationId, 'sub' AS subject,"
        " 'text/plain' AS contentType, 'there' AS `to`, 'here' AS replyTo, 'key' AS partitionKey,"
        " INTERVAL '90' SECOND AS timeToLive, map('a', '1', 'b', NULL) AS applicationProperties"
    )
    writer(broker, rows, queue).save()
    (message,) = arrived(client, queue, 1)
    assert str(message) == "hello"
    assert (message.message_id, message.correlation_id, message.subject) == ("m-1", "c-1", "sub")
    assert (message.content_type, message.to, message.reply_to) == ("text/plain", "there", "here")
    assert message.partition_key == "key"
    assert message.time_to_live == timedelta(seconds=90)
    assert message.application_properties == {b"a": b"1"}


def test_a_table_of_many_partitions_arrives_whole_and_each_id_once(
    spark: Any, broker: ServedBroker, administration: Any, client: Any, queue: str
) -> None:
    """Req: X-01"""
    rows = spark.range(0, 5000, 1, 4).selectExpr("cast(id AS string) AS body")
    writer(broker, rows, queue).save()
    assert count_of(administration, queue) == 5000
    messages = arrived(client, queue, 5000)
    assert {int(str(message)) for message in messages} == set(range(5000))
    assert len({message.message_id for message in messages}) == 5000


def test_rows_go_where_their_column_entity_says(
    spark: Any, broker: ServedBroker, administration: Any, client: Any, queue: str
) -> None:
    """Null stands for the option."""
    other = f"{queue}-other"
    administration.create_queue(other)
    rows = spark.createDataFrame([("1", None), ("2", other), ("3", None)], "body string, entity string")
    writer(broker, rows.coalesce(1), queue).save()
    assert [str(message) for message in arrived(client, queue, 2)] == ["1", "3"]
    assert [str(message) for message in arrived(client, other, 1)] == ["2"]


@pytest.mark.parametrize("queue", [{"requires_session": True}], indirect=True)
def test_sessions_keep_their_order(spark: Any, broker: ServedBroker, client: Any, queue: str) -> None:
    """Req: X-01"""
    rows = spark.range(0, 3000, 1, 1).selectExpr(
        "cast(id AS string) AS body", "concat('s', id % 3) AS sessionId"
    )
    writer(broker, rows, queue).save()
    for number in range(3):
        messages = arrived(client, queue, 1000, session_id=f"s{number}")
        assert [int(str(message)) for message in messages] == list(range(number, 3000, 3))


def test_a_scheduled_row_arrives_when_it_is_due(
    spark: Any, broker: ServedBroker, administration: Any, client: Any, queue: str
) -> None:
    """Req: X-01"""
    due = datetime.fromtimestamp(broker.now_ms() / 1000, UTC) + timedelta(days=3)
    rows = spark.createDataFrame([("later", due)], "body string, scheduledEnqueueTime timestamp")
    writer(broker, rows, queue).save()
    assert administration.get_queue_runtime_properties(queue).scheduled_message_count == 1
    broker.advance(timedelta(days=3, seconds=1))
    assert [str(message) for message in arrived(client, queue, 1)] == ["later"]


@pytest.mark.parametrize("queue", [{"requires_duplicate_detection": True}], indirect=True)
def test_ids_of_a_column_make_a_repeated_write_one(
    spark: Any, broker: ServedBroker, administration: Any, queue: str
) -> None:
    """Req: X-02"""
    rows = spark.range(0, 100, 1, 2).selectExpr("'x' AS body", "id AS key")
    for _ in range(2):
        writer(broker, rows, queue, messageIdColumn="key").save()
    assert count_of(administration, queue) == 100


@pytest.mark.parametrize("queue", [{"requires_duplicate_detection": True}], indirect=True)
def test_a_second_job_makes_other_ids(
    spark: Any, broker: ServedBroker, administration: Any, queue: str
) -> None:
    rows = spark.range(0, 10, 1, 2).selectExpr("'x' AS body")
    for _ in range(2):
        writer(broker, rows, queue).save()
    assert count_of(administration, queue) == 20


def test_sql_inserts(spark: Any, broker: ServedBroker, client: Any, queue: str) -> None:
    """Req: X-01"""
    spark.sql(
        f"CREATE TEMPORARY VIEW outbox USING servicebus OPTIONS ("
        f"connectionString '{broker.connection_string}', entity '{queue}')"
    )
    try:
        spark.sql("INSERT INTO outbox (messageId, body) VALUES ('a', CAST('one' AS BINARY))")
        message = arrived(client, queue, 1)[0]
    finally:
        spark.catalog.dropTempView("outbox")
    assert (message.message_id, str(message)) == ("a", "one")


def test_a_dead_letter_is_sent_again_as_it_was_sent(
    spark: Any, broker: ServedBroker, client: Any, queue: str
) -> None:
    """Body, types and annotations are the sender's; the reason of dead-lettering goes, the id is a new one.

    Req: X-04
    """
    from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

    sent = AmqpAnnotatedMessage(
        value_body={"n": 1, "list": [True, None, 2.5]},
        header=AmqpMessageHeader(priority=7, durable=True),
        properties=AmqpMessageProperties(message_id="old", subject="sub", user_id=b"me"),
        application_properties={"count": 5, "when": uuid.UUID(int=3)},
        annotations={"x-own": "a"},
    )
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(sent)
    with client.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=10)
        receiver.dead_letter_message(message, reason="Odd", error_description="is odd")
    dead = (
        spark.read.format("servicebus")
        .options(connectionString=broker.connection_string, entity=queue)
        .options(mode="browse", subQueue="deadLetter", includeEncoded="true")
        .load()
    )
    rows = dead.selectExpr(
        "encoded",
        "concat(messageId, '-again') AS messageId",
        "map('DeadLetterReason', NULL, 'DeadLetterErrorDescription', NULL) AS applicationProperties",
    )
    writer(broker, rows, queue).save()
    (again,) = arrived(client, queue, 1)
    raw = again.raw_amqp_message
    assert raw.body == {b"n": 1, b"list": [True, None, 2.5]}
    assert (raw.header.priority, raw.header.durable, raw.header.delivery_count) == (7, True, 0)
    assert (again.message_id, again.subject, raw.properties.user_id) == ("old-again", "sub", b"me")
    assert again.application_properties == {b"count": 5, b"when": uuid.UUID(int=3)}
    assert raw.annotations[b"x-own"] == b"a"
    assert again.dead_letter_reason is None


class TestStream:
    """`writeStream`."""

    @staticmethod
    def run(spark: Any, broker: ServedBroker, folder: Path, queue: str, checkpoint: str) -> None:
        """Send what is new in a folder of texts, and end."""
        stream = spark.readStream.schema("body string").json(str(folder / "in"))
        query = (
            stream.writeStream.format("servicebus")
            .option("connectionString", broker.connection_string)
            .option("entity", queue)
            .option("checkpointLocation", str(folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert query.exception() is None

    @staticmethod
    def add(folder: Path, name: str, *bodies: str) -> None:
        """Put a file with texts into the folder."""
        (folder / "in").mkdir(exist_ok=True)
        file = folder / name
        file.write_text("".join(f'{{"body": "{body}"}}\n' for body in bodies))
        file.rename(folder / "in" / name)

    def test_each_batch_is_sent_once(
        self, spark: Any, broker: ServedBroker, client: Any, queue: str, tmp_path: Path
    ) -> None:
        """Req: X-01"""
        self.add(tmp_path, "1.json", "a", "b")
        self.run(spark, broker, tmp_path, queue, "checkpoint")
        self.add(tmp_path, "2.json", "c")
        self.run(spark, broker, tmp_path, queue, "checkpoint")
        assert sorted(str(message) for message in arrived(client, queue, 3)) == ["a", "b", "c"]

    @pytest.mark.parametrize("queue", [{"requires_duplicate_detection": True}], indirect=True)
    def test_a_batch_that_comes_again_has_the_same_ids(
        self, spark: Any, broker: ServedBroker, administration: Any, queue: str, tmp_path: Path
    ) -> None:
        """A crash after the sends and before the commit log: Spark runs the batch again. Req: X-02"""
        self.add(tmp_path, "1.json", *map(str, range(50)))
        self.run(spark, broker, tmp_path, queue, "checkpoint")
        for file in (tmp_path / "checkpoint" / "commits").iterdir():
            file.unlink()
        self.run(spark, broker, tmp_path, queue, "checkpoint")
        assert count_of(administration, queue) == 50
        self.run(spark, broker, tmp_path, queue, "another checkpoint")
        assert count_of(administration, queue) == 100

    def test_complete_mode_is_refused(
        self, spark: Any, broker: ServedBroker, queue: str, tmp_path: Path
    ) -> None:
        self.add(tmp_path, "1.json", "a")
        stream = spark.readStream.schema("body string").json(str(tmp_path / "in")).groupBy("body").count()
        query = (
            stream.select("body")
            .writeStream.format("servicebus")
            .option("connectionString", broker.connection_string)
            .option("entity", queue)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode("complete")
            .start()
        )
        assert "cannot be overwritten" in failure(lambda: query.awaitTermination(60))


class TestRefusals:
    """What cannot be written, and the text that says so."""

    def test_overwrite(self, spark: Any, broker: ServedBroker, queue: str) -> None:
        write = writer(broker, spark.sql("SELECT 'x' AS body"), queue).mode("overwrite")
        assert "cannot be overwritten: use .mode('append')" in failure(write.save)

    def test_an_unknown_column(self, spark: Any, broker: ServedBroker, queue: str) -> None:
        text = failure(writer(broker, spark.sql("SELECT 'x' AS body, 1 AS sesionId"), queue).save)
        assert "Column 'sesionId' cannot be sent. Did you mean 'sessionId'?" in text

    def test_a_column_of_another_type(self, spark: Any, broker: ServedBroker, queue: str) -> None:
        text = failure(writer(broker, spark.sql("SELECT 7 AS body"), queue).save)
        assert "Column 'body' must be binary or string; it is int." in text

    def test_no_entity_at_all(self, spark: Any, broker: ServedBroker) -> None:
        rows = spark.sql("SELECT 'x' AS body")
        assert "option entity is missing" in failure(writer(broker, rows, None).save)
        rows = spark.sql("SELECT 'x' AS body, CAST(NULL AS string) AS entity")
        assert "Row 0 of partition 0: column 'entity' is null" in failure(writer(broker, rows, None).save)

    def test_several_entities(self, spark: Any, broker: ServedBroker) -> None:
        text = failure(writer(broker, spark.sql("SELECT 'x' AS body"), "a,b").save)
        assert "option entity names 2 entities" in text

    def test_an_entity_that_is_not_there_is_named_before_anything_runs(
        self, spark: Any, broker: ServedBroker
    ) -> None:
        rows = spark.sql("SELECT CAST(raise_error('the table was read') AS string) AS body")
        text = failure(writer(broker, rows, "nowhere").save)
        assert "nowhere" in text
        assert "amqp:not-found" in text
        assert "the table was read" not in text

    def test_a_wrong_key_is_refused_without_being_shown(
        self, spark: Any, broker: ServedBroker, queue: str
    ) -> None:
        wrong = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=Wrong")
        rows = spark.sql("SELECT 'x' AS body")
        text = failure(writer(broker, rows, queue).option("connectionString", wrong).save)
        assert "amqp:unauthorized-access" in text
        assert queue in text
        assert "SharedAccessKey=Wrong" not in text

    def test_a_message_that_is_too_large_names_row_entity_size_and_limit(
        self, spark: Any, broker: ServedBroker, queue: str
    ) -> None:
        """Req: X-02"""
        rows = spark.range(0, 10, 1, 1).selectExpr("repeat('x', if(id = 7, 300000, 10)) AS body")
        text = failure(writer(broker, rows, queue).save)
        assert "Row 7 of partition 0: a message of 3000" in text
        assert (
            f"the limit of entity '{queue}' is 262144 bytes. No row of this task counts as written." in text
        )

    @pytest.mark.parametrize("queue", [{"requires_session": True}], indirect=True)
    def test_a_row_without_a_session_is_named(self, spark: Any, broker: ServedBroker, queue: str) -> None:
        rows = spark.range(0, 10, 1, 1).selectExpr("'x' AS body", "if(id < 5, 's', NULL) AS sessionId")
        text = failure(writer(broker, rows, queue).save)
        assert "Row 5 of partition 0" in text
        assert queue in text
        assert "session" in text.lower()

    def test_a_queue_that_is_deleted_while_a_stream_writes_ends_it_by_name(
        self, spark: Any, broker: ServedBroker, administration: Any, queue: str, tmp_path: Path
    ) -> None:
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
        query = (
            stream.selectExpr("cast(value AS string) AS body")
            .writeStream.format("servicebus")
            .option("connectionString", broker.connection_string)
            .option("entity", queue)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        deadline = time.monotonic() + 30
        while count_of(administration, queue) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        administration.delete_queue(queue)
        text = failure(lambda: query.awaitTermination(60))
        assert queue in text
        assert "amqp:not-found" in text or "amqp:resource-deleted" in text
