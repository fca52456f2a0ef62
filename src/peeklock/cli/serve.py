"""`peeklock serve`: the settings of a broker, checked against each other.

The table of settings is in `settings_table`, and where their values come from in `sources`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from peeklock.cli.options import reported
from peeklock.cli.sources import setting_options, settings_file_of

if TYPE_CHECKING:
    from peeklock.server.settings import CaptureSettings, Settings

PROCESS_STARTED = time.monotonic()

DEFAULT_FOLDER = Path("peeklock-data")
"""Offered to a user at a terminal who names no folder."""

EMULATOR_CONFIG = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
EMULATOR_HTTP_PORT = "EMULATOR_HTTP_PORT"
"""Source: the emulator's documentation."""

CAPTURE_BACKLOG_MIN = 65_536
"""Even an idle broker has some bytes waiting; with a smaller backlog it could refuse sends forever."""

NODE_CONNECTIONS_MIN = 10
"""Two more than a broker alone: for the watch of the node, and for what it says."""


@click.command()
@setting_options
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints a line with the connection string when it is ready. Logs are JSON lines on standard error.
    """
    from peeklock.server.settings import CONFIG_VARIABLE, Settings

    given["auth"], given["delete_lock"] = frozenset(given["auth"]), given["delete_lock"] is not None
    if given["emulator"]:
        _as_emulator(context, given)
    given["settings_file"] = settings_file_of(context)
    given["config_json"] = os.environ.get(CONFIG_VARIABLE) or None
    if given["data"] is None and given["durability"] != "memory":
        given["data"] = _ask_for_folder(
            "Keep the messages in {}?" if given["store"] is None else "Use the folder {}?"
        )
    settings = Settings(capture=_capture_settings(context, given), **given)
    _check(settings)
    from peeklock.server.process import serve as run
    from peeklock.server.settings import StartFailed

    with reported(StartFailed):
        if settings.capture is not None and settings.data is not None:
            _check_capture(settings.capture.folder, settings.data, is_in_folder=settings.store is None)
        sys.exit(run(settings, PROCESS_STARTED))


def _as_emulator(context: click.Context, given: dict[str, Any]) -> None:
    """Take the places and the variable of the emulator's container, where no setting says otherwise."""
    if given["config"] is None and EMULATOR_CONFIG.exists():
        given["config"] = EMULATOR_CONFIG
    port = os.environ.get(EMULATOR_HTTP_PORT)
    if port and context.get_parameter_source("http_port") is ParameterSource.DEFAULT:
        if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
            raise click.UsageError(f"{EMULATOR_HTTP_PORT} is {port!r}, and must be a port: 0 to 65535.")
        given["http_port"] = int(port)


def _ask_for_folder(question: str) -> Path | None:
    """Return the folder that the user at the terminal agrees to; None = nobody is there or agrees."""
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return None
    return DEFAULT_FOLDER if click.confirm(question.format(f"./{DEFAULT_FOLDER}"), default=True) else None


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
    from peeklock.server.settings import CONFIG_VARIABLE

    keeps_nothing, auth = settings.durability == "memory", settings.auth
    contradictions = {
        **_contradictions_of_stores(settings, keeps_nothing=keeps_nothing),
        f"{CONFIG_VARIABLE} is set beside a configuration file, {settings.config}: use one of them.": (
            settings.config is not None and settings.config_json is not None
        ),
        "a PFX replaces --tls-cert, --tls-key and --tls-name: leave these out.": (
            settings.tls_pfx_base64 is not None
            and (settings.tls_cert, settings.tls_key, settings.tls_names) != (None, None, ())
        ),
        "--tls-cert and --tls-key go together.": (settings.tls_cert is None) != (settings.tls_key is None),
        "--tls-name is for the certificate that peeklock makes, not for --tls-cert.": (
            bool(settings.tls_names) and settings.tls_cert is not None
        ),
        "--auth off cannot be combined with another --auth.": "off" in auth and len(auth) > 1,
        "--auth development cannot be combined with another --auth: its key has all rights.": (
            "development" in auth and len(auth) > 1
        ),
        "--auth sas needs a data folder, and --durability memory has none: choose fsync or os, or name a "
        "file of keys with --keys.": ("sas" in auth and keeps_nothing and settings.keys is None),
        "--keys has the keys of --auth sas: add --auth sas, or leave --keys out.": (
            settings.keys is not None and "sas" not in auth
        ),
        "--auth jwt and --jwt FILE go together.": ("jwt" in auth) != (settings.jwt is not None),
        "--namespaces on-use makes namespaces for keys that everybody knows: leave out --auth, or choose "
        "--auth development.": settings.namespaces == "on-use" and not settings.is_development,
        "--capture records durable messages, and --durability memory keeps nothing: choose fsync or os.": (
            settings.capture is not None and keeps_nothing
        ),
    }
    for contradiction, found in contradictions.items():
        if found:
            raise click.UsageError(contradiction)


def _contradictions_of_stores(settings: Settings, *, keeps_nothing: bool) -> dict[str, bool]:
    """Return what is wrong with where the stores are, by text, and whether it is so."""
    return {
        "--durability memory keeps nothing: leave --data out, or choose fsync or os.": (
            keeps_nothing and settings.data is not None
        ),
        "name a folder for the messages with --data DIR, or use --durability memory.": (
            not keeps_nothing and settings.data is None and settings.store is None
        ),
        "name a folder with --data DIR. The messages are in the database; the folder says who this process "
        "is, so that it takes its stores back after a restart, and has its certificate and control socket.": (
            settings.data is None and settings.store is not None and not keeps_nothing
        ),
        "--durability memory keeps nothing: leave --store out, or choose another durability.": (
            keeps_nothing and settings.store is not None
        ),
        "--durability replicated is a promise of a database: name it with --store.": (
            settings.durability == "replicated" and settings.store is None
        ),
        "--accept-loss is for a store in a folder: leave it or --store out.": (
            settings.accept_loss and settings.store is not None
        ),
        "--node NAME and --cluster-key FILE go together.": (settings.node is None)
        != (settings.cluster_key is None),
        "--node is for a cluster, whose stores are in a database: name it with --store.": (
            settings.node is not None and settings.store is None
        ),
        f"--store-connections must be at least {NODE_CONNECTIONS_MIN} for a node.": (
            settings.node is not None and settings.store_connections < NODE_CONNECTIONS_MIN
        ),
        "--node-address is of a node: name it with --node.": (
            settings.node_address is not None and settings.node is None
        ),
        "--namespaces on-use makes namespaces in the memory of one process: leave it or --node out.": (
            settings.namespaces == "on-use" and settings.node is not None
        ),
        "--throw-away makes namespaces in the memory of one process: leave it or --node out.": (
            bool(settings.throw_away) and settings.node is not None
        ),
    }


def _check_capture(target: Path, data: Path, *, is_in_folder: bool) -> None:
    """Check at start what would make the exporter fail each time it runs. Raises: StartFailed."""
    from importlib.util import find_spec

    from peeklock.capture.folder import LogFolder, LogRefused
    from peeklock.capture.source import FolderSource
    from peeklock.server.settings import StartFailed

    if find_spec("pyarrow") is None:
        raise StartFailed("--capture needs pyarrow, which is not installed: pip install 'peeklock[capture]'")
    try:
        LogFolder(target).check(data, FolderSource(data) if is_in_folder else None)
    except LogRefused as failure:
        raise StartFailed(str(failure)) from failure
    except OSError as failure:
        raise StartFailed(
            f"cannot write the event log at {target}: {failure.strerror or failure} "
            f"({failure.filename or target}); name another folder with --capture, or repair this one"
        ) from failure
