"""The core: what queues, topics and subscriptions do, without I/O, clock or wire.

`Namespace.apply(command, now_ms)` returns changes, which a store keeps, and effects, which follow once those
are durable. Imports go downwards:

namespace   The single entry for commands, for time and for recovery.
recovery    A namespace built from the facts of the store.
handlers    Handlers of commands.
record      The history of messages that left recently.
entities    Queues, topics and subscriptions: settings, rules, fan-out, forwards.
queue       One queue of messages, and the outcome of a command.
content     What is read and rewritten in the bytes of a message.
vocabulary  Commands, changes, effects, events, errors, descriptions, the record of a message.
"""
