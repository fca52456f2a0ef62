"""Tables of Spark's catalog over entities: a named connection, INSERT of strings, no secret shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from peeklock.testing.served import ServedBroker
from tests.spark.sink.test_sink import arrived, failure

pytestmark = pytest.mark.spark

_numbers = count(1)

PAGE = Path(__file__).parents[2] / "docs/reference/spark.md"

Make = Callable[..., str]


@pytest.fixture
def connection(broker: ServedBroker, tmp_path: Path) -> str:
    """A named connection to the broker."""
    file = tmp_path / "shop"
    file.write_text(broker.connection_string + "\n")
    return f"file:{file}"


@pytest.fixture
def make_table(spark: Any, connection: str) -> Iterator[Make]:
    """Make tables over an entity; takes further options."""
    made: list[str] = []

    def make(entity: str, **options: str) -> str:
        name = f"messages_{next(_numbers)}"
        given = {"connection": connection, "entity": entity, **options}
        pairs = ", ".join(f"{key} '{value}'" for key, value in given.items())
        spark.sql(f"CREATE TABLE {name} USING servicebus OPTIONS ({pairs})")
        made.append(name)
        return name

    yield make
    for name in made:
        spark.sql(f"DROP TABLE {name}")


def secret_of(broker: ServedBroker) -> str:
    """Return the key of a broker's connection string."""
    return broker.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]


def test_a_table_takes_strings_maps_and_times(
    spark: Any, broker: ServedBroker, client: Any, make_queue: Make, make_table: Make
) -> None:
    """Req: X-01"""
    queue = make_queue()
    table = make_table(queue)
    due = datetime.fromtimestamp(broker.now_ms() / 1000, UTC) + timedelta(hours=1)
    spark.sql(f"INSERT INTO {table} (body, messageId) VALUES ('grün', 'a')")
    spark.sql(f"INSERT INTO {table} (messageId, body) SELECT 'b', X'74776F'")
    spark.sql(
        f"INSERT INTO {table} (body, applicationProperties, scheduledEnqueueTime) "
        f"SELECT 'three', map('n', '1', 'm', 2), TIMESTAMP '{due.isoformat()}'"
    )
    spark.sql(f"INSERT INTO {table} BY NAME SELECT CAST(id AS STRING) AS body FROM range(2)")
    first = arrived(client, queue, 4)
    assert sorted(str(message) for message in first) == ["0", "1", "grün", "two"]
    assert {message.message_id for message in first} > {"a", "b"}
    broker.advance(timedelta(hours=1, seconds=1))
    (later,) = arrived(client, queue, 1)
    assert later.application_properties == {b"n": b"1", b"m": b"2"}


def test_a_table_is_read_by_name_as_text_and_as_bytes(
    spark: Any, client: Any, make_queue: Make, make_table: Make
) -> None:
    """A body that is not text keeps its bytes."""
    from azure.servicebus import ServiceBusMessage

    queue = make_queue()
    table = make_table(queue, maxMessagesPerTrigger="10")  # for streams; a SELECT leaves it out
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage("text"), ServiceBusMessage(b"\xff\x00\xfe")])
    rows = spark.sql(
        f"SELECT body = 'text' AS same, CAST(body AS BINARY) AS bytes FROM {table} ORDER BY sequenceNumber"
    ).collect()
    assert [(row.same, bytes(row.bytes)) for row in rows] == [(True, b"text"), (False, b"\xff\x00\xfe")]
    assert spark.table(table).where("messageId IS NULL").count() == 0


def test_a_table_is_read_as_a_stream(
    spark: Any, client: Any, make_queue: Make, make_table: Make, tmp_path: Path
) -> None:
    queue = make_queue()
    table = make_table(queue, mode="cursor", consumerName="sql")
    spark.sql(f"INSERT INTO {table} (body) VALUES ('1'), ('2')")
    name = f"stream_of_{table}"
    query = (
        spark.readStream.table(table)
        .select("body")
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None
    assert sorted(row.body for row in spark.table(name).collect()) == ["1", "2"]
    arrived(client, queue, 0)
    assert "a batch read has no commit" in failure(spark.table(table).collect)


def test_an_option_of_the_statement_replaces_the_tables(
    spark: Any, client: Any, make_queue: Make, make_table: Make
) -> None:
    queue, other = make_queue(), make_queue()
    table = make_table(queue)
    spark.sql(f"INSERT INTO {table} WITH (entity = '{other}') (body) VALUES ('x')")
    assert spark.sql(f"SELECT * FROM {table}").count() == 0
    assert spark.sql(f"SELECT * FROM {table} WITH (queueName = '{other}')").first().entity == other
    assert [str(message) for message in arrived(client, other, 1)] == ["x"]


def test_rows_of_another_table_do_not_go_where_that_one_leads(
    spark: Any, client: Any, make_queue: Make, make_table: Make
) -> None:
    """The columns are equal, so Spark hands in those of the source with the source's comment."""
    queues = make_queue(), make_queue()
    source, target = (make_table(queue) for queue in queues)
    spark.sql(f"INSERT INTO {source} (body) VALUES ('x')")
    text = failure(lambda: spark.sql(f"INSERT INTO {target} SELECT * FROM {source}"))
    assert "is set by the broker and cannot be sent; do not select it" in text
    spark.sql(f"INSERT INTO {target} (body) SELECT body FROM {source}")
    for queue in queues:
        assert [str(message) for message in arrived(client, queue, 1)] == ["x"]


def test_no_statement_shows_the_secret(
    spark: Any, broker: ServedBroker, make_queue: Make, make_table: Make, connection: str
) -> None:
    queue = make_queue()
    table = make_table(queue)
    shown = [
        *spark.sql(f"DESCRIBE EXTENDED {table}").collect(),
        *spark.sql(f"SHOW CREATE TABLE {table}").collect(),
        *spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {table}").collect(),
        *spark.sql(f"EXPLAIN EXTENDED INSERT INTO {table} (body) VALUES ('x')").collect(),
    ]
    text = "\n".join(str(row) for row in shown)
    assert f'"connection": "{connection}", "entity": "{queue}"' in text  # what the table is
    assert secret_of(broker) not in text


def test_a_table_with_a_secret_is_refused(spark: Any, broker: ServedBroker) -> None:
    text = failure(
        lambda: spark.sql(
            "CREATE TABLE secrets USING servicebus OPTIONS "
            f"(connectionString '{broker.connection_string}', entity 'orders')"
        )
    )
    assert "option connectionString is not for tables" in text
    assert "Set option connection instead, env:NAME or file:/path" in text
    assert secret_of(broker) not in text
    assert not spark.catalog.tableExists("secrets")


def test_a_table_with_columns_has_no_options_and_the_error_says_so(
    spark: Any, connection: str, make_queue: Make
) -> None:
    """Spark does not hand the options in."""
    spark.sql(
        "CREATE TABLE with_columns (body STRING) USING servicebus OPTIONS "
        f"(connection '{connection}', entity '{make_queue()}')"
    )
    try:
        for statement in ("SELECT * FROM with_columns", "INSERT INTO with_columns VALUES ('x')"):
            text = failure(lambda statement=statement: spark.sql(statement).collect())
            assert "A table of the catalog has no options if it was created with columns" in text
    finally:
        spark.sql("DROP TABLE with_columns")


def test_a_dataframe_is_written_into_a_table(
    spark: Any, client: Any, connection: str, make_queue: Make, make_table: Make, tmp_path: Path
) -> None:
    """Of a stream, Spark hands in only the columns that it writes: it names its options itself."""
    queue = make_queue()
    table = make_table(queue)
    spark.sql("SELECT 'x' AS body").writeTo(table).append()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    write = (
        rows.selectExpr("'y' AS body")
        .limit(1)
        .writeStream.trigger(once=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    text = failure(lambda: write.toTable(table).awaitTermination(60))
    assert "is used by insertInto or toTable: set them there" in text
    query = write.options(connection=connection, entity=queue).toTable(table)
    query.awaitTermination(60)
    assert query.exception() is None
    assert sorted(str(message) for message in arrived(client, queue, 2)) == ["x", "y"]


def test_a_view_has_columns_of_its_own(spark: Any, client: Any, connection: str, make_queue: Make) -> None:
    queue = make_queue()
    spark.sql(
        "CREATE TEMPORARY VIEW outbox (body STRING, timeToLive BIGINT) USING servicebus OPTIONS "
        f"(connection '{connection}', entity '{queue}')"
    )
    try:
        spark.sql("INSERT INTO outbox VALUES ('x', 90000)")
    finally:
        spark.catalog.dropTempView("outbox")
    (message,) = arrived(client, queue, 1)
    assert (str(message), message.time_to_live) == ("x", timedelta(seconds=90))


def test_the_pages_statements_do_what_it_says(
    spark: Any, client: Any, administration: Any, connection: str
) -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    statements = ";".join(blocks).replace("file:/run/secrets/shop", connection).split(";")
    administration.create_queue("orders")
    try:
        found = [spark.sql(statement).collect() for statement in statements if statement.strip()]
        assert ("order-1", "two books") in [(row.messageId, row.body) for rows in found for row in rows]
    finally:
        spark.sql("DROP TABLE orders")
        spark.catalog.dropTempView("outbox")
    messages = arrived(client, "orders", 2)
    assert [str(message) for message in messages] == ["two books", "for a minute and a half"]
    assert messages[1].time_to_live == timedelta(seconds=90)
    assert administration.get_queue_runtime_properties("orders").scheduled_message_count == 1
