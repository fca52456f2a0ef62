"""Options of the data source `servicebus`: every one of them, read and checked in one place.

Owns: names, aliases, which use takes which, defaults, the forms of values. Must not know: connections, Spark.
Names are taken in any case. What a use would not look at is refused, as what nobody knows is: an option that
is ignored hides a mistake.
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import OptionError


class Mode(enum.Enum):
    """How messages are taken."""

    CURSOR = "cursor"
    PEEK_LOCK = "peekLock"
    BROWSE = "browse"


class Use(enum.Enum):
    """What the data source was asked for."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a stream"
    WRITE = "a write"


class SubQueue(enum.Enum):
    """Which queue of an entity; the value is its path below the entity."""

    MAIN = ""
    DEAD_LETTER = "/$DeadLetterQueue"
    TRANSFER_DEAD_LETTER = "/$Transfer/$DeadLetterQueue"


class Edge(enum.Enum):
    """A place that is found when the query starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


Offsets = Edge | dict[str, dict[int, int]]
"""An edge for all, or by entity and broker partition the first sequence number to read (as a start) or not to
read (as an end). -2 and -1 stand for the edges, as in Kafka's source."""

EARLIEST_NUMBER: Final = -2
LATEST_NUMBER: Final = -1

FETCH_SIZE: Final = 1000
"""Messages that one request asks for. Our choice: an answer has 256 KiB at most, so of small messages a
thousand."""

CONSUMER_NAME: Final = "spark"

_BROWSE: Final = "browse"
_STREAMS: Final = "streams"
_READS: Final = "reads"
_CURSOR: Final = "cursor"
_WRITES: Final = "writes"
_ALL: Final = "reads and writes"

KNOWN: Final[dict[str, str]] = {
    "connectionString": _ALL,
    "caFile": _ALL,
    "operationTimeout": _ALL,
    "entity": _ALL,
    "queueName": _ALL,
    "topicName": _ALL,
    "path": _ALL,
    "subscriptionName": _READS,
    "subQueue": _READS,
    "mode": _READS,
    "minPartitions": _READS,
    "fetchSize": _READS,
    "includeBody": _READS,
    "includeEncoded": _READS,
    "failOnDataLoss": _READS,
    "maxMessagesPerTrigger": _STREAMS,
    "maxBytesPerTrigger": _STREAMS,
    "startingOffsets": _BROWSE,
    "startingEnqueuedTime": _BROWSE,
    "endingOffsets": _BROWSE,
    "sessionId": _BROWSE,
    "consumerName": _CURSOR,
    "messageIdColumn": _WRITES,
}
"""Every option, and what it is for."""

_BY_LOWER: Final = {name.lower(): name for name in KNOWN}

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark hands to every source or sink of a stream."""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Options:
    """All options of one use, picklable. A list of entities is never empty but for a write."""

    settings: ConnectionString
    use: Use
    mode: Mode
    entities: tuple[str, ...]
    """Paths as on links: `orders`, `orders/$DeadLetterQueue`, `events/Subscriptions/audit`."""
    sub_queue: SubQueue
    starting: Offsets
    starting_time_ms: int | None
    """Only messages enqueued from then on, UTC ms."""
    ending: Offsets
    messages_max: int | None
    """Messages in one micro-batch; None = no limit."""
    bytes_max: int | None
    """Bytes of messages in one micro-batch, as on the wire; at least one message comes all the same."""
    partitions_min: int | None
    """Tasks to divide a read into; None = as many as Spark has cores for."""
    fail_on_data_loss: bool
    fetch_size: int
    include_body: bool
    """False: the column `body` is null, and brokers that can leave bodies out are asked to."""
    include_encoded: bool
    """True: the rows have the column `encoded` besides."""
    consumer_name: str
    session_id: str | None
    message_id_column: str | None


def read_options(given: Mapping[str, str], use: Use) -> Options:
    """Read and check the options of a use.

    Raises:
        OptionError: one is unknown, missing, wrong or out of place; the text names it.
    """
    values = _named(given)
    mode = _mode(values, use)
    _refuse_misplaced(values, use, mode)
    settings = _settings(values)
    sub_queue = _sub_queue(values)
    entities = _entities(values, settings, sub_queue, use)
    starting = _offsets(values, "startingOffsets", Edge.EARLIEST)
    starting_time_ms = _value(values, "startingEnqueuedTime", _time_ms)
    if starting_time_ms is not None:
        if "startingOffsets" in values:
            raise OptionError("options startingOffsets and startingEnqueuedTime: give one of them.")
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
        fail_on_data_loss=_value(values, "failOnDataLoss", _boolean) is not False,
        fetch_size=_value(values, "fetchSize", _positive) or FETCH_SIZE,
        include_body=_value(values, "includeBody", _boolean) is not False,
        include_encoded=_value(values, "includeEncoded", _boolean) is True,
        consumer_name=_value(values, "consumerName", _consumer_name) or CONSUMER_NAME,
        session_id=values.get("sessionId"),
        message_id_column=values.get("messageIdColumn"),
    )


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Give the options by their proper names."""
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
            f"option mode is {mode.value!r}: a batch read has no commit, so it could never settle what it "
            f"took. Read with mode=browse, which changes nothing, or settle with a stream: readStream with "
            f"mode={mode.value} and trigger(availableNow=True)."
        )
    return mode


def _refuse_misplaced(values: Mapping[str, str], use: Use, mode: Mode) -> None:
    """Refuse what this use would not look at."""
    fitting = {_ALL}
    if use is Use.WRITE:
        fitting.add(_WRITES)
    else:
        fitting.add(_READS)
        if use is Use.STREAM_READ:
            fitting.add(_STREAMS)
        if mode is Mode.BROWSE:
            fitting.add(_BROWSE)
        if mode is Mode.CURSOR:
            fitting.add(_CURSOR)
    asked = use.value if use is Use.WRITE else f"{use.value} with mode={mode.value}"
    for name in values:
        kind = KNOWN[name]
        if kind not in fitting:
            where = {_BROWSE: "reads with mode=browse", _CURSOR: "streams with mode=cursor"}.get(kind, kind)
            raise OptionError(f"option {name} is for {where}, and this is {asked}: leave it out.")
    if "endingOffsets" in values and use is not Use.BATCH_READ:
        raise OptionError("option endingOffsets is for batch reads, and a stream has no end: leave it out.")


def _settings(values: Mapping[str, str]) -> ConnectionString:
    text = values.get("connectionString")
    if not text:
        raise OptionError("option connectionString is missing: it says which broker, and who you are.")
    settings = ConnectionString.parse(text, ca_file=values.get("caFile"))
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
        raise OptionError(f"options {' and '.join(named)} both name entities: give one of them.")
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
        raise OptionError("option subscriptionName needs option topicName beside it.")
    own = settings.entity_path
    if own:
        foreign = [one for one in entities if one.lower() != own.lower()]
        if foreign:
            raise OptionError(
                f"option {named[0]} is {foreign[0]!r}, and connectionString is for EntityPath={own} alone: "
                f"leave one of them out."
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
            raise OptionError(f"option {name} is a JSON list of other things than names.")
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
    """Give offsets by the paths of entities, where they were given by the names of option entity."""
    if isinstance(offsets, Edge):
        return offsets
    paths = {path.removesuffix(sub_queue.value).lower(): path for path in entities}
    unknown = next((one for one in offsets if one.lower() not in paths), None)
    if unknown is not None:
        raise OptionError(
            f"option {name} has the entity {unknown!r}, which is not among those that are read "
            f"({', '.join(entities)})."
        )
    return {paths[one.lower()]: numbers for one, numbers in offsets.items()}


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {name} is no valid JSON: {error}.") from None


def _value(values: Mapping[str, str], name: str, read: Callable[[str], _Value]) -> _Value | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(f"option {name} is {text!r}: it takes {error}.") from None


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError("a whole number from 1 on")
    return int(text)


def _bytes(text: str) -> int:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    number, unit = text.lower().removesuffix("b"), 1
    if number and number[-1] in units:
        number, unit = number[:-1], units[number[-1]]
    try:
        return _positive(number) * unit
    except ValueError:
        raise ValueError("a number of bytes such as 1048576, 512k, 64m or 1g") from None


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
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time such as 2026-01-31T08:00:00Z, or ms since 1970") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def _consumer_name(text: str) -> str:
    if not 1 <= len(text) <= 128:
        raise ValueError("1 to 128 characters")
    return text
