"""How reads are divided into tasks: the same on every machine, and by key where that is asked for."""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.types import Long
from peeklock.client.browsing import sequence_number
from peeklock.client.connection import connection
from peeklock.spark.options import Key, Mode, Options, Use, read_options
from peeklock.spark.source.browse import BrowseReader
from peeklock.spark.source.browse_stream import BrowseStreamReader
from peeklock.spark.source.cursor import CursorStreamReader, in_sequence
from peeklock.spark.source.peek_lock import PeekLockStreamReader
from peeklock.spark.source.tasks import (
    SHARES_MAX,
    TASK_BYTES,
    TASK_MESSAGES,
    TASKS_MAX,
    Share,
    tasks_for,
)
from peeklock.spark.versions import ReadAllAvailable
from peeklock.testing.served import ServedBroker
from tests.spark.engine import SCHEMA
from tests.spark.streams import Namespace

pytestmark = pytest.mark.spark

Tasks = list[list[dict[str, Any]]]
MODES = ["cursor", "peekLock", "browse", "batch"]
KEYED = StructType.fromJson(SCHEMA.jsonValue()).add("partitionKey", "string")


@pytest.fixture(scope="module")
def namespace(broker: ServedBroker, administration: Any) -> Namespace:
    return Namespace(broker, administration)


def options(**given: str) -> Options:
    return read_options(
        {
            "connectionString": "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k",
            "entity": "q",
            **given,
        },
        Use.STREAM_READ,
    )


def message(number: int, session: str | None = None, key: Any = None, body: str = "") -> bytes:
    annotations: dict[str, Any] = {"x-opt-sequence-number": Long(number)}
    if key is not None:
        annotations["x-opt-partition-key"] = key
    return encode_message(
        message_annotations=annotations, properties=Properties(group_id=session), data=body.encode()
    )


class TestNumber:
    """How many tasks."""

    @pytest.mark.parametrize(
        ("messages", "size_bytes", "tasks"),
        [
            (0, 0, 1),
            (25_000, 0, 1),
            (25_001, 0, 2),
            (200_000, 200_000 << 10, 8),
            (256, 256 << 20, 8),
            (1, TASK_BYTES, 1),
            (1, TASK_BYTES + 1, 2),
            (25_000 * TASKS_MAX + 1, 0, TASKS_MAX),
        ],
    )
    def test_it_follows_from_the_size(self, messages: int, size_bytes: int, tasks: int) -> None:
        assert tasks_for(options(), messages, size_bytes) == tasks

    def test_it_follows_from_the_mode(self) -> None:
        assert tasks_for(options(mode="peekLock"), 2_000) == 2
        assert tasks_for(options(mode="browse"), 200_000) == 8

    def test_an_option_sets_it(self) -> None:
        assert tasks_for(options(minPartitions="3"), 1_000_000) == 3
        assert tasks_for(options(minPartitions="9", partitionBy="sessionId"), 10) == 9

    def test_by_key_it_is_small(self) -> None:
        assert tasks_for(options(partitionBy="sessionId"), 1_000_000) == SHARES_MAX
        assert tasks_for(options(partitionBy="sessionId"), 100) == 1


class TestShare:
    """Which messages a task keeps."""

    @given(st.integers(1, 9), st.text(max_size=8) | st.none(), st.integers(0, 1 << 62), st.sampled_from(Key))
    def test_each_message_is_in_one_share(self, of: int, session: str | None, number: int, by: Key) -> None:
        kept = [no for no in range(of) if Share(no, of, by).has(message(number, session))]
        assert len(kept) == 1

    @given(st.text(max_size=8), st.integers(0, 1 << 62), st.integers(0, 1 << 62))
    def test_messages_of_a_session_share_a_task_however_it_is_spelt(
        self, session: str, one: int, other: int
    ) -> None:
        """Req: C27"""
        share = Share(0, 3, Key.SESSION_ID)
        assert share.has(message(one, session)) == share.has(message(other, session))
        assert share.has(message(one, session)) == share.has(message(other, session.upper()))

    def test_messages_without_a_key_are_spread_evenly(self) -> None:
        for by in Key:
            counts = [sum(Share(no, 3, by).has(message(n)) for n in range(99)) for no in range(3)]
            assert counts == [33, 33, 33]

    def test_a_partition_key_is_text_or_binary_and_else_the_session_id(self) -> None:
        """Source: wire contract C6, 3.1."""
        share = Share(0, 2, Key.PARTITION_KEY)
        for key in map(str, range(20)):
            assert share.has(message(1, None, key)) == share.has(message(2, None, key.encode()))
            assert share.has(message(1, None, key)) == share.has(message(2, key))

    def test_a_session_id_alone_counts_by_session(self) -> None:
        share = Share(0, 2, Key.SESSION_ID)
        assert [share.has(message(number, None, "key")) for number in range(4)] == [True, False, True, False]

    def test_the_shares_are_the_same_in_every_process(self) -> None:
        """Python salts its own hashes. CRC-32 of "123456789" is 0xCBF43926, by its specification."""
        kept = [no for no in range(10) if Share(no, 10, Key.SESSION_ID).has(message(1, "123456789"))]
        assert kept == [0xCBF43926 % 10]


def test_messages_of_later_claims_come_in_their_places() -> None:
    """An abandoned message is claimed after those behind it."""
    parts = [("a", [message(5), message(6)]), ("b", [message(1)]), ("a", [message(3), message(7)])]
    found = [
        (path, [sequence_number(each) for each in payloads])
        for path, payloads in in_sequence(parts, Share(0, 1, Key.SESSION_ID))
    ]
    assert found == [("a", [3, 5, 6, 7]), ("b", [1])]


def reader_of(mode: str, options: Options) -> Any:
    kinds: dict[str, Callable[..., Any]] = {
        "cursor": CursorStreamReader,
        "peekLock": PeekLockStreamReader,
        "browse": BrowseStreamReader,
        "batch": BrowseReader,
    }
    return kinds[mode](options, KEYED)


def offsets_of(reader: Any) -> tuple[Any, Any]:
    """Return start and end of a stream's first batch: all that is there."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    return start, end


def read(mode: str, options: Options) -> Tasks:
    """Return the rows of each task, of a reader that knows of the batch what its offsets say."""
    offsets = () if mode == "batch" else offsets_of(reader_of(mode, options))
    partitions = reader_of(mode, options).partitions(*offsets)
    worker = reader_of(mode, options)
    return [
        [row for batch in worker.read(pickle.loads(pickle.dumps(each))) for row in batch.to_pylist()]
        for each in partitions
    ]


def options_of(namespace: Namespace, mode: str, *entities: str, **given: str) -> Options:
    use = Use.BATCH_READ if mode == "batch" else Use.STREAM_READ
    named = {"connectionString": namespace.broker.connection_string, "entity": ",".join(entities), **given}
    if mode == "cursor":
        named["consumerName"] = "spark"
    return read_options({**named, "mode": "browse" if mode == "batch" else mode}, use)


def send(namespace: Namespace, queue: str, keys: Sequence[tuple[str | None, str | None]]) -> None:
    """Send a message for each pair of session id and partition key."""
    sender = connection(options_of(namespace, "batch", queue).settings).sender(queue)
    for session, key in keys:
        annotations = None if key is None else {"x-opt-partition-key": key}
        sender.send(
            encode_message(message_annotations=annotations, properties=Properties(group_id=session), data=b"")
        )
    sender.flush()
    sender.close()


def require_whole_keys(tasks: Tasks, column: str, count: int) -> None:
    """Require that each key of an entity is in one task and in sequence, and that all messages are there."""
    homes: dict[Any, set[int]] = defaultdict(set)
    seen: dict[Any, list[int]] = defaultdict(list)
    for no, rows in enumerate(tasks):
        for row in rows:
            if row[column] is not None:
                homes[row["entity"], row[column]].add(no)
                seen[row["entity"], row[column]].append(row["sequenceNumber"])
    assert {len(found) for found in homes.values()} == {1}
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    numbers = [(row["entity"], row["sequenceNumber"]) for rows in tasks for row in rows]
    assert len(numbers) == len(set(numbers)) == count
    assert sum(bool(rows) for rows in tasks) > 1, "one task alone shows nothing"


@pytest.mark.parametrize("sessions", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_each_session_is_in_one_task_in_sequence(namespace: Namespace, mode: str, sessions: bool) -> None:
    queue = namespace.queue(requires_session=sessions)
    send(namespace, queue, [(f"s{number % 7}", None) for number in range(200)])
    tasks = read(mode, options_of(namespace, mode, queue, partitionBy="sessionId", minPartitions="3"))
    assert len(tasks) == 3
    require_whole_keys(tasks, "sessionId", 200)


@pytest.mark.parametrize("mode", MODES)
def test_each_partition_key_of_each_entity_is_in_one_task(namespace: Namespace, mode: str) -> None:
    """Also where the broker has partitions; messages without a key are there too."""
    one, other = namespace.queue(enable_partitioning=True), namespace.queue()
    for queue in (one, other):
        send(namespace, queue, [(None, f"k{n % 5}" if n % 6 else None) for n in range(120)])
    tasks = read(mode, options_of(namespace, mode, one, other, partitionBy="PartitionKey", minPartitions="4"))
    require_whole_keys(tasks, "partitionKey", 240)


@pytest.fixture(scope="module")
def long_queue(namespace: Namespace) -> str:
    """A queue of more than one task of mode browse."""
    queue = namespace.queue()
    send(namespace, queue, [(f"s{number % 7}", None) for number in range(TASK_MESSAGES[Mode.BROWSE] + 100)])
    return queue


@pytest.mark.parametrize("keyed", [{}, {"partitionBy": "sessionId"}])
@pytest.mark.parametrize("mode", MODES)
def test_the_tasks_are_the_same_on_every_machine(
    namespace: Namespace, long_queue: str, mode: str, keyed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is asked for again, where there are other cores, is divided into the same tasks."""
    queue = namespace.queue() if mode in ("cursor", "peekLock") else long_queue
    options = options_of(namespace, mode, queue, **keyed)
    if queue != long_queue:
        count = TASK_MESSAGES[options.mode] + 100
        send(namespace, queue, [(f"s{number % 7}", None) for number in range(count)])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    offsets = () if mode == "batch" else offsets_of(reader_of(mode, options))
    first = [vars(each) for each in reader_of(mode, options).partitions(*offsets)]
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert [vars(each) for each in reader_of(mode, options).partitions(*offsets)] == first
    assert len(first) == 2
