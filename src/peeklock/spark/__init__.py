"""The PySpark data source and sink `servicebus`.

Owns: options, offsets and rows of the source and the sink, the AMQP client under them. Must not know: the
broker's rooms. It talks to a broker, ours or Azure's, over AMQP alone.
"""
