"""One namespace on the event loop.

shard          The namespace as the rest of the server uses it, its housekeeping and its orderly end.
driver_loop    In which turns of the loop the driver is stepped, and its actions done.
store_calls    The commit and the reads under way.
housekeeping   What each shard needs from time to time, in one task.
connections    The connections to which effects are handed.
own_requests   Requests of this process itself, a connection without a peer.
spanned_loop   A driver loop that tells spans what happens.
measures       Times and sizes of commits.
back_pressure  When sends are refused.
vitals         Whether the broker lives and is ready.
definitions    Log lines of created, changed and deleted entities and rules.
"""
