"""The jobs over the event log and over queues: lives, metrics, triage, audit, capture, replay, resubmission.

Owns: what each job computes and how it is shown. Must not know: the broker. Jobs see the event log's tables
and the data source `servicebus`, in one process or under spark-submit alike.
"""
