"""The audit: proves the broker's promises from its event log.

checks        Names and promises of the checks, findings, the verdict.
clocks        Steps of the broker's wall clock in an event log.
exchange      The way of rows from segments to the tasks that judge them.
facts         What the checks of lives know about each place.
files         The files of a log, compared with its manifest and their names.
job           Reads the inputs, runs the checks and prints the verdict.
judging       Judges the rows that came together in one task.
ledger        A ledger of clients compared with the event log.
life_table    Events of messages as sorted arrays.
lives         Checks of single lives: each event against the one before.
log           Survey of the event log: entities, gaps, epochs, settings.
numbers       Checks of sequence numbers and enqueued times.
packing       Columns of numbers as bytes.
passes        Checks across messages: files, batches, duplicates, transactions, copies.
returned      The messages that a restore brought back.
seen          What each segment shows of itself: digest, batches, counts, rare events.
segment_rows  The rows that each check needs of a segment.
segments      Segments as arrays, read in tasks of Spark.
sessions      Checks of sessions: holders, and the order of delivery.
vocabulary    The types of events in groups.
"""
