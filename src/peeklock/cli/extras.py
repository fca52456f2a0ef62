"""`peeklock ca`, `demo` and `pipeline`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from peeklock.cli.options import DATA_FOLDER, reported


@click.command()
@DATA_FOLDER
@click.option("--print", "only_pem", is_flag=True, help="Print only the certificate, as PEM.")
@click.option(
    "--replace", "replaces", is_flag=True, help="Make a new authority first: all clients must trust it."
)
def ca(folder: Path, only_pem: bool, replaces: bool) -> None:
    """Show the certificate authority of DIR, and how clients trust it.

    DIR is the data folder of a broker, which may be running. A folder without an authority gets one. With
    --replace the broker must be stopped: use it if the authority's private key may be known to others.

    Exit status: 0 shown, 1 failed.
    """
    from peeklock.server.system.store import folder_of
    from peeklock.server.tls.ca_instructions import NoStore, authority_of
    from peeklock.server.tls.contexts import CA_FILE, FOLDER
    from peeklock.store.base import StoreError

    with reported(NoStore, OSError, StoreError):
        is_kept = folder_of(folder).is_dir()
        if replaces and not is_kept:
            raise NoStore(f"{folder} has no authority to replace: start the broker on it once")
        if replaces or (is_kept and not (folder / FOLDER / CA_FILE).exists()):
            import asyncio

            from peeklock.server.system.offline import make_authority

            asyncio.run(make_authority(folder, replaces=replaces))
        file, text = authority_of(folder)
        click.echo(file.read_text() if only_pem else text, nl=False)


@click.command()
@click.option("--jobs", type=click.IntRange(20, 100_000), default=3_000, help="Number of jobs to send.")
@click.option(
    "--seed", type=int, default=1, help="Chooses the jobs and the trouble they meet; a seed can be repeated."
)
@click.option("--broker-only", is_flag=True, help="Skip the event log and the audit of it with Spark.")
def demo(jobs: int, seed: int, broker_only: bool) -> None:
    """See the broker lose nothing: jobs, workers, and a kill in the middle.

    Starts a broker on a temporary folder, sends jobs through the official client, and lets workers complete,
    abandon, defer and dead-letter them. Kills the broker halfway, starts it again, and counts. Then Spark
    audits the event log that the broker wrote. Needs pip install 'peeklock[demo,spark]'.

    Exit status: 0 every job ended exactly once where it should, and the audit agrees; 1 otherwise.
    """
    from rich.console import Console

    from peeklock.demo.story import run

    sys.exit(run(jobs, seed, Console(), broker_only=broker_only))


class _Jobs(click.Group):
    """The jobs of the pipeline, imported when one of them or their help is asked for."""

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


pipeline = _Jobs("pipeline", short_help="Run Spark jobs over the event log and over queues.")
