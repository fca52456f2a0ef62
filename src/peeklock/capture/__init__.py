"""The event log: what happened in the broker, as Parquet files that Spark reads.

Owns: the schema of the log, its folder, the child process that writes it. Must not know: the broker's state,
sockets. It reads the store's event rows read-only, in short transactions.
"""
