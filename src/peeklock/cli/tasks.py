"""The commands by task: what `peeklock` alone shows, and the sections of `peeklock --help`.

It owns the one table of tasks. A command that is not registered is not shown.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from peeklock.cli.stopping import INTERRUPTED, PIPE_CLOSED

_NAMED: Final = re.compile(r"\bpeeklock ([a-z]+(?:-[a-z]+)*)")


SUMMARY_CHARACTERS: Final = 200
"""Of a command in the help of its group: the first sentence, which wraps."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a person wants to do, and the commands for it."""

    title: str
    commands: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]
    """What each is for, and its command line; not shown if that names a command that is not registered."""


TASKS: Final = (
    Task(
        "Send and receive",
        ("send", "receive"),
        (
            ("Send a message:", 'peeklock send orders "1 pizza"'),
            ("Send many:", "peeklock send orders < orders.jsonl"),
            ("Receive messages:", "peeklock receive orders"),
        ),
    ),
    Task(
        "Look",
        ("peek", "tail", "search", "deferred", "sessions", "scheduled"),
        (
            ("Look at messages:", "peeklock peek orders"),
            ("Follow new ones:", "peeklock tail orders"),
            ("Find messages:", "peeklock search orders --text banana"),
            ("Deferred, sessions:", "peeklock deferred list orders, peeklock sessions list chats"),
            ("Scheduled messages:", "peeklock scheduled list orders"),
            ("See what waits:", "peeklock queues list --watch"),
        ),
    ),
    Task(
        "Put right",
        ("dead-letters", "move", "purge"),
        (
            ("Why messages died:", "peeklock dead-letters groups orders"),
            ("Send them again:", "peeklock dead-letters resubmit orders"),
            ("Move messages:", "peeklock move orders backup"),
            ("Remove messages:", "peeklock purge orders"),
        ),
    ),
    Task(
        "Entities, here or in Azure",
        ("logins", "queues", "topics", "subscriptions", "rules", "import"),
        (
            (
                "Remember a namespace:",
                "peeklock logins add shop, then peeklock queues list --connection shop",
            ),
            ("Queues:", "peeklock queues create orders --lock-duration 1m"),
            ("Topics:", "peeklock topics create news, then peeklock subscriptions create news sport"),
            ("Rules:", 'peeklock rules create news sport goals --filter "goals > 3"'),
            ("Move from Azure:", 'peeklock import --from "Endpoint=sb://..." --data ./data'),
        ),
    ),
    Task(
        "Run a broker",
        ("demo", "serve", "health", "connections", "namespaces", "cluster", "keys", "ca"),
        (
            ("See it work:", "peeklock demo"),
            ("Keep the data:", "peeklock serve --data ./data"),
            (
                "Use your own keys:",
                "peeklock serve --data ./data --auth sas, then peeklock keys list ./data",
            ),
            ("Trust its TLS:", "peeklock ca ./data"),
            ("See how it is:", "peeklock health --data ./data"),
            ("See who is connected:", "peeklock connections --data ./data"),
            ("Isolate teams, tests:", "peeklock namespaces create bank --data ./data"),
        ),
    ),
    Task(
        "Measure and trace",
        ("bench", "trace"),
        (
            ("Measure a broker:", "peeklock bench orders"),
            ("See a failed client:", "peeklock serve --trace-frames ./traces, then peeklock trace FILE"),
        ),
    ),
    Task(
        "Data and Spark",
        ("check", "export", "backup", "restore", "copy", "pipeline"),
        (
            ("Verify a data folder:", "peeklock check ./data"),
            ("Save its entities:", "peeklock export ./data > Config.json"),
            ("Back it up:", "peeklock backup --data ./data --to monday.backup"),
            ("Audit the event log:", "peeklock pipeline audit --help"),
        ),
    ),
)


class Group(click.Group):
    """Commands whose summaries are shown whole: click would cut them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(self.commands[name])) for name in sorted(self.commands)])


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(SUMMARY_CHARACTERS)


class Commands(click.Group):
    """The commands, shown by task.

    Interrupted, and at a closed pipe, it exits silently, with the status that a shell shows for these
    signals; click would print "Aborted!".
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and sys.stdout.isatty() and not ctx.resilient_parsing:
            click.echo("\n".join(overview(self.commands)))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for task in TASKS:
            names = [name for name in task.commands if name in self.commands]
            if names:
                with formatter.section(task.title):
                    formatter.write_dl([(name, _summary(self.commands[name])) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the end fails again
            sys.exit(PIPE_CLOSED)


def overview(registered: Collection[str]) -> Iterator[str]:
    """Yield the lines of what there is to do, with a command line for each."""
    yield "A durable, self-hosted message broker that speaks Azure Service Bus."
    for task in TASKS:
        shown = [each for each in task.examples if set(_NAMED.findall(each[1])) <= set(registered)]
        if shown:
            yield ""
            yield task.title
        for what, command in shown:
            yield f"  {what:<22}{command}"
    yield ""
    yield "All commands: peeklock --help. Options and examples of one: peeklock COMMAND --help."
