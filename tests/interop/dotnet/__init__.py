"""A player of `Azure.Messaging.ServiceBus` for .NET: what it sends, frame by frame, and what it relies on.

    encoding      values as .NET writes them; each width is the client's, not that of our own encoder
    frames        performatives and messages, with all the fields that the client writes
    words         the syntax of a step: words, values, options
    scenario      files of scenarios
    client        the state of one connection: names, numbers, links, and the broker's frames on them
    receiving     what the client reads of messages and answers
    stage         base of all steps; the steps are in connecting, sending, taking
    player        plays the steps of a scenario over a client, sans-IO
    drivers       transports of a player's bytes: in memory with a clock to move, over TCP, over TLS

scenarios/README.md has the format. The rules are of client 7.19.0 with its AMQP library 2.6.9.
"""
