"""Long work over messages, done by a child process of the broker over one blocking connection.

job_driver  Runs a job of `peeklock.jobs`: it carries out operations, and decides nothing.
"""
