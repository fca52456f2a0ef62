"""Options, the Spark session and error texts that the commands of the jobs share.

Spark is imported when a job runs, so that help is quick and works without it.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])

WIDTH = 110
"""Width of tables outside a terminal, in characters."""
SILENCE_S = 10.0
"""Time until a job says that a server does not answer. Our choice: many times what an answer takes."""
SPARK_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of pyspark in this process: they also write each error that it raises as JSON."""


def _conf_settings(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
        settings[name] = value
    return settings


def place(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Return a local path as an absolute one, and a path with a file system's name as it is."""
    if given is None or re.match(r"[a-z0-9+.-]+:", given):
        return given
    if not given:
        raise click.BadParameter("the name of the folder is empty.")
    return str(Path(given).absolute())


def places(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(made for text in given if (made := place(context, parameter, text)) is not None)


def stacked(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """Where a job runs, and with which settings."""

    master: str
    remote: str | None
    conf: dict[str, str]


def on_spark_options(command: Command) -> Command:
    """Add the options of a `SparkChoice`, as one argument `choice`."""

    @functools.wraps(command)
    def with_choice(master: str, remote: str | None, conf: dict[str, str], **given: Any) -> None:
        command(choice=SparkChoice(master, remote or None, conf), **given)

    return _ON_SPARK(with_choice)  # type: ignore[return-value]  # click takes any function


_ON_SPARK = stacked(
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Where Spark runs. Under spark-submit, its own --master applies.",
    ),
    click.option(
        "--remote",
        envvar="SPARK_REMOTE",
        show_envvar=True,
        metavar="sc://HOST:PORT",
        help="A Spark Connect server that runs the job, in place of --master.",
    ),
    click.option(
        "--conf",
        "conf",
        multiple=True,
        callback=_conf_settings,
        metavar="NAME=VALUE",
        help="A setting of Spark, such as spark.driver.memory=4g. May be repeated.",
    ),
)
FROM_LOG = click.option(
    "--from", "source", required=True, callback=place, metavar="LOG", help="Folder of the event log."
)
TO_TABLE = click.option(
    "--to", "target", required=True, callback=place, metavar="DIR", help="Folder of the table."
)
SINK_FORMAT = click.option(
    "--sink-format",
    default="parquet",
    show_default=True,
    metavar="FORMAT",
    help="Format of the table: parquet, orc, json; delta or iceberg if Spark has their packages.",
)
ENTITIES = click.option(
    "--entity",
    "entities",
    multiple=True,
    metavar="NAME",
    help="Only this queue or topic, with its sub-queues and subscriptions. May be repeated.",
)
FOLLOWING = stacked(
    click.option("--stream", is_flag=True, help="Follow the log until Ctrl-C or SIGTERM."),
    click.option("--once", is_flag=True, help="Like --stream, but end at the log's current end."),
    click.option(
        "--checkpoint",
        callback=place,
        metavar="DIR",
        help="Where --stream and --once keep their progress.  [default: TO/_checkpoint]",
    ),
)
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace the content of DIR.")
PLOT = stacked(
    click.option(
        "--plot",
        callback=place,
        metavar="FILE.png",
        help="File of the plot.  [default: DIR.png, beside the table]",
    ),
    click.option("--no-plot", is_flag=True, help="Draw nothing."),
)
_JARS = {
    "delta": "the jars io.delta:delta-spark_{}_2.13 and io.delta:delta-storage",
    "iceberg": "the jar org.apache.iceberg:iceberg-spark-runtime-{}_2.13",
}
"""Jars of a format, by the version of Spark."""
CONNECTION = click.option(
    "--connection-string",
    envvar="SERVICEBUS_CONNECTION_STRING",
    show_envvar=True,
    metavar="TEXT",
    help="The namespace. Prefer the environment variable: other users can see the command line.",
)


def stopped_by_signals() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set, so that a stream ends cleanly."""
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    return stop


@contextmanager
def on_spark(choice: SparkChoice, *, bad_input: int = 1) -> Iterator[tuple[SparkSession, Console]]:
    """Yield a session and a console; print failures in plain words and exit with status `bad_input`."""
    with guarded(bad_input), session(choice) as spark:
        out = Console()
        yield spark, out if out.is_terminal else Console(width=WIDTH)


@contextmanager
def guarded(bad_input: int = 1) -> Iterator[None]:
    """Print failures in plain words and exit with status `bad_input`."""
    try:
        yield
    except Exception as failure:
        text = plain(failure)
        if text is None:
            raise
        click.echo(f"peeklock: {text}", err=True)
        sys.exit(bad_input)


@contextmanager
def session(choice: SparkChoice) -> Iterator[SparkSession]:
    """Yield a Spark session for a job; one that is created here ends with it."""
    from peeklock.spark.session import spark_session

    try:
        from pyspark.sql import SparkSession
    except ImportError:
        found = None  # spark_session raises with what is missing
    else:
        found = SparkSession.getActiveSession()
    if found is not None:
        yield found
        return
    with _told_of_silence(choice.remote), _hushed(choice.remote):
        spark = spark_session("peeklock pipeline", choice.master, remote=choice.remote, **choice.conf)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _told_of_silence(remote: str | None) -> Iterator[None]:
    """Say so if a server does not answer within: Spark tries for some ten minutes without a word."""
    if remote is None or remote.startswith("local"):
        yield
        return
    text = f"peeklock: no answer yet from {remote}; Spark tries for some minutes. Ctrl-C ends the job."
    timer = threading.Timer(SILENCE_S, click.echo, (text,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _hushed(remote: str | None) -> Iterator[None]:
    """Hide Java's standard error while a Java starts within; with a server elsewhere none does.

    Java and its children inherit a temporary file: Spark prints pages of traces for each failed task and
    raises the same here. A logging configuration for Spark, or spark-submit with its own Java, turns this
    off. If Java does not start, its output is printed.
    """
    configured = "log4j2.configurationFile" in os.environ.get("SPARK_SUBMIT_OPTS", "")
    if configured or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    for name in SPARK_LOGGERS:
        logging.getLogger(name).disabled = True
    if remote is not None and not remote.startswith("local"):
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        errors = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(errors, said.read())
            raise
        finally:
            os.dup2(errors, 2)
            os.close(errors)


def plain(failure: Exception) -> str | None:
    """Return the text for a failure of the input or the environment; None for a bug."""
    from peeklock.client.errors import OptionError, ServiceBusError
    from peeklock.spark.java import JavaMissing
    from peeklock.spark.session import SparkMissing

    if isinstance(failure, SparkMissing | JavaMissing | OptionError | ServiceBusError):
        return str(failure)
    if sys.modules.get("pyspark") is None:  # `release` does not use Spark
        return None
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from peeklock.pipeline.audit.checks import AuditInput
    from peeklock.pipeline.events import LogError, damage
    from peeklock.pipeline.files import FileSystemError
    from peeklock.pipeline.running import JobError

    if isinstance(failure, AuditInput | FileSystemError | LogError | JobError):
        return str(failure)
    if isinstance(failure, PySparkException | Py4JJavaError):
        text = str(failure)
        return damage(failure) or _own_error(text) or _missing_format(text) or _without_traces(text)
    return None


def _own_error(text: str) -> str | None:
    """Return the error text of the data source from Spark's trace."""
    found = re.findall(r"^\s*peeklock\.[\w.]+: (.+)$", text, re.MULTILINE)
    return found[-1].strip() if found else None


def _missing_format(text: str) -> str | None:
    """Return what to do if Spark does not know the format of a table."""
    from pyspark import __version__

    found = re.search(r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: ([^\s.]+)", text)
    if found is None:
        return None
    jars = _JARS.get(found[1].lower(), "the jars of the format").format(".".join(__version__.split(".")[:2]))
    return (
        f"--sink-format or --source-format is {found[1]!r}, and Spark {__version__} has no such format. Give "
        f"{jars}, of a version for this Spark, with --conf spark.jars=FILE.jar,FILE.jar; or take parquet."
    )


def _without_traces(text: str) -> str:
    """Return Spark's error text as one line, without stack traces."""
    head = re.split(r"\n\s*(?:at |JVM stacktrace|Driver stacktrace|== SQL ==)", text)[0]
    return " ".join(head.split())
