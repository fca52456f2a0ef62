"""The event log: what happened in the broker, as Parquet files that Spark reads.

A child process of the broker (`__main__`) writes the logs of all namespaces: it reads the event rows of their
stores in short transactions.

chunk           Turns event rows into a table with the columns of the log.
exporter        Moves event rows of one store into segments, none lost and none twice.
folder          The folder of the log: segments, lock, marks, retention.
head            Which segment was published last, and which exporter may go on.
logs            Serves the logs of one process in turn.
manifest        Which segments were written, and the digest of each: the format.
manifest_file   The manifest as a file.
message_fields  The id and the content of a message, decoded.
schema          The columns of the log.
segment         Writes one Parquet file.
source          Where the events of one store are.
"""
