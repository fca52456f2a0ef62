"""`peeklock serve`: the options of a broker, checked against each other.

The name of each option's value is that of its field in `server.settings`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from peeklock.cli.options import (
    EXISTING_FILE,
    NEW_FOLDER,
    byte_count,
    folder,
    grace_ms,
    host_name,
    hours_ms,
    parsed,
    reported,
    tls_name,
)

if TYPE_CHECKING:
    from peeklock.server.settings import CaptureSettings, Settings

PROCESS_STARTED = time.monotonic()

CAPTURE_BACKLOG_MIN = 65_536
"""Even an idle broker has some bytes waiting; with a smaller backlog it could refuse sends forever."""


@click.command()
@click.option(
    "--data",
    type=NEW_FOLDER,
    callback=parsed(folder),
    help="Folder for all data, created if missing. Required unless --durability memory.",
)
@click.option(
    "--config",
    type=EXISTING_FILE,
    help="Create or update the entities in this file at start; its format is that of the Service Bus "
    "emulator's Config.json. Nothing is ever deleted.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on. An address that other machines can reach requires --auth.",
)
@click.option(
    "--amqp-port", type=click.IntRange(0, 65535), default=5672, help="AMQP port; 0 picks a free one."
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=5300,
    help="Port for administration, messages over HTTP and GET /health, by HTTP or HTTPS; 0 picks a free one.",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os", "memory"]),
    default="fsync",
    help="What an acknowledgement guarantees. fsync: the message is on stable storage. os: the operating "
    "system has it, so it survives a kill of the broker but not a power cut. memory: nothing is kept.",
)
@click.option(
    "--tls-cert",
    type=EXISTING_FILE,
    help="PEM certificate chain for TLS, reloaded when the file changes. By default a local authority in the "
    "data folder signs a certificate (see `peeklock ca`).",
)
@click.option("--tls-key", type=EXISTING_FILE, help="PEM private key of --tls-cert.")
@click.option(
    "--tls-name",
    "tls_names",
    multiple=True,
    callback=parsed(tls_name),
    metavar="NAME",
    help="Add a DNS name or IP address to the certificate of the local authority; repeatable. HOST:PORT adds "
    "both HOST and HOST:PORT, which the Go client checks.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    callback=parsed(host_name),
    metavar="NAME",
    help="Without authentication, HTTP and WebSocket requests are accepted for localhost and IP addresses "
    "only; this accepts a further DNS name. Repeatable.",
)
@click.option(
    "--allow-plaintext",
    is_flag=True,
    help="Accept connections without TLS from other machines; by default only from this one.",
)
@click.option(
    "--usual-ports",
    is_flag=True,
    help="Listen on 5671, 443 and 80 too, for clients whose port cannot be set.",
)
@click.option(
    "--auth",
    type=click.Choice(["off", "sas", "jwt"]),
    multiple=True,
    callback=lambda context, parameter, given: frozenset(given),
    help="How clients authenticate; repeatable, to accept both sas and jwt. sas: keys in DATA/keys.json (see "
    "`peeklock keys`) and in authorization rules of entities. jwt: JSON web tokens, as --jwt defines. off: "
    "not at all. Without --auth the broker is in development mode: the emulator's well-known key has all "
    "rights.",
)
@click.option(
    "--jwt",
    type=EXISTING_FILE,
    help="TOML file that defines the accepted JSON web tokens: issuer, audience, keys, roles.",
)
@click.option(
    "--tier",
    type=click.Choice(["basic", "standard", "premium"]),
    default="standard",
    help="Service tier whose limits apply: message size, time-to-live, features.",
)
@click.option(
    "--resource-lock",
    "delete_lock",
    type=click.Choice(["CanNotDelete"], case_sensitive=False),
    callback=lambda context, parameter, given: given is not None,
    metavar="[CanNotDelete]",
    help="Lock the namespace. CanNotDelete: requests to delete a queue, topic or subscription are refused; "
    "AutoDeleteOnIdle still applies, and rules can be deleted.",
)
@click.option(
    "--lock-grace",
    "lock_grace_ms",
    default="5",
    callback=parsed(grace_ms),
    metavar="SECONDS",
    help="How long the message locks of a broken connection are kept, so that its client can reconnect and "
    "settle. 0: not at all; lapse: until the locks expire.",
)
@click.option(
    "--clock-step-limit",
    "clock_step_limit_ms",
    default="24",
    callback=parsed(hours_ms),
    metavar="HOURS",
    help="Distrust the machine's clock when it jumps forwards by more: nothing expires and no schedule fires "
    "because of the jump, until SIGUSR1 or a restart.",
)
@click.option(
    "--enforce-quotas",
    is_flag=True,
    help="Enforce MaxSizeInMegabytes of queues and topics (a topic counts its subscriptions), and the tier's "
    "numbers of queues, topics, subscriptions and filters.",
)
@click.option(
    "--min-free",
    "min_free_bytes",
    callback=parsed(byte_count),
    metavar="BYTES",
    help="Refuse sends while the volume has less free space.  [default: 1 GiB or 5 %, the smaller]",
)
@click.option(
    "--history",
    type=click.IntRange(0, 100_000),
    metavar="N",
    help="Remember the last N messages that left, and who took each, for `GET /$api/v1/history`; 0 = none.  "
    "[default: 1000 in development mode, else 0]",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="If the store is damaged, start with what can be read, log what is lost, and set the damaged files "
    "aside in DATA. By default a broker with a damaged store does not start.",
)
@click.option(
    "--capture",
    type=NEW_FOLDER,
    callback=parsed(folder),
    help="Write an event log to this folder: the life of every message, as Parquet files. Needs pip install "
    "'peeklock[capture]'.",
)
@click.option(
    "--capture-bodies",
    multiple=True,
    metavar="ENTITY",
    help="Include bodies and properties of messages sent to this queue or topic; repeatable, * = all.",
)
@click.option(
    "--capture-backlog",
    "capture_backlog_bytes",
    default=str(1024**3),
    callback=parsed(byte_count),
    metavar="BYTES",
    help="How much may wait to be written to the event log.",
)
@click.option(
    "--capture-policy",
    type=click.Choice(["block", "drop-and-say"]),
    default="block",
    help="When the backlog is full. block: refuse sends until half of it is written; drop-and-say: drop the "
    "oldest events and log which.",
)
@click.option(
    "--capture-interval",
    "capture_interval_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    metavar="SECONDS",
    help="Begin a new file of the event log after this time: files can be read when they are complete.",
)
@click.option(
    "--capture-keep-days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="Delete files of the event log that are older.",
)
@click.option(
    "--capture-keep-bytes",
    callback=parsed(byte_count),
    metavar="BYTES",
    help="Delete the oldest files of the event log while all together are larger.",
)
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints a line with the connection string when it is ready. Logs are JSON lines on standard error.
    """
    from peeklock.server.settings import Settings

    settings = Settings(capture=_capture_settings(context, given), **given)
    _check(settings)
    from peeklock.server.process import serve as run
    from peeklock.server.settings import StartFailed

    with reported(StartFailed):
        if settings.capture is not None and settings.data is not None:
            _check_capture(settings.capture.folder, settings.data)
        sys.exit(run(settings, PROCESS_STARTED))


def _capture_settings(context: click.Context, given: dict[str, Any]) -> CaptureSettings | None:
    """Return the settings of the event log; takes its options out of `given`."""
    from peeklock.server.settings import CaptureSettings

    target = given.pop("capture")
    options = {name: given.pop(name) for name in [*given] if name.startswith("capture_")}
    if target is not None:
        if options["capture_backlog_bytes"] < CAPTURE_BACKLOG_MIN:
            raise click.UsageError(f"--capture-backlog must be at least {CAPTURE_BACKLOG_MIN} bytes.")
        return CaptureSettings(
            target, **{name.removeprefix("capture_"): value for name, value in options.items()}
        )
    for parameter in context.command.params:
        if parameter.name in options:
            if context.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT:
                raise click.UsageError(
                    f"{parameter.opts[0]} needs an event log: name its folder with --capture."
                )
    return None


def _check(settings: Settings) -> None:
    """Refuse options that contradict each other. Raises: click.UsageError."""
    keeps_nothing, auth = settings.durability == "memory", settings.auth
    contradictions = {
        "--durability memory keeps nothing: leave --data out, or choose fsync or os.": (
            keeps_nothing and settings.data is not None
        ),
        "name a folder for the messages with --data DIR, or use --durability memory.": (
            not keeps_nothing and settings.data is None
        ),
        "--tls-cert and --tls-key go together.": (settings.tls_cert is None) != (settings.tls_key is None),
        "--tls-name is for the certificate that peeklock makes, not for --tls-cert.": (
            bool(settings.tls_names) and settings.tls_cert is not None
        ),
        "--auth off cannot be combined with another --auth.": "off" in auth and len(auth) > 1,
        "--auth sas needs a data folder, and --durability memory has none: choose fsync or os.": (
            "sas" in auth and keeps_nothing
        ),
        "--auth jwt and --jwt FILE go together.": ("jwt" in auth) != (settings.jwt is not None),
        "--capture records durable messages, and --durability memory keeps nothing: choose fsync or os.": (
            settings.capture is not None and keeps_nothing
        ),
    }
    for contradiction, found in contradictions.items():
        if found:
            raise click.UsageError(contradiction)


def _check_capture(target: Path, data: Path) -> None:
    """Check at start what would make the exporter fail each time it runs. Raises: StartFailed."""
    from importlib.util import find_spec

    from peeklock.capture.folder import LogFolder, LogRefused
    from peeklock.server.settings import StartFailed

    if find_spec("pyarrow") is None:
        raise StartFailed("--capture needs pyarrow, which is not installed: pip install 'peeklock[capture]'")
    try:
        LogFolder(target).check(data)
    except LogRefused as failure:
        raise StartFailed(str(failure)) from failure
    except OSError as failure:
        raise StartFailed(
            f"cannot write the event log at {target}: {failure.strerror or failure} "
            f"({failure.filename or target}); name another folder with --capture, or repair this one"
        ) from failure
