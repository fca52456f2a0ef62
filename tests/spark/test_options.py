"""Options of the data source: what is taken, what is refused and how that is said."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from peeklock.client.errors import OptionError
from peeklock.spark.options import KNOWN, Edge, Key, Mode, Options, SubQueue, Use, read_options

CONNECTION = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k"
BATCH, STREAM, WRITE = Use.BATCH_READ, Use.STREAM_READ, Use.WRITE


def read(use: Use = BATCH, **given: str) -> Options:
    if "connection" not in given:
        given.setdefault("connectionString", CONNECTION)
    return read_options(given, use)


def refusal(use: Use = BATCH, **given: str) -> str:
    with pytest.raises(OptionError) as raised:
        read(use, **given)
    return str(raised.value)


def test_defaults() -> None:
    found = read(entity="orders")
    assert found.entities == ("orders",)
    assert (found.mode, found.sub_queue) == (Mode.BROWSE, SubQueue.MAIN)
    assert (found.starting, found.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert (found.messages_max, found.bytes_max, found.partitions_min) == (None, None, None)
    assert (found.fail_on_data_loss, found.include_body, found.include_encoded) == (True, True, False)
    assert read(STREAM, entity="orders").mode is Mode.CURSOR
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_file_of_certificates_that_is_not_there_is_refused_where_the_query_is_planned() -> None:
    assert refusal(entity="q", caFile="/nowhere/ca.pem") == (
        "option caFile: the file of certificates '/nowhere/ca.pem' cannot be read: No such file or directory."
        " It is read where the query is planned."
    )


def test_the_key_of_tasks_is_a_column() -> None:
    assert read(entity="q", partitionBy="SESSIONID").partition_by is Key.SESSION_ID
    assert read(STREAM, entity="q", partitionBy="partitionKey").partition_by is Key.PARTITION_KEY
    assert refusal(entity="q", partitionBy="entity") == (
        "option partitionBy is 'entity': it takes sessionId or partitionKey."
    )
    assert "option partitionBy is for reads, and this is a write" in refusal(WRITE, partitionBy="sessionId")


def test_names_are_taken_in_any_case_and_values_too() -> None:
    found = read_options(
        {"CONNECTIONSTRING": CONNECTION, "ENTITY": "q", "mode": "PEEKLOCK", "maxbytespertrigger": "2m"},
        STREAM,
    )
    assert found.mode is Mode.PEEK_LOCK
    assert found.bytes_max == 2 << 20


@pytest.mark.parametrize(
    ("given", "entities"),
    [
        ({"entity": "a, b/c ,/d/"}, ("a", "b/c", "d")),
        ({"queueName": '["a", "b"]'}, ("a", "b")),
        ({"path": "a"}, ("a",)),
        ({"topicName": "t", "subscriptionName": "x,y"}, ("t/Subscriptions/x", "t/Subscriptions/y")),
        ({"entity": "a", "subQueue": "DeadLetter"}, ("a/$DeadLetterQueue",)),
        (
            {"topicName": "t", "subscriptionName": "x", "subQueue": "transferDeadLetter"},
            ("t/Subscriptions/x/$Transfer/$DeadLetterQueue",),
        ),
        ({"connectionString": f"{CONNECTION};EntityPath=own"}, ("own",)),
    ],
)
def test_entities_are_named_in_many_ways(given: dict[str, Any], entities: tuple[str, ...]) -> None:
    assert read(**given).entities == entities


def test_offsets_are_by_entity_and_partition() -> None:
    found = read(
        entity="a,b",
        subQueue="deadLetter",
        startingOffsets='{"A": 7, "b": {"3": -2}}',
        endingOffsets="latest",
    )
    assert found.starting == {"a/$DeadLetterQueue": {0: 7}, "b/$DeadLetterQueue": {3: -2}}


def test_a_time_is_iso_or_ms() -> None:
    expected = round(datetime(2026, 1, 31, 8, tzinfo=UTC).timestamp() * 1000)
    for text in ("2026-01-31T08:00:00Z", "2026-01-31 08:00:00", "2026-01-31T09:00:00+01:00", str(expected)):
        assert read(entity="a", startingEnqueuedTime=text).starting_time_ms == expected


def test_a_write_may_leave_the_entity_to_the_rows() -> None:
    assert read(WRITE).entities == ()
    assert read(WRITE, topicName="t", messageIdColumn="id", checkpointLocation="/x").entities == ("t",)


@pytest.mark.parametrize(
    ("use", "given", "says"),
    [
        (BATCH, {"entitty": "a"}, "option entitty is not known .* did you mean entity?"),
        (BATCH, {"entity": "a", "zzz": "1"}, "option zzz is not known .* known are "),
        (BATCH, {}, "option entity is missing"),
        (BATCH, {"entity": ""}, "option entity is ''"),
        (BATCH, {"entity": "a,,b"}, "name is empty"),
        (BATCH, {"entity": "a,a"}, "names 'a' twice"),
        (BATCH, {"entity": "[1]"}, "option entity must be a JSON list of names"),
        (BATCH, {"entity": "a", "queueName": "b"}, "options entity and queueName both"),
        (BATCH, {"topicName": "t"}, "option topicName is set and subscriptionName is not"),
        (BATCH, {"entity": "t", "subscriptionName": "s"}, "subscriptionName requires option topicName"),
        (BATCH, {"entity": "a", "subQueue": "dlq"}, "option subQueue is 'dlq': it takes deadLetter or"),
        (BATCH, {"entity": "a", "mode": "peek"}, "option mode is 'peek': it takes cursor, peekLock, browse"),
        (BATCH, {"entity": "a", "mode": "cursor"}, "a batch read has no commit.*mode=browse.*availableNow"),
        (BATCH, {"entity": "a", "mode": "peekLock"}, "a batch read has no commit"),
        (BATCH, {"entity": "a", "maxMessagesPerTrigger": "1"}, "is for streams, and this is a batch read"),
        (STREAM, {"entity": "a", "startingOffsets": "earliest"}, "is for reads with mode=browse"),
        (STREAM, {"entity": "a", "mode": "browse", "consumerName": "x"}, "is for streams with mode=cursor"),
        (STREAM, {"entity": "a", "mode": "browse", "endingOffsets": "latest"}, "a stream has no end"),
        (STREAM, {"entity": "a", "consumerName": "x" * 129}, "option consumerName .* 1 to 128 characters"),
        (
            WRITE,
            {"entity": "a", "subQueue": "deadLetter"},
            "option subQueue is for reads, and this is a write",
        ),
        (WRITE, {"entity": "a", "mode": "cursor"}, "option mode is for reads"),
        (
            BATCH,
            {"entity": "a", "fetchSize": "0"},
            "option fetchSize is '0': it takes a whole number from 1 to 2147483647",
        ),
        (BATCH, {"entity": "a", "minPartitions": "x"}, "option minPartitions is 'x'"),
        (STREAM, {"entity": "a", "maxBytesPerTrigger": "1x"}, "option maxBytesPerTrigger .* 64m"),
        (BATCH, {"entity": "a", "includeBody": "yes"}, "option includeBody is 'yes': it takes true or false"),
        (BATCH, {"entity": "a", "operationTimeout": "-1"}, "option operationTimeout"),
        (BATCH, {"entity": "a", "startingOffsets": "first"}, "option startingOffsets is 'first'"),
        (BATCH, {"entity": "a", "startingOffsets": "{"}, "option startingOffsets is not valid JSON"),
        (BATCH, {"entity": "a", "startingOffsets": '{"a": "x"}'}, "a sequence number"),
        (BATCH, {"entity": "a", "startingOffsets": '{"a": {"0": -3}}'}, "a sequence number"),
        (BATCH, {"entity": "a", "startingOffsets": '{"b": 1}'}, "has the entity 'b', which is not read"),
        (BATCH, {"entity": "a", "endingOffsets": "earliest"}, "option endingOffsets is 'earliest'"),
        (BATCH, {"entity": "a", "startingEnqueuedTime": "noon"}, "option startingEnqueuedTime"),
        (
            BATCH,
            {"entity": "a", "startingEnqueuedTime": "1", "startingOffsets": "latest"},
            "startingOffsets and startingEnqueuedTime exclude each other",
        ),
        (BATCH, {"entity": "a", "connectionString": ""}, "option connectionString is missing"),
        (
            BATCH,
            {"entity": "a", "connectionString": "SharedAccessKeyName=k;SharedAccessKey=v"},
            "option connectionString: the connection string has no Endpoint",
        ),
        (
            BATCH,
            {"entity": "a", "connectionString": f"{CONNECTION};EntityPath=b"},
            "option entity is 'a', and connectionString is for EntityPath=b",
        ),
    ],
)
def test_what_is_wrong_is_named(use: Use, given: dict[str, str], says: str) -> None:
    text = refusal(use, **given)
    assert re.search(says, text), text


NONSENSE: dict[str, tuple[Use, str, str]] = {
    "connectionString": (BATCH, "\N{SNOWMAN}", "the connection string has a part without '='"),
    "connection": (BATCH, "shop", "must be env:NAME, a variable of the environment, or file:/path"),
    "tokenFile": (BATCH, "token", "it takes an absolute path"),
    "operationTimeout": (WRITE, "nan", "it takes seconds, more than 0 and at most 86400"),
    "entity": (BATCH, ",", "an entity's name is empty"),
    "queueName": (BATCH, "[1]", "must be a JSON list of names"),
    "topicName": (WRITE, '["t"', "is not valid JSON"),
    "path": (BATCH, "/", "an entity's name is empty"),
    "subscriptionName": (BATCH, "a,,b", "an entity's name is empty"),
    "subQueue": (BATCH, "dlq", "it takes deadLetter or transferDeadLetter"),
    "mode": (STREAM, "x", "it takes cursor, peekLock, browse"),
    "minPartitions": (BATCH, "1e3", "it takes a whole number from 1 to 2147483647"),
    "fetchSize": (BATCH, "2147483648", "it takes a whole number from 1 to 2147483647"),
    "includeBody": (BATCH, "", "it takes true or false"),
    "includeEncoded": (BATCH, "1", "it takes true or false"),
    "failOnDataLoss": (BATCH, "no", "it takes true or false"),
    "caFile": (BATCH, "/no/such/ca.pem", "the file of certificates '/no/such/ca.pem' cannot be read"),
    "partitionBy": (BATCH, "messageId", "it takes sessionId or partitionKey"),
    "maxMessagesPerTrigger": (STREAM, "-5", "it takes a whole number from 1 to 2147483647"),
    "maxBytesPerTrigger": (STREAM, "0g", "it takes a number of bytes such as 1048576, 512k, 64m or 1g"),
    "startingOffsets": (BATCH, '{"a":' * 100_000, "is not valid JSON"),
    "startingEnqueuedTime": (BATCH, "9" * 5000, "it takes a time such as 2026-01-31T08:00:00Z, or ms"),
    "endingOffsets": (BATCH, "earliest", "it takes 'latest' or numbers as JSON"),
    "sessionId": (BATCH, "s" * 129, "it takes at most 128 characters"),
    "consumerName": (STREAM, "", "it takes 1 to 128 characters"),
    "takeOver": (STREAM, "maybe", "it takes true or false"),
    "maxMessagesPerSecond": (STREAM, "fast", "it takes a whole number from 1 to 2147483647"),
}
CHECKED_ELSEWHERE = {"messageIdColumn"}
"""By the sink, which knows the table's columns."""


def test_each_option_has_nonsense() -> None:
    assert NONSENSE.keys() | CHECKED_ELSEWHERE == KNOWN.keys()


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_with_the_option_and_what_it_takes(name: str) -> None:
    use, value, says = NONSENSE[name]
    given = {"topicName": "t"} if name == "subscriptionName" else {}
    if name not in ("entity", "queueName", "topicName", "path", "subscriptionName"):
        given["entity"] = "a"
    text = refusal(use, **given, **{name: value})
    assert text.startswith(f"option {name}"), text
    assert says in text


def test_large_and_old_values_are_taken() -> None:
    stream = read(STREAM, entity="a", maxBytesPerTrigger="3000000000", maxMessagesPerTrigger="2147483647")
    assert (stream.bytes_max, stream.messages_max) == (3_000_000_000, 2147483647)
    assert read(entity="a", startingEnqueuedTime="0").starting_time_ms == 0
