"""Clients against a real `peeklock serve` process.

test_*            the official Python client, synchronous and asynchronous, on each topic
clients, helpers  both forms behind one interface; short helpers
own_client        a client on our own engine, for what the official one cannot do
impatient_broker  a broker with a short idle time-out
rights_broker     a broker whose keys lack rights
commands          the commands that work with any Service Bus, each run once
witness           a relay that writes down what a client asks for
dotnet            a player of the .NET client: its frames, its scenarios

programs          a program for each client, in its language (clients.toml, features.toml)
builds            builds them
program           runs one on a feature, with its own broker
trials            runs several side by side
results           the recorded outcomes
compare           runs them against two endpoints
"""
