"""Options of a table as the comment of one of its columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from peeklock.client.errors import OptionError
from peeklock.spark.options import Use, read_options
from peeklock.spark.source.tables import created_table, table_ddl, table_options

CONNECTION = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=verysecret"


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A named connection."""
    (tmp_path / "shop").write_text(CONNECTION)
    return f"file:{tmp_path / 'shop'}"


def schema_with(comment: str) -> StructType:
    return (
        StructType().add("body", StringType()).add("sequenceNumber", LongType(), True, {"comment": comment})
    )


def test_only_the_options_of_a_new_table_are_kept() -> None:
    """As Spark 4.3 hands them in."""
    handed = {
        "option.connection": "c",
        "provider": "servicebus",
        "owner": "me",
        "connection": "c",
        "own": "1",
    }
    assert created_table(handed) == {"connection": "c"}
    assert created_table({"connection": "c", "entity": "orders"}) is None


def test_the_comment_holds_the_options_and_body_is_a_string(shop: str) -> None:
    ddl = table_ddl({"CONNECTION": shop, "entity": r"it's\n", "includeEncoded": "TRUE"})
    assert ddl.startswith("`body` string, ")
    assert ddl.endswith("`encoded` binary")
    literal = re.search(r"`sequenceNumber` bigint COMMENT '((?:[^'\\]|\\.)*)'", ddl)
    assert literal is not None
    comment = re.sub(r"\\(.)", r"\1", literal[1])  # as Spark reads a literal
    kept = {"connection": shop, "entity": r"it's\n", "includeEncoded": "TRUE"}
    assert table_options(schema_with(comment)) == kept


def test_a_table_without_a_mark_has_no_options() -> None:
    assert table_options(schema_with("the number")) == {}
    assert table_options(StructType().add("sequenceNumber", LongType())) == {}


@pytest.mark.parametrize("comment", ["servicebus x", "servicebus [1]", 'servicebus {"entity": 1}'])
def test_a_comment_that_was_changed_is_named(comment: str) -> None:
    with pytest.raises(OptionError, match=r"comment of column sequenceNumber .* create the table again"):
        table_options(schema_with(comment))


def test_a_use_leaves_out_options_of_other_uses_and_replaces_others(shop: str) -> None:
    table = {
        "connection": shop,
        "entity": "orders",
        "mode": "cursor",
        "maxMessagesPerTrigger": "5",
        "messageIdColumn": "id",
    }
    write = read_options({"queueName": "other"}, Use.WRITE, table)
    assert (write.entities, write.message_id_column, write.messages_max) == (("other",), "id", None)
    stream = read_options({}, Use.STREAM_READ, table)
    assert (stream.entities, stream.messages_max) == (("orders",), 5)
    batch = read_options({"mode": "browse", "connectionString": CONNECTION}, Use.BATCH_READ, table)
    assert batch.messages_max is None
    with pytest.raises(OptionError, match="option fetchSize is for reads"):
        read_options({"fetchSize": "5"}, Use.WRITE, table)


def test_a_topic_may_be_written_only(shop: str) -> None:
    assert "COMMENT" in table_ddl({"connection": shop, "topicName": "prices"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"entity": "orders"}, "option connectionString is missing"),
        (
            {"connectionString": CONNECTION, "entity": "orders"},
            "connectionString is not for tables.*env:NAME",
        ),
        ({"connection": "shop", "entity": "orders"}, "option connection must be env:NAME"),
        ({"connection": CONNECTION, "entity": "orders"}, "option connection must be env:NAME"),
        (
            {"connection": "env:PEEKLOCK_NONE", "entity": "orders"},
            "host .* the variable is not set.*Set PEEK",
        ),
        ({"connection": "file:/none/x", "entity": "orders"}, "host .* cannot be read .No such file"),
        ({"connection": "file:/dev/null", "entity": "orders"}, "host .* it is empty"),
        (
            {"connection": "file:shop", "entity": "orders"},
            "option connection must be .*absolute path",
        ),
        ({"connection": "{shop}", "entty": "orders"}, "option entty is not known .*did you mean entity"),
        ({"connection": "{shop}"}, "option entity is missing"),
        ({"connection": "{shop}", "entity": "orders", "mode": "take"}, "option mode is 'take'"),
        ({"connection": "{shop}", "entity": "orders", "fetchSize": "x"}, "option fetchSize is 'x'"),
        ({"connection": "{shop}", "entity": "a", "mode": "cursor", "maxBytesPerTrigger": "x"}, "64m"),
    ],
)
def test_what_is_wrong_is_named_when_the_table_is_created(
    shop: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(OptionError) as raised:
        table_ddl({name: value.replace("{shop}", shop) for name, value in options.items()})
    text = str(raised.value)
    assert re.search(says, text), text
    assert "verysecret" not in text


def test_a_connection_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", CONNECTION)
    found = read_options({"connection": "env:SHOP", "entity": "orders"}, Use.BATCH_READ)
    assert (found.settings.host, found.settings.key) == ("h", "verysecret")


def test_a_file_with_something_else_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0:secret=verysecret")
    given: dict[str, Any] = {"connection": f"file:{file}", "entity": "orders"}
    with pytest.raises(OptionError) as raised:
        read_options(given, Use.BATCH_READ)
    assert "option connection: the connection string has a part with an unknown name" in str(raised.value)
    assert "secret" not in str(raised.value)
