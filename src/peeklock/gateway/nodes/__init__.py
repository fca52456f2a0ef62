"""The `$management` and `$cbs` nodes: requests and responses.

cbs         Claims-based security: the `$cbs` node, where a client puts its tokens.
cursors     Cursors over `$management`: the `peeklock:cursor-...` operations (X-06).
fields      Fields of a management request.
management  The `$management` node of an entity: one table of operations.
node_links  Attaching to `$management` and `$cbs`, half by half.
requests    Request and response over a pair of links, as `$management` and `$cbs` do it.
rules       Rules of subscriptions as clients write them and as they read them.
schedules   The messages in the body of a schedule: up to thousands, so found one by one.
"""
