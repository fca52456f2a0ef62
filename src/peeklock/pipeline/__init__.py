"""Spark jobs over the event log and over queues.

audit           Proves the broker's promises from its event log.
capture         Messages of queues as rows of a lake table.
command         Commands of the jobs over the event log, and the group of all jobs.
deadletters     Dead letters grouped by entity and reason.
display         Output of the jobs: progress and tables.
events          The event log as a table, read whole or followed.
files           Folders on any file system that Spark reaches.
lives           The life of each message as one row.
metrics         Figures per entity and minute.
options         Options, the Spark session and error texts that the commands share.
plots           Plots of the jobs' tables as PNG files.
queue_commands  Commands of the jobs over queues.
replay          Rows of a table, or bodies of an event log, sent as messages again.
resubmit        Dead letters sent again and removed from their queue.
running         Runs a job over the event log: whole, or as a stream.
"""
