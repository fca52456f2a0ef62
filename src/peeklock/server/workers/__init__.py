"""Child processes that do long work for clients of the HTTP API, see `python -m peeklock.worker`.

children  Starts children, at most so many at a time.
hub       The works of one namespace whose clients wait for their streams.
jobs      The jobs of one namespace, which outlive their clients.
"""
