"""The command line: `peeklock serve | health | connections | trace | check | ...`.

tasks           The commands by task, for `peeklock` alone and its help.
serve           `serve`: the settings of a broker, checked against each other.
setting         One setting.
settings_table  All settings: their options, variables, keys and help.
sources         Where the value of a setting comes from: command line, environment, settings file, default.
operate         `health` and `connections`: what a running broker does.
sending         `send`: messages from the command line, or many as JSON Lines.
receiving       `receive`: messages taken, printed and settled.
deferred        `deferred`: deferred messages, listed, and received by their numbers.
sessions        `sessions`: sessions of an entity, and their states.
outcomes        What becomes of received messages, as options, and the order of print and settle.
stopping        Ctrl-C in a command that has work to end in order.
scheduling      `scheduled`: scheduled messages cancelled, or enqueued at another time.
schedule_runs   What its commands do with each message.
browsing        `peek`, `tail` and `search`: messages seen without being taken.
criteria        Which messages a command is about, as options.
moving          `purge` and `move`: many messages removed, or moved to another entity.
dead_letters    `dead-letters`: grouped, shown, sent again, dropped.
job_running     How a command runs a job over many messages: what it says, and how it ends.
checkpoint_files  Checkpoints of such jobs.
bench           `bench`: rates and latencies.
places          Where the messages are that a command reads or sends, as options.
message_output  Messages on standard output, and progress.
message_text    Browsed messages for people: lines of a table, and one message whole.
visible         Text of strangers, safe to print.
trace           `trace`: the frames before an error, from a file of `serve --trace-frames`.
connecting      `logins`: connection strings by name.
running         How a command finds and asks a running broker.
backups         `backup` and `restore`.
copying         `copy`: from a folder into a database, and back.
stores          `check` and `export`: a data folder, read while a broker may run on it.
importing       `import`: definitions of another namespace, from a file or live.
entities        `queues`, `topics` and `subscriptions`.
rules           `rules` of a subscription.
entity_options  The settings of an entity as options.
namespaces      `namespaces`: those of a running broker.
cluster         `cluster`: the nodes of a cluster, and which namespace each owns.
keys            `keys`: the namespace's shared access keys.
extras          `ca`, `demo`, and `pipeline`, whose commands are imported when they are asked for.
tables          Tables on standard output.
options         The DIR argument, parsers of option values, and how a failure is reported.

A command imports what it alone needs when it runs: `serve` must be ready in 600 ms.
"""

from __future__ import annotations

import click

from peeklock import FORM, __version__
from peeklock.cli.backups import backup, restore
from peeklock.cli.bench import bench
from peeklock.cli.browsing import peek, search, tail
from peeklock.cli.cluster import cluster
from peeklock.cli.connecting import logins
from peeklock.cli.copying import copy
from peeklock.cli.dead_letters import dead_letters
from peeklock.cli.deferred import deferred
from peeklock.cli.entities import queues, subscriptions, topics
from peeklock.cli.extras import ca, demo, pipeline
from peeklock.cli.importing import import_
from peeklock.cli.keys import keys
from peeklock.cli.moving import move, purge
from peeklock.cli.namespaces import namespaces
from peeklock.cli.operate import connections, health
from peeklock.cli.receiving import receive
from peeklock.cli.rules import rules
from peeklock.cli.scheduling import scheduled
from peeklock.cli.sending import send
from peeklock.cli.serve import serve
from peeklock.cli.sessions import sessions
from peeklock.cli.stores import check, export
from peeklock.cli.tasks import Commands
from peeklock.cli.trace import trace


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(
    __version__, prog_name="peeklock", message=f"%(prog)s, version %(version)s, {FORM} core"
)
def main() -> None:
    """A durable, self-hosted message broker that speaks Azure Service Bus.

    `peeklock` alone shows what there is to do, with a command line for each.

    `serve` reads its settings from options, from variables PEEKLOCK_... and from a file.
    """


_COMMANDS = (
    serve, health, connections, namespaces, cluster, trace, check, export, import_, backup, restore, copy,
    demo, ca, keys, pipeline, queues, topics, subscriptions, rules, logins, peek, tail, search, send, receive,
    deferred, sessions, scheduled, bench, dead_letters, move, purge,
)  # fmt: skip

for _command in _COMMANDS:
    main.add_command(_command)
