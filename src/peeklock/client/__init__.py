"""A blocking AMQP client of Service Bus: connections, senders, receivers, requests, cursors.

claims      One entity's cursor as its reader sees it: claims made, read and committed.
connection  One blocking AMQP connection of a process to a namespace.
errors      What can go wrong between Spark and a broker, in words that say what to do.
links       Links of a connection: what all have in common, and receivers.
management  Requests to the `$management` and `$cbs` nodes, many of them under way at a time.
sender      Sending to a queue or topic, many messages under way at a time.
settings    A connection string, taken apart.
"""
