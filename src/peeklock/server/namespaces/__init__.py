"""The namespaces of a process, each isolated from the others.

served      One namespace at work: store, shard, keys, history, event log.
registry    Which namespaces there are, and which one a host name or a key means.
lifecycle   Those with a store of their own: at the start, made and deleted one by one.
throw_away  Namespaces for tests: made in memory, ended by their lease.
for_tests   What tests may ask of a namespace: reset it, move its clock.
"""
