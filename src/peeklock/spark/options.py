"""Options of the data source `servicebus`, read and checked in one place.

Names are case-insensitive. An option that a use ignores is refused like an unknown one: it hides a mistake.
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from peeklock.client.connection_string import ConnectionString, read_certificates
from peeklock.client.errors import OptionError
from peeklock.spark.connections import named_connection


class Mode(enum.Enum):
    """How messages are read."""

    CURSOR = "cursor"
    PEEK_LOCK = "peekLock"
    BROWSE = "browse"


class Use(enum.Enum):
    """What Spark asks the data source for."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a stream"
    WRITE = "a write"


class SubQueue(enum.Enum):
    """Which queue of an entity; the value is its path below the entity."""

    MAIN = ""
    DEAD_LETTER = "/$DeadLetterQueue"
    TRANSFER_DEAD_LETTER = "/$Transfer/$DeadLetterQueue"


class Key(enum.Enum):
    """What messages of one task have in common; the value is the column that shows it."""

    SESSION_ID = "sessionId"
    PARTITION_KEY = "partitionKey"


class Edge(enum.Enum):
    """A position that is resolved when the query starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


Offsets = Edge | dict[str, dict[int, int]]
"""An edge for all, or by entity and broker partition the first sequence number to read (start) or not to read
(end). -2 and -1 mean the edges, as in Kafka's source."""

EARLIEST_NUMBER: Final = -2
LATEST_NUMBER: Final = -1

FETCH_SIZE: Final = 1000
"""Messages per request. Our choice: an answer has at most 256 KiB, a thousand small messages."""

_COUNT_MAX: Final = 0x7FFFFFFF
"""Largest number of messages or tasks that a request or Spark can carry: 32 bits with a sign."""

_BROWSE: Final = "browse"
_STREAMS: Final = "streams"
_READS: Final = "reads"
_CURSOR: Final = "cursor"
_WRITES: Final = "writes"
_ALL: Final = "reads and writes"

KNOWN: Final[dict[str, str]] = {
    **dict.fromkeys(("connectionString", "connection", "tokenFile", "caFile", "operationTimeout"), _ALL),
    **dict.fromkeys(("entity", "queueName", "topicName", "path"), _ALL),
    **dict.fromkeys(("subscriptionName", "subQueue", "mode", "minPartitions", "fetchSize"), _READS),
    **dict.fromkeys(("includeBody", "includeEncoded", "failOnDataLoss", "partitionBy"), _READS),
    **dict.fromkeys(("maxMessagesPerTrigger", "maxBytesPerTrigger"), _STREAMS),
    **dict.fromkeys(("startingOffsets", "startingEnqueuedTime", "endingOffsets", "sessionId"), _BROWSE),
    **dict.fromkeys(("consumerName", "takeOver", "maxMessagesPerSecond"), _CURSOR),
    "messageIdColumn": _WRITES,
}
"""Every option and the uses that take it."""

_ALTERNATIVES: Final = (
    frozenset({"connection", "connectionString"}),
    frozenset({"entity", "queueName", "topicName", "subscriptionName", "path"}),
)
"""Options that say the same thing: one that is given replaces all that a table keeps."""

_BY_LOWER: Final = {name.lower(): name for name in KNOWN}

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark passes to every source or sink of a stream."""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Options:
    """All options of one use, picklable. Only a write may have no entities."""

    settings: ConnectionString
    use: Use
    mode: Mode
    entities: tuple[str, ...]
    """Paths as on links: `orders`, `orders/$DeadLetterQueue`, `events/Subscriptions/audit`."""
    sub_queue: SubQueue
    starting: Offsets
    starting_time_ms: int | None
    """Only messages enqueued since then, UTC ms."""
    ending: Offsets
    messages_max: int | None
    """Messages in one micro-batch; None = no limit."""
    bytes_max: int | None
    """Bytes of messages in one micro-batch, as on the wire; at least one message is read."""
    partitions_min: int | None
    """Tasks to divide a read into; None = by its size."""
    partition_by: Key | None
    """Messages with the same value come in one task, in sequence order."""
    fail_on_data_loss: bool
    fetch_size: int
    include_body: bool
    """False: the column `body` is null, and the broker is asked to omit bodies."""
    include_encoded: bool
    """True: rows also have the column `encoded`."""
    consumer_name: str | None
    """Name of the cursor; None = one that the query makes."""
    take_over: bool
    """Take the cursor from another query that has read with it."""
    messages_per_second: int | None
    session_id: str | None
    message_id_column: str | None


def read_options(given: Mapping[str, str], use: Use, table: Mapping[str, str] | None = None) -> Options:
    """Read and check the options of a use.

    `table`: options that a table keeps for all its uses; those of other uses are left out, and an option that
    is given replaces it.

    Raises: OptionError.
    """
    values = named_options(given)
    kept = named_options(table or {})
    mode = _mode({**kept, **values}, use)
    fitting = _fitting(use, mode)
    replaced = frozenset[str]().union(*(group for group in _ALTERNATIVES if group & values.keys()))
    kept = {name: value for name, value in kept.items() if _fits(name, use, fitting) and name not in replaced}
    _refuse_misplaced(values, use, mode)
    values = {**kept, **values}
    settings = _settings(values)
    sub_queue = _sub_queue(values)
    entities = _entities(values, settings, sub_queue, use)
    starting = _offsets(values, "startingOffsets", Edge.EARLIEST)
    starting_time_ms = _value(values, "startingEnqueuedTime", _time_ms)
    if starting_time_ms is not None:
        if "startingOffsets" in values:
            raise OptionError("options startingOffsets and startingEnqueuedTime exclude each other.")
        starting = Edge.EARLIEST
    ending = _offsets(values, "endingOffsets", Edge.LATEST)
    if ending is Edge.EARLIEST:
        raise OptionError("option endingOffsets is 'earliest': it takes 'latest' or numbers as JSON.")
    starting = _by_path("startingOffsets", starting, entities, sub_queue)
    ending = _by_path("endingOffsets", ending, entities, sub_queue)
    return Options(
        settings=settings,
        use=use,
        mode=mode,
        entities=entities,
        sub_queue=sub_queue,
        starting=starting,
        starting_time_ms=starting_time_ms,
        ending=ending,
        messages_max=_value(values, "maxMessagesPerTrigger", _positive),
        bytes_max=_value(values, "maxBytesPerTrigger", _bytes),
        partitions_min=_value(values, "minPartitions", _positive),
        partition_by=_value(values, "partitionBy", _key),
        fail_on_data_loss=_value(values, "failOnDataLoss", _boolean) is not False,
        fetch_size=_value(values, "fetchSize", _positive) or FETCH_SIZE,
        include_body=_value(values, "includeBody", _boolean) is not False,
        include_encoded=_value(values, "includeEncoded", _boolean) is True,
        consumer_name=_value(values, "consumerName", _consumer_name),
        take_over=_value(values, "takeOver", _boolean) is True,
        messages_per_second=_value(values, "maxMessagesPerSecond", _positive),
        session_id=_value(values, "sessionId", _session_id),
        message_id_column=values.get("messageIdColumn"),
    )


def named_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their canonical names, without those of Spark. Raises: OptionError."""
    values: dict[str, str] = {}
    for key, value in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is not None:
            values[name] = value.strip() if name not in ("sessionId", "consumerName") else value
        elif key.lower() not in _OF_SPARK:
            near = difflib.get_close_matches(key.lower(), _BY_LOWER, 1)
            hint = f"did you mean {_BY_LOWER[near[0]]}?" if near else f"known are {', '.join(sorted(KNOWN))}."
            raise OptionError(f"option {key} is not known to the data source servicebus: {hint}")
    return values


def _mode(values: Mapping[str, str], use: Use) -> Mode:
    if use is Use.WRITE:
        return Mode.CURSOR
    text = values.get("mode")
    if text is None:
        return Mode.BROWSE if use is Use.BATCH_READ else Mode.CURSOR
    mode = next((mode for mode in Mode if mode.value.lower() == text.lower()), None)
    if mode is None:
        raise OptionError(f"option mode is {text!r}: it takes {', '.join(mode.value for mode in Mode)}.")
    if use is Use.BATCH_READ and mode is not Mode.BROWSE:
        raise OptionError(
            f"option mode is {mode.value!r}: a batch read has no commit, so it cannot settle messages. Read "
            f"with mode=browse, which changes nothing, or settle with a stream: readStream with "
            f"mode={mode.value} and trigger(availableNow=True)."
        )
    return mode


def _refuse_misplaced(values: Mapping[str, str], use: Use, mode: Mode) -> None:
    """Refuse options that this use ignores."""
    fitting = _fitting(use, mode)
    asked = use.value if use is Use.WRITE else f"{use.value} with mode={mode.value}"
    for name in values:
        kind = KNOWN[name]
        if kind not in fitting:
            where = {_BROWSE: "reads with mode=browse", _CURSOR: "streams with mode=cursor"}.get(kind, kind)
            raise OptionError(f"option {name} is for {where}, and this is {asked}: remove it.")
    if "endingOffsets" in values and not _fits("endingOffsets", use, fitting):
        raise OptionError("option endingOffsets is for batch reads, and a stream has no end: remove it.")


def _fitting(use: Use, mode: Mode) -> frozenset[str]:
    """Return the kinds of options that a use takes."""
    if use is Use.WRITE:
        return frozenset({_ALL, _WRITES})
    of_mode = {Mode.BROWSE: _BROWSE, Mode.CURSOR: _CURSOR}.get(mode, _READS)
    return frozenset({_ALL, _READS, of_mode, _STREAMS if use is Use.STREAM_READ else _READS})


def _fits(name: str, use: Use, fitting: frozenset[str]) -> bool:
    return KNOWN[name] in fitting and (name != "endingOffsets" or use is Use.BATCH_READ)


def _settings(values: Mapping[str, str]) -> ConnectionString:
    if "connection" in values and "connectionString" in values:
        raise OptionError("options connection and connectionString both name the broker: set one of them.")
    name = "connection" if "connection" in values else "connectionString"
    text = named_connection(values[name]) if name == "connection" else values.get(name)
    if not text:
        raise OptionError(
            "option connectionString is missing: it names the broker and your credentials. Set it, or option "
            "connection, which names where it is. A table of the catalog has no options if it was created "
            "with columns, or is used by insertInto or toTable: set them there."
        )
    token_file = _value(values, "tokenFile", _absolute)
    try:
        settings = ConnectionString.parse(text, token_file=token_file)
    except OptionError as wrong:
        raise OptionError(f"option {name}: {wrong}") from None
    if "caFile" in values:
        try:
            settings = replace(settings, certificates=read_certificates(values["caFile"]))
        except OptionError as wrong:
            raise OptionError(f"option caFile: {wrong} It is read where the query is planned.") from None
    timeout_s = _value(values, "operationTimeout", _seconds)
    return settings if timeout_s is None else replace(settings, timeout_s=timeout_s)


def _sub_queue(values: Mapping[str, str]) -> SubQueue:
    text = values.get("subQueue")
    if text is None:
        return SubQueue.MAIN
    found = {"deadletter": SubQueue.DEAD_LETTER, "transferdeadletter": SubQueue.TRANSFER_DEAD_LETTER}
    if text.lower() not in found:
        raise OptionError(f"option subQueue is {text!r}: it takes deadLetter or transferDeadLetter.")
    return found[text.lower()]


def _entities(
    values: Mapping[str, str], settings: ConnectionString, sub_queue: SubQueue, use: Use
) -> tuple[str, ...]:
    named = [name for name in ("entity", "queueName", "topicName", "path") if name in values]
    if len(named) > 1:
        raise OptionError(f"options {' and '.join(named)} both name entities: set one of them.")
    entities: list[str] = []
    if named:
        entities = _list(named[0], values[named[0]])
        if named[0] == "topicName" and use is not Use.WRITE:
            if "subscriptionName" not in values:
                raise OptionError(
                    "option topicName is set and subscriptionName is not: a topic is read through one of its "
                    "subscriptions."
                )
            subscriptions = _list("subscriptionName", values["subscriptionName"])
            entities = [f"{topic}/Subscriptions/{one}" for topic in entities for one in subscriptions]
    if "subscriptionName" in values and (not named or named[0] != "topicName"):
        raise OptionError("option subscriptionName requires option topicName.")
    own = settings.entity_path
    if own:
        foreign = [one for one in entities if one.lower() != own.lower()]
        if foreign:
            raise OptionError(
                f"option {named[0]} is {foreign[0]!r}, and connectionString is for EntityPath={own} only: "
                f"remove one of them."
            )
        entities = entities or [own]
    if not entities and use is not Use.WRITE:
        raise OptionError(
            "option entity is missing: name a queue or topic/Subscriptions/name (or use queueName, or "
            "topicName with subscriptionName)."
        )
    return tuple(f"{one}{sub_queue.value}" for one in entities)


def _list(name: str, text: str) -> list[str]:
    """Read one name, a list with commas, or a list as JSON."""
    items: list[Any]
    if text.startswith("["):
        items = _json(name, text)
        if not all(isinstance(item, str) for item in items):
            raise OptionError(f"option {name} must be a JSON list of names.")
    else:
        items = text.split(",")
    names = [item.strip().strip("/") for item in items]
    if not names or not all(names):
        raise OptionError(f"option {name} is {text!r}: an entity's name is empty.")
    doubled = next((one for at, one in enumerate(names) if one in names[:at]), None)
    if doubled is not None:
        raise OptionError(f"option {name} names {doubled!r} twice.")
    return names


def _offsets(values: Mapping[str, str], name: str, default: Edge) -> Offsets:
    text = values.get(name)
    if text is None:
        return default
    for edge in Edge:
        if text.lower() == edge.value:
            return edge
    found = _json(name, text) if text.startswith("{") else None
    if not isinstance(found, dict):
        raise OptionError(
            f"option {name} is {text!r}: it takes earliest, latest, or JSON such as "
            f'{{"orders": 100}}, with broker partitions {{"orders": {{"0": 100, "1": -2}}}}.'
        )
    offsets: dict[str, dict[int, int]] = {}
    for entity, value in found.items():
        by_partition = value if isinstance(value, dict) else {"0": value}
        try:
            offsets[entity.strip("/")] = {
                int(partition): _offset(number) for partition, number in by_partition.items()
            }
        except (TypeError, ValueError):
            raise OptionError(
                f"option {name} has {value!r} for entity {entity!r}: it takes a sequence number (-2 "
                f"earliest, -1 latest), or a map from broker partitions to such numbers."
            ) from None
    return offsets


def _offset(number: Any) -> int:
    if type(number) is not int or not EARLIEST_NUMBER <= number < 1 << 63:
        raise ValueError
    return number


def _by_path(name: str, offsets: Offsets, entities: tuple[str, ...], sub_queue: SubQueue) -> Offsets:
    """Return offsets by paths of entities; users write them by the names of option entity."""
    if isinstance(offsets, Edge):
        return offsets
    paths = {path.removesuffix(sub_queue.value).lower(): path for path in entities}
    unknown = next((one for one in offsets if one.lower() not in paths), None)
    if unknown is not None:
        raise OptionError(
            f"option {name} has the entity {unknown!r}, which is not read ({', '.join(entities)} are)."
        )
    return {paths[one.lower()]: numbers for one, numbers in offsets.items()}


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"option {name} is not valid JSON: {error}.") from None


def _value(values: Mapping[str, str], name: str, read: Callable[[str], _Value]) -> _Value | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(f"option {name} is {text!r}: it takes {error}.") from None


def _positive(text: str) -> int:
    number = _digits(text)
    if number is None or not 1 <= number <= _COUNT_MAX:
        raise ValueError(f"a whole number from 1 to {_COUNT_MAX}")
    return number


def _digits(text: str) -> int | None:
    """Return a number of at most 18 decimal digits; None for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _key(text: str) -> Key:
    for key in Key:
        if text.lower() == key.value.lower():
            return key
    raise ValueError(" or ".join(key.value for key in Key))


def _bytes(text: str) -> int:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    number, unit = text.lower().removesuffix("b"), 1
    if number and number[-1] in units:
        number, unit = number[:-1], units[number[-1]]
    count = _digits(number)
    if not count:
        raise ValueError("a number of bytes such as 1048576, 512k, 64m or 1g")
    return count * unit


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise ValueError("seconds, more than 0 and at most 86400")
    return seconds


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _time_ms(text: str) -> int:
    number = _digits(text)
    if number is not None:
        return number
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time such as 2026-01-31T08:00:00Z, or ms since 1970") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("an absolute path, as tasks run in other folders")
    return text


def _session_id(text: str) -> str:
    if len(text) > 128:
        raise ValueError("at most 128 characters")
    return text


def _consumer_name(text: str) -> str:
    if not 1 <= len(text) <= 128:
        raise ValueError("1 to 128 characters")
    return text
