"""Metrics for Prometheus, pure: what they are, and how figures become text.

table       All metrics: name, kind, labels, help, and the name of Azure Monitor's.
histogram   Counts of observations by bucket.
exposition  The text formats: heads, labels, numbers.
pages       The text of the namespace, and of its entities in slices.
matching    Patterns for names of entities, whose cost is bounded.
"""
