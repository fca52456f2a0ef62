"""The command line: `peeklock serve | health | connections | trace | check | ...`.

serve           `serve`: the settings of a broker, checked against each other.
settings_table  All settings: their options, variables, keys and help.
sources         Where the value of a setting comes from: command line, environment, settings file, default.
operate         `health` and `connections`: what a running broker does.
sending         `send`: messages from the command line, or many as JSON Lines.
receiving       `receive`: messages taken, printed and settled.
deferred        `deferred`: deferred messages, listed, and received by their numbers.
sessions        `sessions`: sessions of an entity, and their states.
outcomes        What becomes of received messages, as options, and the order of print and settle.
stopping        Ctrl-C in a command that has work to end in order.
browsing        `peek`, `tail` and `search`: messages seen without being taken.
criteria        Which messages a command is about, as options.
moving          `purge` and `move`: many messages removed, or moved to another entity.
dead_letters    `dead-letters`: grouped, shown, sent again, dropped.
job_running     How a command runs a job over many messages: what it says, and how it ends.
checkpoint_files  Checkpoints of such jobs.
places          Where the messages are that a command reads or sends, as options.
message_output  Messages on standard output, and progress.
message_text    Browsed messages for people: lines of a table, and one message whole.
visible         Text of strangers, safe to print.
trace           `trace`: the frames before an error, from a file of `serve --trace-frames`.
connecting      `logins`: connection strings by name.
running         How a command finds and asks a running broker.
backups         `backup` and `restore`.
stores          `check` and `export`: a data folder, read while a broker may run on it.
importing       `import`: definitions of another namespace, from a file or live.
entities        `queues`, `topics` and `subscriptions`.
rules           `rules` of a subscription.
entity_options  The settings of an entity as options.
namespaces      `namespaces`: those of a running broker.
keys            `keys`: the namespace's shared access keys.
extras          `ca`, `demo`, and `pipeline`, whose commands are imported when they are asked for.
tables          Tables on standard output.
options         The DIR argument, parsers of option values, and how a failure is reported.

A command imports what it alone needs when it runs: `serve` must be ready in 600 ms.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from peeklock import __version__
from peeklock.cli.backups import backup, restore
from peeklock.cli.browsing import peek, search, tail
from peeklock.cli.connecting import logins
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
from peeklock.cli.sending import send
from peeklock.cli.serve import serve
from peeklock.cli.sessions import sessions
from peeklock.cli.stores import check, export
from peeklock.cli.trace import trace

INTERRUPTED = 130
"""Exit status of a Ctrl-C before the broker can stop in order; as in a shell: 128 + SIGINT."""


class _Commands(click.Group):
    """A group that exits silently when it is interrupted; click would print "Aborted!"."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@click.group(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="peeklock")
def main() -> None:
    """A durable, self-hosted message broker that speaks Azure Service Bus.

    \b
    Run a broker
      See it work:          peeklock demo
      Keep the data:        peeklock serve --data ./data
      Use your own keys:    peeklock serve --data ./data --auth sas, then peeklock keys list ./data
      Trust its TLS:        peeklock ca ./data
    \b
    Look
      See how it is:        peeklock health --data ./data
      See what waits:       peeklock queues list --watch
      See who is connected: peeklock connections --data ./data
      Look at messages:     peeklock peek orders
      Find messages:        peeklock search orders --text banana
      Send messages:        peeklock send orders "1 pizza"
      Receive messages:     peeklock receive orders
      Deferred, sessions:   peeklock deferred list orders, peeklock sessions list chats
      Repair dead letters:  peeklock dead-letters groups orders
      Move or remove many:  peeklock move orders backup, or peeklock purge orders
      See a failed client:  peeklock serve --trace-frames ./traces, then peeklock trace FILE
    \b
    Change entities, here or in Azure
      Queues:               peeklock queues create orders --lock-duration 1m
      Topics:               peeklock topics create news, then peeklock subscriptions create news sport
      Rules:                peeklock rules create news sport goals --filter "goals > 3"
      Isolate teams, tests: peeklock namespaces create bank --data ./data
      Remember a namespace: peeklock logins add shop, then peeklock queues list --connection shop
      Move from Azure:      peeklock import --from "Endpoint=sb://..." --data ./data
    \b
    Operate
      Verify a data folder: peeklock check ./data
      Save its entities:    peeklock export ./data > Config.json
      Back it up:           peeklock backup --data ./data --to monday.backup

    `serve` reads its settings from options, from variables PEEKLOCK_... and from a file.
    """


_COMMANDS = (
    serve, health, connections, namespaces, trace, check, export, import_, backup, restore, demo, ca, keys,
    pipeline, queues, topics, subscriptions, rules, logins, peek, tail, search, send, receive,
    deferred, sessions, dead_letters, move, purge,
)  # fmt: skip

for _command in _COMMANDS:
    main.add_command(_command)
