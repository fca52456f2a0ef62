"""Service Bus over AMQP, sans-IO: AMQP events become broker commands, effects become frames.

`connection.Gateway` is one AMQP connection. Bytes go in and commands come out of `receive`; effects go in by
`handle` and bytes come out of `data_to_send`. Inside:

- `links` knows which link is which and hands each its events and effects;
- `attach` decides what a new one is: `sender_link`, `receiver_link`, `coordinator`, or half of a request node
  (`requests`); those on which the client sends have `intake` in common;
- `settlement` reads what a receiver's dispositions mean;
- `cbs` and `management` are the two request nodes;
- `inspection` reads what the broker must know of an arriving message, `annotations` writes what a receiver is
  shown;
- `address`, `claims`, `errors` are the leaves: names, rights, and the one table of conditions.

Owns no rule of the broker: whether something is allowed by the state of an entity is decided below.
"""

from __future__ import annotations
