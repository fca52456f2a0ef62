"""The PySpark data source and sink `servicebus`. It reaches a broker, peeklock or Azure, over AMQP only.

connections  Named connections: a connection string from the environment or a file.
java         Finds or wraps a Java runtime for Spark.
options      Options of the data source: names, defaults, checks.
session      A Spark session in this process, set up by pip alone.
sink         Rows of a table sent to entities.
source       Messages of entities as rows: batches and streams.
versions     What Spark 4.0 and 4.1 lack.
"""
