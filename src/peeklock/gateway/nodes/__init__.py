"""The `$management` and `$cbs` nodes: requests and responses.

node_links  attaching the request and reply links of a node
requests    request and reply links, and the encoding of requests and responses
cbs         `$cbs`: the put-token operation
management  `$management`: one table of operations
fields      fields of a management request
cursors     the `peeklock:cursor-...` operations
rules       rules of subscriptions on the wire
schedules   the messages in the body of a schedule
"""
