"""`peeklock send`: a message from the command line, or many as JSON Lines, to any Service Bus.

It knows batches and lines. `client.composing` knows what a message may have.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import click

from peeklock.cli.message_output import Progress, counted
from peeklock.cli.options import EXISTING_FILE, parsed
from peeklock.cli.places import Given, in_a_namespace, instant_ms
from peeklock.cli.stopping import INTERRUPTED, Stop, stopping
from peeklock.cli.visible import visible

if TYPE_CHECKING:
    from peeklock.client.sender import Sender

READ_BYTES: Final = 1 << 16
"""Standard input taken at a time: what a pipe holds."""

LINE_BYTES_MAX: Final = 256 << 20
"""Longest line. Our choice: above the largest message of any tier, 100 MB, in base64."""

BATCH_COUNT: Final = 100
BATCH_BYTES: Final = 1 << 17
"""Largest batch. Our choice: a larger one is not faster, and is refused as a whole."""

MEMBER_BYTES: Final = 8
"""What a batch has beside each message. Source: wire contract 3.7."""

NAME_A_SESSION: Final = "Name one: --session ID, or sessionId in a line."

IN_FLIGHT: Final = 4000
"""Messages without an outcome. Our choice: the broker always has some, and memory is flat."""


class _Line(int):
    """Number of a line, from 1; a sender's errors name it."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"line {int(self)}"


class _BadLine(Exception):
    """A line is no message; the text names it."""


# Options


def span_s(given: str) -> float:
    """Return a span in seconds. Raises: ValueError."""
    from peeklock.client.composing import TTL_MS_MAX
    from peeklock.client.durations import parse_duration

    found_s = parse_duration(given).total_seconds()
    if not 0 < found_s * 1000 <= TTL_MS_MAX:
        raise ValueError(f"{given!r} is not a span such as 30s; the longest is 49d.")
    return found_s


def _instant(given: str) -> str:
    """Return an instant as it is given. Raises: ValueError."""
    instant_ms(given)
    return given


def pair(given: str) -> tuple[str, Any]:
    """Return name and value of KEY=VALUE or KEY:=JSON. Raises: ValueError."""
    key, separator, text = given.partition("=")
    if not separator or not key.rstrip(":"):
        raise ValueError(f"{given!r} is not KEY=VALUE, such as size=large, nor KEY:=VALUE, such as n:=3.")
    if not key.endswith(":"):
        return key, text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, (bool, int, float)):
        raise ValueError(f"{given!r}: {text!r} is not a number, true or false.")
    return key[:-1], value


_OPTIONS = (
    click.option("--id", "messageId", metavar="TEXT", help="Message id."),
    click.option("--session", "sessionId", metavar="ID", help="Session."),
    click.option("--subject", "subject", metavar="TEXT", help="Subject, or label."),
    click.option("--correlation-id", "correlationId", metavar="TEXT", help="Correlation id."),
    click.option("--content-type", "contentType", metavar="TYPE", help="Such as application/json."),
    click.option("--to", "to", metavar="TEXT", help="Address, for the receiver."),
    click.option("--reply-to", "replyTo", metavar="TEXT", help="Where to send an answer."),
    click.option(
        "--property",
        "properties",
        multiple=True,
        callback=parsed(pair),
        metavar="KEY=VALUE",
        help="Application property; repeatable. KEY:=VALUE is a number, true or false.",
    ),
    click.option(
        "--ttl", "timeToLive", callback=parsed(span_s), metavar="SPAN", help="Time to live: 30s, 5m, 7d."
    ),
    click.option(
        "--at",
        "scheduledEnqueueTime",
        callback=parsed(_instant),
        metavar="TIME",
        help="Schedule it: ISO 8601, in UTC if it has no zone.",
    ),
    click.option("--partition-key", "partitionKey", metavar="TEXT", help="Partition key."),
)
"""The names of the parameters are the keys of a message as JSON."""


def _with_properties(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return in_a_namespace("Send")(command)


# The command


@click.command()
@click.argument("entity")
@click.argument("body", required=False)
@click.option("--file", type=EXISTING_FILE, metavar="FILE", help="The body is what this file has.")
@_with_properties
@click.option("--count", type=click.IntRange(1), metavar="N", help="Send it so often.", show_default="1")
@click.option(
    "--from-line", type=click.IntRange(1), metavar="N", help="First line to send.", show_default="1"
)
@click.option("--skip-bad", is_flag=True, help="Go on after a line that is no message.")
def send(
    entity: str,
    body: str | None,
    file: Path | None,
    given: Given,
    count: int | None,
    from_line: int | None,
    skip_bad: bool,
    **options: Any,
) -> None:
    """Send BODY, a file, or JSON Lines from standard input to ENTITY, a queue or topic.

    \b
    One message:          peeklock send orders "1 pizza" --subject pizza --property n:=1
    A file:               peeklock send orders --file order.json --content-type application/json
    Later:                peeklock send orders "1 pizza" --at 2030-01-31T12:00Z
    Many:                 peeklock send orders < orders.jsonl
    Copies of messages:   peeklock peek orders --json | peeklock send backup

    Without BODY and --file, each line is a message as `peek --json` prints it, such as {"body": "1 pizza",
    "subject": "pizza"}. Keys that a sender cannot set are ignored. Options win over the keys of a line. Works
    with any Service Bus.

    A line that is no message stops it, after those before it are accepted. After a break, messages without an
    outcome are sent again for 10 s, so one may arrive twice. When it stops, it says how to go on.

    Exit status: 0 all are accepted, but for skipped lines; 1 not all, or no broker answers; 2 wrong options;
    130 stopped by Ctrl-C.
    """
    from peeklock.client.composing import ComposeError, compose
    from peeklock.client.errors import ServiceBusError

    _check(body, file, from_line, skip_bad, count)
    entity = entity.strip("/")
    fields = {key: dict(value) if key == "properties" else value for key, value in options.items() if value}
    try:
        one = compose({**_body(body, file), **fields})
    except ComposeError as failure:
        raise click.UsageError(f"{failure}.") from failure
    with given.connected(entity, sends=True) as broker, stopping() as stop:
        outbox = _Outbox(broker.sender(entity, in_flight_max=IN_FLIGHT))
        try:
            if body is None and file is None:
                _send_lines(outbox, stop, fields, from_line or 1, skip_bad)
            else:
                _send_one(outbox, stop, one, count or 1)
            outbox.flush()
        except _BadLine as bad:
            outbox.stop(1, count, f"peeklock: {bad}\n")
        except ServiceBusError as failure:
            given.report(failure, entity, sends=True, about_sessions=NAME_A_SESSION)
            outbox.stop(1, count)
        if stop.is_asked:
            outbox.stop(INTERRUPTED, count)
    outbox.clear()
    click.echo(outbox.summary(entity))


def _body(body: str | None, file: Path | None) -> dict[str, Any]:
    """Return the body of the command line, as keys of a message."""
    if file is not None:
        return {"bodyBase64": base64.b64encode(file.read_bytes()).decode()}
    return {"body": body or ""}


def _check(
    body: str | None, file: Path | None, from_line: int | None, skip_bad: bool, count: int | None
) -> None:
    """Refuse options that do not go together. Raises: click.UsageError."""
    if body is not None and file is not None:
        raise click.UsageError("give BODY or --file, not both.")
    if body is not None or file is not None:
        if from_line is not None or skip_bad:
            raise click.UsageError("--from-line and --skip-bad are of JSON Lines on standard input.")
    elif count is not None:
        raise click.UsageError("--count needs BODY or --file.")
    elif sys.stdin.isatty():
        raise click.UsageError("say what to send: BODY, --file, or JSON Lines on standard input.")


# Many messages


class _Outbox:
    """Messages that go out in batches; those of a batch have session and partition key in common."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._bytes_max = 0
        self._batch: list[bytes] = []
        self._bytes = 0
        self._group: tuple[Any, Any] | None = None
        self._first: _Line | None = None
        self._last: _Line | None = None
        self._count = 0
        self.skipped = 0
        self._progress = Progress()

    def add(self, payload: bytes, group: tuple[Any, Any] | None = None, line: _Line | None = None) -> None:
        """Send an encoded message, with the next ones; `flush` waits. Raises: ServiceBusError."""
        if not self._bytes_max:
            self._bytes_max = min(BATCH_BYTES, self._sender.batch_bytes_max)
        size = len(payload) + MEMBER_BYTES
        is_full = len(self._batch) == BATCH_COUNT or self._bytes + size > self._bytes_max
        if self._batch and (is_full or group != self._group):
            self._send()
        if not self._batch:
            self._group, self._first = group, line
            self._bytes = len(payload)  # its properties and annotations come again before the batch
        self._batch.append(payload)
        self._bytes += size
        self._count += 1
        self._last = line

    def skip(self, why: str) -> None:
        """Count a line that is no message, and print why."""
        self.clear()
        click.echo(f"peeklock: {why}", err=True)
        self.skipped += 1

    def flush(self) -> None:
        """Wait until all messages are accepted. Raises: ServiceBusError."""
        if not self._bytes_max:
            self._bytes_max = self._sender.batch_bytes_max  # also without messages, a wrong entity is told
        self._send()
        self._sender.flush()

    def clear(self) -> None:
        """Remove the progress."""
        self._progress.clear()

    def stop(self, status: int, count: int | None, why: str = "") -> NoReturn:
        """Print why, how many were accepted, and how to send the rest, and exit; `count`: of `--count`."""
        self.clear()
        click.echo(why + self._way_on(count), err=True, nl=False)
        sys.exit(status)

    def _way_on(self, count: int | None) -> str:
        left = self._sender.first_open()
        accepted = self._count - len(self._batch)
        line = self._first if self._batch else None if self._last is None else _Line(self._last + 1)
        if left is not None:
            accepted, tag = left
            line = tag if isinstance(tag, _Line) else None
        if not accepted:
            return ""
        text = f"{counted(accepted)} accepted."
        if line is not None:
            text += f" Go on with --from-line {int(line)}."
        elif count is not None:
            text += f" Go on with --count {count - accepted}."
        if left is not None:
            text += " Later ones may be accepted too."
        return f"{text}\n"

    def summary(self, entity: str) -> str:
        """Return what was sent, once all of it is accepted."""
        skipped = f"; {self.skipped:,} bad lines skipped" if self.skipped else ""
        return f"{counted(self._count)} sent to {entity}{skipped}"

    def _send(self) -> None:
        if self._batch:
            self._sender.send_batch(self._batch, self._first)
            self._batch = []
            self._progress.show(self._count, f"{self._count:,} sent")


def _send_one(outbox: _Outbox, stop: Stop, payload: bytes, count: int) -> None:
    """Send a message so often. Raises: ServiceBusError."""
    for _ in range(count):
        if stop.is_asked:
            return
        outbox.add(payload)


def _send_lines(outbox: _Outbox, stop: Stop, fields: dict[str, Any], from_line: int, skip_bad: bool) -> None:
    """Send the lines of standard input. Raises: ServiceBusError; _BadLine: all before it are accepted."""
    from peeklock.client.composing import ComposeError, compose, compose_line, groups_with

    properties = fields.get("properties", {})
    number = 0
    for lines, is_last in _lines(sys.stdin.buffer, stop):
        for line in lines:
            number += 1
            if number < from_line or not line.strip():
                continue
            try:
                found = compose_line(line)
                row = {**found, **fields}
                if properties and isinstance(own := found.get("properties"), dict):
                    row["properties"] = {**own, **properties}
                payload = compose(row)
            except ComposeError as failure:
                why = f"line {number}: {visible(str(failure))}."
                if not skip_bad:
                    outbox.flush()
                    raise _BadLine(why) from failure
                outbox.skip(why)
                continue
            outbox.add(payload, groups_with(row), _Line(number))
        if is_last:  # the next line may come much later
            outbox.flush()
        if stop.is_asked:
            return


def _lines(source: IO[bytes], stop: Stop) -> Iterator[tuple[list[bytes], bool]]:
    """Yield the lines of a stream as they come, and whether no more are there yet. Raises: _BadLine."""
    pieces: list[bytes] = []
    size = 0
    while chunk := _read(source, stop):
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            yield b"".join((*pieces, head)).split(b"\n"), len(chunk) < READ_BYTES
            pieces, size = [], 0
        pieces.append(rest)
        size += len(rest)
        if size > LINE_BYTES_MAX:
            raise _BadLine(f"a line is longer than {LINE_BYTES_MAX:,} bytes: it is no message.")
    if not stop.is_asked and any(pieces):
        yield [b"".join(pieces)], True


def _read(source: IO[bytes], stop: Stop) -> bytes:
    """Return what a stream has, after waiting for some; nothing at its end, or after Ctrl-C."""
    try:
        with stop.waiting():
            return b"" if stop.is_asked else source.read1(READ_BYTES)  # type: ignore[attr-defined]  # buffered, so it has it
    except KeyboardInterrupt:
        return b""
