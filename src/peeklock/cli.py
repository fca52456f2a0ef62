"""The command line: `peeklock serve | check | export | keys | ca | pipeline | demo`.

Owns: options, their help, exit statuses. Must not know: what the commands do. What only one command needs is
imported in that command, since `serve` is to be ready in 600 ms.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from peeklock import __version__
from peeklock.config.hosts import is_host, is_host_and_port

if TYPE_CHECKING:
    from peeklock.server.keys.authority_manager import AuthMode
    from peeklock.server.keys.keys import KeyFile
    from peeklock.store.check import Report

PROCESS_STARTED = time.monotonic()


CAPTURE_BACKLOG_MIN = 65_536
"""Some bytes always wait, even in a broker that does nothing: with less it might never take sends again."""

INTERRUPTED = 130
"""Exit status after Ctrl-C before the broker could stop in order: as shells have it, 128 + SIGINT."""


class _Commands(click.Group):
    """Ends without a word when it is interrupted; click would say "Aborted!"."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


class _Jobs(click.Group):
    """The jobs of the pipeline, whose module is imported when one of them, or their help, is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._loaded().get_command(ctx, cmd_name)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._loaded().format_help(ctx, formatter)

    @staticmethod
    def _loaded() -> click.Group:
        from peeklock.pipeline.command import pipeline

        return pipeline


def _folder(context: click.Context, parameter: click.Parameter, given: str | None) -> Path | None:
    if given == "":  # as a path it would be the current folder
        raise click.BadParameter("the name of the folder is empty.")
    return None if given is None else Path(given)


def _bytes(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    if given is not None and not re.fullmatch("[0-9]{1,19}", given):
        raise click.BadParameter(f"{given!r} is not a number of bytes; 1 GiB is 1073741824.")
    return None if given is None else int(given)


def _lock_grace(context: click.Context, parameter: click.Parameter, given: str) -> int | None:
    if given == "lapse":
        return None
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", given):
        raise click.BadParameter(f"{given!r} is neither a number of seconds, as 5 or 0.5, nor 'lapse'.")
    return round(float(given) * 1000)


def _hours(context: click.Context, parameter: click.Parameter, given: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", given):
        raise click.BadParameter(f"{given!r} is not a number of hours, as 24 or 0.5.")
    return round(float(given) * 3_600_000)


def _host_names(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for name in given:
        if not is_host(name):
            raise click.BadParameter(
                f"{name!r} is neither a DNS name (with xn-- where it is not ASCII) nor an IP address."
            )
    return given


def _tls_names(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if not (is_host(name) or is_host_and_port(name)):
            raise click.BadParameter(
                f"{name!r} is neither a DNS name (with xn-- where it is not ASCII) nor an IP address, nor "
                "one of them with a port."
            )
    return given


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="peeklock")
def main() -> None:
    """A durable, self-hosted message broker that speaks Azure Service Bus.

    \b
    Try it:          peeklock demo
    Run it:          peeklock serve --data ./data
    Protect it:      peeklock serve --data ./data --auth sas, then peeklock keys list ./data
    Trust its TLS:   peeklock ca ./data
    Verify a store:  peeklock check ./data
    Save its set-up: peeklock export ./data > Config.json
    """


@main.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    callback=_folder,
    help="Folder that keeps everything; made when absent. Required unless --durability memory.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Entities to have at start, as in the Service Bus emulator's Config.json; none is ever deleted.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--amqp-port",
    type=click.IntRange(0, 65535),
    default=5672,
    show_default=True,
    help="AMQP port; 0 picks a free one.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=5300,
    show_default=True,
    help="Administration and health port, HTTP and HTTPS alike; 0 picks a free one.",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os", "memory"]),
    default="fsync",
    show_default=True,
    help="What an acknowledgement means: fsync = on stable storage; os = handed to the operating system "
    "(survives a kill, not a power cut); memory = nothing is kept.",
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM certificate chain for TLS, followed while it runs. By default an authority in the data folder "
    "signs one (see `peeklock ca`).",
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM private key that belongs to --tls-cert.",
)
@click.option(
    "--tls-name",
    "tls_names",
    multiple=True,
    callback=_tls_names,
    metavar="NAME",
    help="A further DNS name or IP address by which clients reach this broker; may be repeated. "
    "HOST:PORT names both HOST and HOST:PORT, for which the Go client looks.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    callback=_host_names,
    metavar="NAME",
    help="A DNS name by which HTTP and WebSocket clients come to a broker that asks for no secret, beside "
    "localhost and IP addresses; may be repeated.",
)
@click.option(
    "--allow-plaintext",
    is_flag=True,
    help="Take connections without TLS from other machines too. By default only from this one.",
)
@click.option(
    "--usual-ports",
    is_flag=True,
    help="Listen on 5671, 443 and 80 too, where clients go that cannot be told a port.",
)
@click.option(
    "--auth",
    type=click.Choice(["off", "sas", "jwt"]),
    multiple=True,
    help="What clients have to show: sas = keys of DATA/keys.json (see `peeklock keys`) and of the entities' "
    "own rules; jwt = JSON web tokens, as --jwt says; both may be given. off = nothing. Without it: "
    "development mode, in which the emulator's well-known key is good for everything.",
)
@click.option(
    "--jwt",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="TOML file that says which JSON web tokens are taken: issuer, audience, keys, roles.",
)
@click.option(
    "--tier",
    type=click.Choice(["basic", "standard", "premium"]),
    default="standard",
    show_default=True,
    help="Whose limits apply: message size, time-to-live, features.",
)
@click.option(
    "--resource-lock",
    type=click.Choice(["CanNotDelete"], case_sensitive=False),
    help="Lock the namespace: with CanNotDelete nobody can delete a queue, topic or subscription, only its "
    "own idleness can; rules can be deleted.",
)
@click.option(
    "--lock-grace",
    "lock_grace_ms",
    default="5",
    show_default=True,
    callback=_lock_grace,
    metavar="SECONDS",
    help="How long the locks of a connection that broke are kept for a client that comes back; 0 = not at "
    "all, lapse = until they lapse.",
)
@click.option(
    "--clock-step-limit",
    "clock_step_limit_ms",
    default="24",
    show_default=True,
    callback=_hours,
    metavar="HOURS",
    help="A step of the machine's clock forwards by more is taken for an error: nothing expires and "
    "no schedule fires by it until SIGUSR1 or a new start.",
)
@click.option(
    "--enforce-quotas",
    is_flag=True,
    help="Hold each queue and topic, a topic with its subscriptions, to its MaxSizeInMegabytes, and the "
    "namespace to the tier's numbers of queues, topics, subscriptions and filters.",
)
@click.option(
    "--min-free",
    "min_free_bytes",
    callback=_bytes,
    metavar="BYTES",
    help="Refuse sends while the volume has less free space than this.  [default: 1 GiB or 5 %, the smaller]",
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
    help="Where the store is damaged, go on with what can be read of it and say what is lost. The damaged "
    "files are set aside in DATA. Without it the broker does not start.",
)
@click.option(
    "--capture",
    type=click.Path(file_okay=False),
    callback=_folder,
    help="Write an event log there, the life of every message as Parquet files; needs the extra `capture`.",
)
@click.option(
    "--capture-bodies",
    multiple=True,
    metavar="ENTITY",
    help="Keep the messages sent to this queue or topic whole in the event log; may be repeated, * = all.",
)
@click.option(
    "--capture-backlog",
    "capture_backlog_bytes",
    callback=_bytes,
    metavar="BYTES",
    help="How much may wait to be written to the event log.  [default: 1073741824]",
)
@click.option(
    "--capture-policy",
    type=click.Choice(["block", "drop-and-say"]),
    help="When more would wait: block = refuse sends until there is room; drop-and-say = give up the oldest "
    "events and say in the log which.  [default: block]",
)
@click.option(
    "--capture-interval",
    "capture_interval_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="How soon the event log can be read: a file of it ends so long after it began.  [default: 10]",
)
@click.option(
    "--capture-keep-days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="Remove older files of the event log.",
)
@click.option(
    "--capture-keep-bytes",
    callback=_bytes,
    metavar="BYTES",
    help="Remove the oldest files of the event log when all together are larger.",
)
def serve(
    data: Path | None,
    config: Path | None,
    host: str,
    amqp_port: int,
    http_port: int,
    durability: Literal["fsync", "os", "memory"],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_names: tuple[str, ...],
    host_names: tuple[str, ...],
    allow_plaintext: bool,
    usual_ports: bool,
    auth: tuple[AuthMode, ...],
    jwt: Path | None,
    tier: str,
    resource_lock: str | None,
    lock_grace_ms: int | None,
    clock_step_limit_ms: int,
    enforce_quotas: bool,
    min_free_bytes: int | None,
    history: int | None,
    accept_loss: bool,
    capture: Path | None,
    capture_bodies: tuple[str, ...],
    capture_backlog_bytes: int | None,
    capture_policy: Literal["block", "drop-and-say"] | None,
    capture_interval_s: float | None,
    capture_keep_days: float | None,
    capture_keep_bytes: int | None,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints one line with the connection string when it is ready; logs are JSON lines on standard error.
    """
    if durability == "memory" and data is not None:
        raise click.UsageError("--durability memory keeps nothing: leave --data out, or choose fsync or os.")
    if durability != "memory" and data is None:
        raise click.UsageError("say where to keep the messages with --data DIR, or use --durability memory.")
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together.")
    if tls_names and tls_cert is not None:
        raise click.UsageError("--tls-name is for the certificate that peeklock makes, not for --tls-cert.")
    if "off" in auth and len(set(auth)) > 1:
        raise click.UsageError("--auth off asks for nothing: it cannot go with another --auth.")
    if "sas" in auth and durability == "memory":
        raise click.UsageError(
            "--auth sas keeps its keys in the data folder, and --durability memory has none: choose fsync "
            "or os."
        )
    if ("jwt" in auth) != (jwt is not None):
        raise click.UsageError("--auth jwt and --jwt FILE go together.")
    of_capture = {
        "--capture-bodies": capture_bodies or None,
        "--capture-backlog": capture_backlog_bytes,
        "--capture-policy": capture_policy,
        "--capture-interval": capture_interval_s,
        "--capture-keep-days": capture_keep_days,
        "--capture-keep-bytes": capture_keep_bytes,
    }
    given = [option for option, value in of_capture.items() if value is not None]
    if given and capture is None:
        raise click.UsageError(
            f"{given[0]} says how the event log is written: name its folder with --capture."
        )
    if capture_backlog_bytes is not None and capture_backlog_bytes < CAPTURE_BACKLOG_MIN:
        raise click.UsageError(f"--capture-backlog: at least {CAPTURE_BACKLOG_MIN} bytes have to be allowed.")
    if capture is not None and durability == "memory":
        raise click.UsageError(
            "--capture writes what is durable, and --durability memory keeps nothing: choose fsync or os."
        )

    from peeklock.server.app import StartFailed
    from peeklock.server.app import serve as run
    from peeklock.server.settings import Settings

    capture_settings = None
    if capture is not None:
        from peeklock.server.capture import CaptureSettings

        capture_settings = CaptureSettings(
            capture,
            capture_bodies,
            1024**3 if capture_backlog_bytes is None else capture_backlog_bytes,
            capture_policy or "block",
            capture_interval_s or 10.0,
            capture_keep_days,
            capture_keep_bytes,
        )
    settings = Settings(
        data=data,
        config=config,
        host=host,
        amqp_port=amqp_port,
        http_port=http_port,
        durability=durability,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_names=tls_names,
        host_names=host_names,
        allow_plaintext=allow_plaintext,
        usual_ports=usual_ports,
        auth=frozenset(auth),
        jwt=jwt,
        tier=tier,
        delete_lock=resource_lock is not None,
        lock_grace_ms=lock_grace_ms,
        clock_step_limit_ms=clock_step_limit_ms,
        enforce_quotas=enforce_quotas,
        min_free_bytes=min_free_bytes,
        history=history,
        accept_loss=accept_loss,
        capture=capture_settings,
    )
    try:
        if capture is not None and data is not None:
            _check_capture(capture, data)
        sys.exit(run(settings, PROCESS_STARTED))
    except StartFailed as failure:
        click.echo(f"peeklock: {failure}", err=True)
        sys.exit(1)


def _check_capture(folder: Path, data: Path) -> None:
    """Tell now what else the exporter would say again and again. Raises: StartFailed."""
    from importlib.util import find_spec

    from peeklock.capture.folder import LogFolder, LogRefused
    from peeklock.server.app import StartFailed

    if find_spec("pyarrow") is None:
        raise StartFailed("--capture needs pyarrow, which is not installed: pip install 'peeklock[capture]'")
    try:
        LogFolder(folder).check(data)
    except LogRefused as failure:
        raise StartFailed(str(failure)) from failure
    except OSError as failure:
        raise StartFailed(
            f"cannot write the event log at {folder}: {failure.strerror or failure} "
            f"({failure.filename or folder}); name another folder with --capture, or mend this one"
        ) from failure


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--repair",
    "repairs",
    is_flag=True,
    help="Then move each message whose body is damaged to its dead-letter queue, without the body, and say "
    "which. No broker may run on DIR. Other damage is not repaired: see `peeklock serve --accept-loss`.",
)
def check(folder: Path, repairs: bool) -> None:
    """Verify the store in DIR; without --repair it is not touched.

    Reads every frame and every body, checks their checksums and numbers, and says what is damaged. KNOWN is
    what was handled: a damaged body whose messages were dead-lettered without it.
    Exit status: 0 sound, or all damage is known; 1 damaged; 2 not a store. With --repair: what is left then.
    """
    from peeklock.server.repair import check as check_store

    report = check_store(folder, repair_follows=repairs)
    for line in report.lines:
        click.echo(line)
    if repairs and report.damages:
        sys.exit(_repair(folder, report))
    sys.exit(report.exit_status)


def _repair(folder: Path, report: Report) -> int:
    """Dead-letter the messages whose bodies are damaged; answer the exit status, of what is left."""
    from peeklock.server.repair import check as check_store
    from peeklock.server.repair import repair
    from peeklock.store.base import StoreError

    if report.stops:
        said = "peeklock: --repair is for damaged bodies, and this is other damage; nothing was changed"
        if not report.is_gone:  # else the damage names the ways on
            said += ". Put back a copy of the folder, or go on with what can be read: serve --accept-loss"
        click.echo(said, err=True)
        return 1
    try:
        lost = repair(folder)
    except StoreError as failure:
        click.echo(f"peeklock: {failure}", err=True)
        return 1
    states = [each for each in lost if not each.sequence_number]
    for state in states:
        click.echo(f"the state of session '{state.session_id}' was cleared: '{state.queue_name}'")
    lost = [each for each in lost if each.sequence_number]
    for each in lost:
        session = "" if each.session_id is None else f" of session '{each.session_id}'"
        message = f"message {each.sequence_number}{session} of '{each.queue_name}'"
        click.echo(f"{message} was dead-lettered without its body")
    if lost:
        count, they = ("1 message", "it is") if len(lost) == 1 else (f"{len(lost):,} messages", "they are")
        stay = f"the damaged bytes stay for rescue until {they} completed or deleted"
        click.echo(f"{count} dead-lettered; {stay}")
    left = check_store(folder)
    if left.damages:
        count = "1 damage is" if len(left.damages) == 1 else f"{len(left.damages):,} damages are"
        click.echo(f"{count} left, and no message needs what is damaged")
    return left.exit_status


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
def export(folder: Path) -> None:
    """Write the queues, topics and rules of the store in DIR as a configuration file.

    It goes to standard output; `peeklock serve --config` takes it. Nothing is touched, also while a broker
    runs. Standard error says what of it a broker would refuse over an empty folder.
    Exit status: 0 written, 1 not.
    """
    from peeklock.server.export import export_config
    from peeklock.store.base import StoreError

    try:
        exported = export_config(folder)
    except StoreError as failure:
        click.echo(f"peeklock: {failure}", err=True)
        sys.exit(1)
    click.echo(exported.text.encode(), nl=False)  # bytes: JSON is UTF-8, whatever the terminal is
    for warning in exported.warnings:
        click.echo(f"peeklock: {warning}", err=True)


@main.command()
@click.option(
    "--jobs",
    type=click.IntRange(20, 100_000),
    default=3_000,
    show_default=True,
    help="How many jobs to send.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Which jobs, and which trouble they have."
)
@click.option(
    "--broker-only", is_flag=True, help="Leave out the event log, and Spark, which reads it at the end."
)
def demo(jobs: int, seed: int, broker_only: bool) -> None:
    """Show the main job on real input: jobs, workers, a killed broker, nothing lost.

    Starts a broker on a temporary folder, sends jobs through the official client, lets workers complete,
    abandon, defer and dead-letter them, kills the broker in the middle, starts it again, and counts. Then
    Spark reads the event log that the broker wrote meanwhile, and audits it.
    Exit status: 0 when every job ended exactly once where it should, and the audit says so too, else 1.
    """
    from rich.console import Console

    from peeklock.demo.story import run

    sys.exit(run(jobs, seed, Console(), broker_only=broker_only))


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--print", "only_pem", is_flag=True, help="Write the certificate itself, as PEM, and nothing else."
)
def ca(folder: Path, only_pem: bool) -> None:
    """Show the certificate authority of DIR, and how clients are told to trust it.

    DIR is the data folder of a broker; a broker may run on it. An authority is made when there is none yet.
    Exit status: 0 shown, 1 not.
    """
    from peeklock.server.tls.ca_instructions import NoStore, authority_of

    try:
        file, text = authority_of(folder)
        click.echo(file.read_text() if only_pem else text, nl=False)
    except (NoStore, OSError) as failure:
        click.echo(f"peeklock: {failure}", err=True)
        sys.exit(1)


_RULE_FOLDER = click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
_RULE_NAME = click.argument("name", metavar="NAME")


@main.group()
def keys() -> None:
    """Look at and change the namespace's shared access keys.

    They are in DIR/keys.json, DIR being the broker's data folder, for `peeklock serve --auth sas`. A running
    broker follows a change within a second or two: what was signed with a key that is gone is refused, and
    whoever was let in by it is detached. Rules of a single queue or topic are made by the administration API.
    """


@keys.command("list")
@_RULE_FOLDER
def list_keys(folder: Path) -> None:
    """Show each rule with its rights and its keys, as a connection string has them."""
    _with_keys(folder, lambda file: file.load())
    click.echo(
        "A connection string is Endpoint=sb://HOST:PORT; and behind it one of the SharedAccessKeyName=... "
        "texts above; a client that comes without TLS needs ;UseDevelopmentEmulator=true; at the end too."
    )


@keys.command("add")
@_RULE_FOLDER
@_RULE_NAME
@click.option(
    "--rights",
    required=True,
    metavar="RIGHT[,RIGHT]",
    help="What it may do: Send, Listen, or Manage, which includes both.",
)
def add_key(folder: Path, name: str, rights: str) -> None:
    """Add a rule with fresh keys, and show it."""
    wanted = [right.strip() for right in rights.split(",")]
    _with_keys(folder, lambda file: [file.add(name, wanted)])


@keys.command("rotate")
@_RULE_FOLDER
@_RULE_NAME
@click.option("--revoke", is_flag=True, help="Make the secondary key anew too: no old key is good any more.")
def rotate_key(folder: Path, name: str, revoke: bool) -> None:
    """Give a rule a fresh primary key, and show it.

    The old primary key becomes the secondary one: clients that have it go on, until the next rotation.
    """
    _with_keys(folder, lambda file: [file.rotate(name, revoke=revoke)])


@keys.command("remove")
@_RULE_FOLDER
@_RULE_NAME
def remove_key(folder: Path, name: str) -> None:
    """Remove a rule; clients that came by it are detached."""

    def remove(file: KeyFile) -> None:
        removed, last_with_manage = file.remove(name)
        click.echo(f"removed {removed}")
        if last_with_manage:
            click.echo(
                "peeklock: no rule with Manage is left: administration is possible by web tokens "
                "(--auth jwt) and by entities' own rules only, until `peeklock keys add` makes one",
                err=True,
            )

    _with_keys(folder, remove)


def _with_keys(folder: Path, do: Callable[[KeyFile], Iterable[Any] | None]) -> None:
    """Do something with the file of the keys, and show the rules that come of it."""
    from peeklock.server.keys.keys import KeyFile, KeysRefused, shown

    try:
        rules = do(KeyFile(folder))
    except KeysRefused as failure:
        click.echo(f"peeklock: {failure}", err=True)
        sys.exit(1)
    for rule in rules or ():
        click.echo("\n".join(shown(rule)))


main.add_command(_Jobs("pipeline", short_help="Jobs over the event log and over queues, with Spark."))
