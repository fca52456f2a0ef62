"""One namespace on the event loop: driver, commits, connections, back-pressure.

back_pressure  When new sends are refused: too little space, a loop that lags, an event log that is full.
connections    The connections of one namespace: whom effects are handed to.
definitions    What became of entities and rules, in the log.
driver_loop    The driver of one namespace on an event loop: the adapter that does what it says.
losses         What went wrong and no client is told of: it is logged.
own_requests   What this process asks its own namespace: a connection without a peer.
shard          One namespace at work in the server: what connections, listeners and the event log ask of it.
store_calls    What the store of one namespace is doing: the commit and the reads under way.
totals_desk    The figures of a namespace for whoever asks, added up between other turns of the event loop.
"""
