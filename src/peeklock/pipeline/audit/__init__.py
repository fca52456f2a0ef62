"""The audit: proves the broker's promises from its event log.

checks      Names and promises of the checks, findings, the verdict.
clocks      Steps of the broker's wall clock in an event log.
facts       What the checks of lives know about each place.
files       The files of a log, compared with its manifest and their names.
job         Reads the inputs, runs the checks and prints the verdict.
ledger      A ledger of clients compared with the event log.
life_rows   Events of messages, handed to the checks of lives.
life_table  Events of messages as sorted arrays.
lives       Checks of single lives: each event against the one before.
log         Survey of the event log: entities, gaps, epochs, settings.
numbers     Checks of sequence numbers and enqueued times.
passes      Checks across messages: files, batches, sessions, duplicates, transactions, copies.
returned    The messages that a restore brought back.
"""
