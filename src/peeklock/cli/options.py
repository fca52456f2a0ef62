"""Shared pieces of commands: DIR, parsers of option values, and how a failure is reported."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from peeklock.config.hosts import HOST_LABEL_RULE, is_host, is_host_and_port, is_host_label

DATA_FOLDER = click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
NEW_FILE = click.Path(path_type=Path, dir_okay=False)
NEW_FOLDER = click.Path(file_okay=False)
SOCKET = click.Path(path_type=Path, dir_okay=False)


_NO_HOST = "is neither a DNS name (with xn-- where it is not ASCII) nor an IP address"


@contextlib.contextmanager
def reported(*failures: type[Exception]) -> Iterator[None]:
    """Print these failures as `peeklock: ...` on standard error and exit with status 1."""
    try:
        yield
    except failures as failure:
        click.echo(f"peeklock: {failure}", err=True)
        sys.exit(1)


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that parses each value of an option; a ValueError names the option."""

    def callback(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        try:
            if parameter.multiple:
                return tuple(parse(value) for value in given)
            return None if given is None else parse(given)
        except ValueError as failure:
            raise click.BadParameter(str(failure)) from failure

    return callback


def folder(given: str) -> Path:
    if given == "":  # as a path it would be the current folder
        raise ValueError("the name of the folder is empty.")
    return Path(given)


def byte_count(given: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", given):
        raise ValueError(f"{given!r} is not a number of bytes; 1 GiB is 1073741824.")
    return int(given)


def grace_ms(given: str) -> int | None:
    if given == "lapse":
        return None
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", given):
        raise ValueError(f"{given!r} is neither a number of seconds, as 5 or 0.5, nor 'lapse'.")
    return round(float(given) * 1000)


def collector_url(given: str) -> str:
    parts = urlsplit(given)
    try:
        parts.port  # noqa: B018 # raises if it is none
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{given!r} is not the URL of a collector, such as http://localhost:4318.")
    return given.rstrip("/")


def hours_ms(given: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", given):
        raise ValueError(f"{given!r} is not a number of hours, as 24 or 0.5.")
    return round(float(given) * 3_600_000)


def host_name(given: str) -> str:
    if not is_host(given):
        raise ValueError(f"{given!r} {_NO_HOST}.")
    return given


def host_and_port(given: str) -> str:
    if not is_host_and_port(given):
        raise ValueError(f"{given!r} is not HOST:PORT, such as node-1.example.com:5673.")
    return given


def node_name(given: str) -> str:
    if not is_host_label(given):
        raise ValueError(f"{given!r} is not {HOST_LABEL_RULE}.")
    return given


def tls_name(given: str) -> str:
    if not (is_host(given) or is_host_and_port(given)):
        raise ValueError(f"{given!r} {_NO_HOST}, nor one of them with a port.")
    return given
