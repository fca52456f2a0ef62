"""`peeklock demo`: jobs through a queue with the official client, while the broker is killed and restarted.

broker   Runs, kills and restarts `peeklock serve` as a child process.
client   Sends and processes the jobs; the only import of the official client, which may be missing.
display  The output: a bar and colours in a terminal, plain lines in a pipe.
jobs     The jobs, the work, and the troubles.
ledger   Counts what happened to each job, and finds faults.
proof    Runs Spark's jobs over the event log.
story    The order of events, from start to verdict.
"""
