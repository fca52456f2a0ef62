"""One handler for each command of a namespace.

attachments            Who is attached: opening and closing links, their credit, and what their end means.
body_operations        What the disk says of bodies: that one was read, or that some are damaged.
cancelling             Cancelling scheduled messages, by their numbers.
cursor_operations      What is asked about cursors: claim, read, commit, release, list (X-06).
definition_operations  What is asked about entities and rules, but for their deletion (`deletions`).
deletions              Deleting entities, a topic of many subscriptions in slices.
enlisted               What a transaction keeps of a command that is enlisted, and what it fixes then.
enlisting              Commands within a transaction: checked when they are enlisted and at the commit, done
                       with the commit.
lost_bodies            Messages whose bodies are damaged on the disk: each goes to the dead-letter queue
                       without its body.
open_transactions      What is remembered of open transactions: of each, of each coordinator link, of each
                       connection.
operations             What is asked about messages: send, settle, and the operations of the management node;
                       what is asked about
purging                Purges: deleting all messages of a queue, a slice at a time.
searching              Finding messages by what they are, in one queue or in all: to show them or to delete
                       them.
session_operations     What is asked about sessions: renew the lock, read and set the state, list.
shifting               Scheduled messages that are to be enqueued earlier or later than their senders said.
storing                Messages that one command sends, stored a slice at a time.
totals                 The figures of a whole namespace, added up a slice of its entities at a time.
transactions           Transactions: what was enlisted happens as a whole, or not at all.
"""
