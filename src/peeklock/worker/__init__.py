"""Long work over messages, done by a child process of the broker over one blocking connection.

works       The works by name.
orders      What the broker writes to a worker: the work, then orders.
output      What a worker writes: server-sent events, or JSON Lines.
searching   A search, and how far it is.
grouping    Messages counted by a value of theirs.
life        The life of a message, from the event log.
job_runs    A job and its preview.
rescheduling  A job that enqueues scheduled messages at another time.
job_driver  Runs a job of `peeklock.jobs`: it carries out operations, and decides nothing.
memory      How much memory a worker may have.
priority    The priority of a process whose work can wait.
pacing      Peeks that leave the broker's other clients their time.
showing     A message as the HTTP API shows it, with a body that may be cut.
"""
