"""What the commands of the jobs have in common: options, a session, words for what is wrong.

Owns: options that several jobs take, the Spark session of a job, exit statuses. Must not know: jobs. Spark is
imported when a job runs, so that help is quick and works without it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])

WIDTH = 110
"""Of what goes to no terminal, in characters."""
SPARK_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Of pyspark, in this process: they write each error that it raises as JSON too."""


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
    """Make a local path absolute; leave what names a file system of its own."""
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


ON_SPARK = stacked(
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Where Spark runs; under spark-submit its own --master counts.",
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
    help="Format of the table: parquet, orc, json; delta or iceberg where Spark has their packages.",
)
ENTITIES = click.option(
    "--entity",
    "entities",
    multiple=True,
    metavar="NAME",
    help="Only this queue or topic, with its sub-queues and subscriptions. May be repeated.",
)
FOLLOWING = stacked(
    click.option("--stream", is_flag=True, help="Follow what is new until Ctrl-C or SIGTERM."),
    click.option("--once", is_flag=True, help="As --stream, but end with what is there now."),
    click.option(
        "--checkpoint",
        callback=place,
        metavar="DIR",
        help="Where --stream and --once keep how far they are.  [default: TO/_checkpoint]",
    ),
)
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace what is in DIR.")
PLOT = stacked(
    click.option(
        "--plot",
        callback=place,
        metavar="FILE.png",
        help="Where the picture goes.  [default: beside the table, DIR.png]",
    ),
    click.option("--no-plot", is_flag=True, help="Draw nothing."),
)
CONNECTION = click.option(
    "--connection-string",
    envvar="SERVICEBUS_CONNECTION_STRING",
    show_envvar=True,
    metavar="TEXT",
    help="Of the namespace. Better in the environment than on the command line, where others can see it.",
)


def stopped_by_signals() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set, so that a stream ends in order."""
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    return stop


@contextmanager
def on_spark(
    master: str, conf: dict[str, str], *, bad_input: int = 1
) -> Iterator[tuple[SparkSession, Console]]:
    """Give a session and where to print; tell failures in plain words and end with status `bad_input`."""
    with guarded(bad_input), session(master, conf) as spark:
        out = Console()
        yield spark, out if out.is_terminal else Console(width=WIDTH)


@contextmanager
def guarded(bad_input: int = 1) -> Iterator[None]:
    """Tell failures in plain words and end with status `bad_input`."""
    try:
        yield
    except Exception as failure:
        text = plain(failure)
        if text is None:
            raise
        click.echo(f"peeklock: {text}", err=True)
        sys.exit(bad_input)


@contextmanager
def session(master: str, conf: dict[str, str]) -> Iterator[SparkSession]:
    """Give a Spark session for a job; one that is made here ends with it."""
    from peeklock.spark.session import spark_session

    try:
        from pyspark.sql import SparkSession
    except ImportError:
        found = None  # spark_session says what is missing
    else:
        found = SparkSession.getActiveSession()
    if found is not None:
        yield found
        return
    with _hushed():
        spark = spark_session("peeklock pipeline", master, **conf)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep standard error for our own lines, while a Java is started within.

    Java, and what it starts, inherits a file that is dropped: Spark tells in traces over pages, of each task
    that failed, what it also raises here. Who has a logging configuration for Spark gets what it says, and so
    does who runs spark-submit, which has started its Java. If nothing comes up, what was said is passed on.
    """
    configured = "log4j2.configurationFile" in os.environ.get("SPARK_SUBMIT_OPTS", "")
    if configured or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    for name in SPARK_LOGGERS:
        logging.getLogger(name).disabled = True
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
    """Return what to tell people of a failure of theirs or the world's; None for a bug of ours."""
    from peeklock.client.errors import OptionError, ServiceBusError
    from peeklock.spark.java import JavaMissing
    from peeklock.spark.session import SparkMissing

    if isinstance(failure, SparkMissing | JavaMissing | OptionError | ServiceBusError):
        return str(failure)
    if sys.modules.get("pyspark") is None:  # `release` does without, and then nothing of Spark's can fail
        return None
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from peeklock.pipeline.audit.log import AuditInput
    from peeklock.pipeline.events import LogError, damage
    from peeklock.pipeline.running import JobError

    if isinstance(failure, AuditInput | LogError | JobError):
        return str(failure)
    if isinstance(failure, PySparkException | Py4JJavaError):
        return damage(failure) or _said_by_us(str(failure)) or _first_lines(str(failure))
    return None


def _said_by_us(text: str) -> str | None:
    """Return what our data source said, from the trace that Spark makes of it."""
    said = re.findall(r"^\s*peeklock\.[\w.]+: (.+)$", text, re.MULTILINE)
    return said[-1].strip() if said else None


def _first_lines(text: str) -> str:
    """Cut the stack traces off what Spark says, and make one line of the rest."""
    said = re.split(r"\n\s*(?:at |JVM stacktrace|Driver stacktrace|== SQL ==)", text)[0]
    return " ".join(said.split())
