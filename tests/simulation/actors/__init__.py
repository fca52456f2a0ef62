"""The clients: what they do, at random, and what they report to the checker.

actors             base of the AMQP clients: one connection at a time, lost and made again
peer               protocol side of an AMQP client: SASL, CBS, links, requests, transactions
messages           the messages that clients send
requests           requests to management nodes, and which answers are right

senders            single messages, batches, pre-settled, scheduled
receivers          settle, renew, forget, give back
session_receivers  the same under a session's lock; session states
lock_renewers      hold one message for hours
successors         continue what broken connections have left
transactors        send, settle and cancel in transactions
managing           peeks, cancels, deletes and purges over management nodes
rule_changers      add, change and remove rules
readers            read by claims, as a pipeline does
drainers           receive all that is left once the faults are over

http_clients       senders and receivers over HTTP, with a random source apart
http_peer          their protocol side: requests and answers
hostile            peers that flood and hold, with frames made by hand and a random source apart
visitors           scenarios of the .NET client (tests/interop/dotnet), without other clients
"""
