"""Handlers of commands. Each raises a `ServiceBusError` before its first change, or does the whole command.

dispatch               All handlers, and the table of their commands.
operations             Send, settle, peek, schedule and other operations on messages.
storing                Messages of one command, stored in slices.
scheduled              Scheduled messages: cancelled or shifted.
resetting              Reset of a namespace between two tests.
purging                Deletion of all messages of a queue, in slices.
searching              Messages found by a filter, to be shown or deleted.
by_number              One message settled by its number.
bodies                 Answers of the disk: a body was read, or bodies are damaged.
session_operations     Session locks and states.
cursor_operations      Cursors: claim, read, commit, release, list.
attachments            Links and connections: opened, closed, given credit.
transactions           Declare, enlist, discharge; limits and time-outs.
enlisting              Commands of a transaction: checked, and done with the commit.
enlisted               Commands as a transaction keeps them.
open_transactions      Records of open transactions.
definition_operations  Entities and rules: create, update, list.
deletions              Deletion of entities, in slices.
totals                 Figures of a whole namespace, added up in slices.
figures                Figures of each entity, read in slices.
"""
