"""`peeklock import`: definitions of another namespace, from a file or live, made in a running broker."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peeklock.cli.options import EXISTING_FILE, parsed, reported
from peeklock.cli.running import BrokerError, RunningBroker, find, to_a_running_broker

if TYPE_CHECKING:
    from peeklock.config.file import Config
    from peeklock.moving.administration import Administration
    from peeklock.moving.definitions import Definitions
    from peeklock.moving.planning import Plan
    from peeklock.templates.found import Found


def _parameter(text: str) -> tuple[str, str]:
    from peeklock.templates.arm_scope import read_parameter

    return read_parameter(text)


@click.command("import")
@click.argument("file", required=False, type=EXISTING_FILE)
@click.option(
    "--from",
    "source",
    envvar="PEEKLOCK_IMPORT_FROM",
    metavar="TEXT",
    help="Connection string of a live namespace, of Azure or of a broker, whose key has Manage. Use the "
    "variable PEEKLOCK_IMPORT_FROM where others can see the command line.",
)
@click.option("--from-ca", type=EXISTING_FILE, metavar="FILE", help="PEM file to trust for --from.")
@click.option("--namespace", metavar="NAME", help="The namespace of the file to import, if it has several.")
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    callback=parsed(_parameter),
    metavar="NAME=VALUE",
    help="Value of a parameter of an ARM template; JSON unless it is a string.",
)
@click.option(
    "--parameters",
    "parameters_file",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Parameters file of an ARM template.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option(
    "--messages",
    is_flag=True,
    help="Copy the messages of --from too, by browsing, into queues below browse/. Nothing is taken.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write a Config.json, and ask no broker; - is standard output.",
)
@to_a_running_broker
def import_(
    broker: RunningBroker,
    file: Path | None,
    source: str | None,
    from_ca: Path | None,
    namespace: str | None,
    parameters: tuple[tuple[str, str], ...],
    parameters_file: Path | None,
    dry_run: bool,
    messages: bool,
    output: Path | None,
) -> None:
    """Make the queues, topics, subscriptions and rules of FILE, or of a live namespace, in a running broker.

    \b
    What it would do:     peeklock import azuredeploy.json --dry-run --data ./data
    A Config.json:        peeklock import Config.json --data ./data
    From Bicep:           bicep build main.bicep, then peeklock import main.json --data ./data
    From Terraform:       terraform state pull > state.json, then peeklock import state.json --data ./data
    From Azure:           peeklock import --from "Endpoint=sb://..." --data ./data
    To a file:            peeklock import azuredeploy.json --output Config.json

    The target may also be Azure, by --connection-string. Nothing is deleted, and what the source does not
    name stays. All is read and checked first: if anything is wrong, nothing changes. After an interruption
    run the command again; it goes on with what is left. What is not offered here is listed on standard error.

    Exit status: 0 done, or the plan is shown; 1 not, with the reason on standard error; 2 wrong options.
    """
    if file is not None and click.get_current_context().get_parameter_source("source") is _COMMAND_LINE:
        raise click.UsageError("give a FILE or --from, not both.")
    if file is None and not source:
        raise click.UsageError("give a FILE, or --from with the connection string of a live namespace.")
    if messages and (file is not None or output is not None):
        raise click.UsageError("--messages copies from a live namespace: give --from, without --output.")
    if messages and broker.connection_string is None:
        raise click.UsageError("--messages needs the --connection-string of the target.")
    if file is None and (parameters or parameters_file):
        raise click.UsageError("--parameter and --parameters are of an ARM template.")
    with _failures():
        origin = None
        if file is not None:
            found = _read_file(file, dict(parameters), parameters_file)
        else:
            origin = _Origin(find(connection_string=source, ca=from_ca))
            _refuse_itself(origin.broker, broker)
            found = origin.read()
        config = _chosen(found, namespace)
        _note(found.notes, "not offered")
        if output is not None:
            _write(config, output)
            return
        target = _Target(broker)
        plan = target.plan(config, found)
        _note(plan.notes, "not imported")
        _apply(plan, target, dry_run=dry_run)
        if messages:
            assert origin is not None
            _copy(origin, target, dry_run=dry_run)


def _note(notes: Iterable[str], why: str) -> None:
    for note in notes:
        click.echo(f"{why}: {note}", err=True)


_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE


def _failures() -> AbstractContextManager[None]:
    from peeklock.client.errors import OptionError, ServiceBusError
    from peeklock.config.form import ConfigError
    from peeklock.moving.administration import AdministrationError
    from peeklock.moving.copying import CopyError

    return reported(
        AdministrationError, BrokerError, ConfigError, CopyError, OptionError, OSError, ServiceBusError
    )


# Sources


def _read_file(file: Path, parameters: Mapping[str, str], parameters_file: Path | None) -> Found:
    """Return what a file defines. Raises: ConfigError, OSError."""
    from peeklock.config.form import ConfigError
    from peeklock.templates.sources import read_source

    values = None if parameters_file is None else parameters_file.read_bytes()
    try:
        return read_source(file.read_bytes(), parameters, values)
    except ConfigError as failure:
        raise ConfigError(*(f"{file}: {problem}" for problem in failure.problems)) from failure


class _Origin:
    """A live namespace that is read."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.definitions: Definitions | None = None

    def read(self) -> Found:
        """Return what it defines. Raises: AdministrationError, BrokerError."""
        from peeklock.moving.definitions import as_source, read_definitions

        progress = _Progress("read")
        self.definitions = read_definitions(administration_of(self.broker), progress.at)
        progress.end()
        return as_source(self.definitions)


def _refuse_itself(origin: RunningBroker, target: RunningBroker) -> None:
    one, other = origin.connection_string, target.connection_string
    if one is not None and other is not None:
        if (one.host, one.port, one.key_name) == (other.host, other.port, other.key_name):
            raise click.UsageError("--from and --connection-string name the same namespace.")


def _chosen(found: Found, name: str | None) -> Config:
    """Return the configuration of the namespace that is meant. Raises: click.UsageError."""
    names = ", ".join(f"'{config.namespace}'" for config in found.configs)
    if name is None and len(found.configs) == 1:
        return found.configs[0]
    for config in found.configs:
        if name is not None and config.namespace.lower() == name.lower():
            return config
    if not found.configs:
        raise click.UsageError("the source has no namespace, queue or topic of Service Bus.")
    raise click.UsageError(f"say with --namespace which one to import: {names}.")


# Targets


class _Target:
    """The running broker that is changed."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.administration = administration_of(broker)
        self.tier = ""

    def plan(self, config: Config, found: Found) -> Plan:
        """Return the steps to agree with a configuration that was found.

        Raises: ConfigError, AdministrationError.
        """
        from peeklock.config.form import ConfigError
        from peeklock.config.hosts import HostNames
        from peeklock.moving.definitions import read_definitions
        from peeklock.moving.planning import plan

        there = read_definitions(self.administration)
        self.tier = there.tier
        try:
            return plan(config, there, HostNames(), _fresh_key)
        except ConfigError as failure:
            raise ConfigError(*map(found.place, failure.problems)) from failure


def _apply(plan: Plan, target: _Target, *, dry_run: bool) -> None:
    """Show the plan; carry it out unless this is a dry run. Raises: AdministrationError."""
    from peeklock.moving.administration import AdministrationError

    if dry_run:
        click.echo("\n".join(plan.lines()))
        return
    click.echo(plan.summary())
    progress = _Progress("step", len(plan.steps))
    for done, step in enumerate(plan.steps):
        try:
            target.administration.carry_out(step)
        except (AdministrationError, BrokerError) as failure:
            progress.end()
            raise AdministrationError(
                f"{step.path}: {failure}. {done:,} of {len(plan.steps):,} steps are done; run the command "
                f"again, and it goes on with the others"
            ) from failure
        progress.at(done + 1)
    progress.end()
    click.echo("done" if plan.steps else "nothing to do")


def _write(config: Config, output: Path) -> None:
    """Write a Config.json. Raises: OSError."""
    from peeklock.config.exporting import file_of

    exported = file_of(config)
    for warning in exported.warnings:
        click.echo(f"peeklock: {warning}", err=True)
    if str(output) == "-":
        click.echo(exported.text.encode(), nl=False)
    else:
        output.write_text(exported.text, encoding="utf-8")


# Messages


def _copy(origin: _Origin, target: _Target, *, dry_run: bool) -> None:
    """Copy the messages of all places. Raises: CopyError, ServiceBusError, AdministrationError."""
    from peeklock.client.connection import BlockingConnection
    from peeklock.moving.copying import copy_messages, peek, places, queue_maker

    given, taken = origin.broker.connection_string, target.broker.connection_string
    assert given is not None
    assert origin.definitions is not None
    assert taken is not None
    source = BlockingConnection(given)
    sink = BlockingConnection(taken)
    make_queue = queue_maker(target.administration, target.tier)
    try:
        for place, queue in places(origin.definitions):
            if dry_run:
                if peek(source, place, 0, 1):
                    click.echo(f"copy    messages      {place} -> {queue}")
                continue
            progress = _Progress(f"copy of '{place}'")
            copied = copy_messages(source, place, sink, queue, make_queue, progress.at)
            progress.end()
            if copied is not None:
                click.echo(
                    f"copied {copied.count:,} messages of '{place}' to '{queue}'{_after(copied.before)}"
                )
    finally:
        source.close()
        sink.close()


def _after(before: int) -> str:
    return f", after sequence number {before}, up to which an earlier run has copied" if before else ""


# Shared


def administration_of(broker: RunningBroker) -> Administration:
    """Return the administration of a running broker, or of any Service Bus."""
    from peeklock.moving.administration import Administration, Reply

    def ask(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        return Reply(*broker.exchange(method, path, body, headers))

    return Administration(ask, broker.where)


def _fresh_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


class _Progress:
    """A line on standard error that says how far it is; none where nobody looks at it."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._of = "" if total is None else f" of {total:,}"
        self._is_shown = sys.stderr.isatty()

    def at(self, count: int) -> None:
        """Show a count."""
        if self._is_shown:
            click.echo(f"\r{self._what} {count:,}{self._of}", err=True, nl=False)

    def end(self) -> None:
        """Remove the line."""
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
