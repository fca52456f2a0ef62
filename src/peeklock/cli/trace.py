"""`peeklock trace`: a file of `serve --trace-frames`, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from peeklock.cli.options import EXISTING_FILE, reported

_ARROWS = {"in": "->", "out": "<-"}


class NoTrace(Exception):
    """The file is not one of `--trace-frames`."""


@click.command()
@click.argument("file", metavar="FILE", type=EXISTING_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the frames in `frames`.")
def trace(file: Path, as_json: bool) -> None:
    """Show the last frames of a connection that an error has ended.

    \b
    Record them:    peeklock serve --data ./data --trace-frames ./traces
    Show a file:    peeklock trace ./traces/frames-....jsonl

    Each line is a frame, with its time (UTC), its direction and its channel: -> went from the client to the
    broker, <- to the client. Message bodies, tokens and keys are not in the file. Names of entities, sessions
    and keys, and the texts of errors are.

    Exit status: 0 shown; 1 the file is not a trace, or cannot be read; 2 wrong options.
    """
    with reported(NoTrace, OSError):
        head, frames = _read(file)
    if as_json:
        click.echo(json.dumps({**head, "frames": frames}))
    else:
        click.echo("\n".join((*_head(head), "", *map(_line, frames))))


def _read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head and the frames of a file. Raises: NoTrace, OSError."""
    lines: list[Any] = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError:  # also of bytes that are no text
            found = None
        if not isinstance(found, dict) or ("trackingId" if number == 1 else "frame") not in found:
            raise NoTrace(f"{file}, line {number}: this is not a file of `peeklock serve --trace-frames`")
        lines.append(found)
    if not lines:
        raise NoTrace(f"{file} is empty: the broker could not write it, as on a full disk")
    return lines[0], lines[1:]


def _head(head: Mapping[str, Any]) -> Iterator[str]:
    client = head.get("client") or {}
    name = f"{client.get('product', '')} {client.get('version', '')}".strip() or client.get("containerId", "")
    yield f"connection {head.get('connection')} from {head.get('peer') or '?'}, client {name or '?'}"
    yield f"ended by the {head.get('endedBy')}: {head.get('condition')}: {head.get('text')}"
    yield f"at {head.get('time')}, tracking id {head['trackingId']}, peeklock {head.get('peeklock')}"


def _line(frame: Mapping[str, Any]) -> str:
    at = datetime.fromtimestamp(frame.get("atMs", 0) / 1000, UTC)
    arrow = _ARROWS.get(frame.get("direction", ""), "??")
    time = f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"
    parts = [f"{time} {arrow} {frame.get('channel', ''):>4} {frame['frame']:<15}"]
    parts += [f"{name}={_shown(value)}" for name, value in frame.get("fields", {}).items()]
    if "payloadBytes" in frame:
        parts.append(f"({frame['payloadBytes']} bytes of payload)")
    if "cut" in frame:
        parts.append("(the rest was not kept)")
    if "why" in frame:
        parts.append(f"{frame['why']}; it begins with {frame['begins']}")
    return " ".join(parts).rstrip()


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
