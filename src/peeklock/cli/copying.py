"""`peeklock copy`: a broker's stores from a folder into a database, and back."""

from __future__ import annotations

import click

from peeklock.cli.backups import Progress
from peeklock.cli.options import reported


@click.command()
@click.option(
    "--from",
    "source",
    metavar="PLACE",
    required=True,
    help="A data folder, or the URL of a PostgreSQL database. No broker runs on it.",
)
@click.option(
    "--to", "target", metavar="PLACE", required=True, help="Likewise; an empty one, or not there yet."
)
def copy(source: str, target: str) -> None:
    """Copy all that a stopped broker has into a database, or back into a folder.

    \b
    Into a database:  peeklock copy --from ./data --to postgresql://peeklock@db/peeklock
    Back:             peeklock copy --from postgresql://peeklock@db/peeklock --to ./data

    Messages, entities, cursors and keys of all namespaces are copied, and the certificate authority, with all
    their numbers. The source stays as it is: start a broker on one of the two alone. Give a password by the
    variable PGPASSWORD: other users of the machine see the command line.

    Exit status: 0 copied; 1 failed, and the target cannot be started on; 2 wrong options.
    """
    from peeklock.server.copying import copy as copy_all
    from peeklock.server.copying import place
    from peeklock.store.base import StoreError

    try:
        places = place(source), place(target)
    except ImportError as failure:
        raise click.ClickException(
            f"psycopg is not installed ({failure}): pip install 'peeklock[postgres]'"
        ) from failure
    except ValueError as failure:
        raise click.UsageError(f"the URL cannot be used: {failure}.") from failure
    with reported(StoreError, OSError):
        progress = Progress("copied")
        done = copy_all(*places, progress.add)
        progress.end()
    for name, copied in done.items():
        click.echo(
            f"{name}: {copied.frames:,} frames and {copied.rows:,} body rows, up to batch {copied.last_no:,}"
        )
    option = f"--store {target} --data DIR" if "://" in target else f"--data {target}"
    click.echo(f"start the broker: peeklock serve {option}")
