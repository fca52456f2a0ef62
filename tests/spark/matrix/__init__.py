"""`python -m tests.spark.matrix`: the data source on each Spark, into each table format, with kills.

- `environments`: an environment of each version, and jars of table formats
- `driver`: the queries, in a process of its own that can be killed
- `row`: one Spark with one table format: feeds, kills, judges
- `results`: the file that docs/reference/matrix.md is made from
"""
