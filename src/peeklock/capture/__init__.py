"""The event log: what happened in the broker, as Parquet files that Spark reads.

A child process of the broker writes it: it reads the store's event rows in short transactions.

chunk           Turns event rows into a table with the columns of the log.
exporter        Moves event rows from the store into segments, none lost and none twice.
folder          The folder of the log: segments, lock, marks, retention.
message_fields  The id and the content of a message, decoded.
schema          The columns of the log.
segment         Writes one Parquet file.
"""
