"""Messages over HTTP, sans-IO: the REST data plane of Azure Service Bus.

api                what each method does with a path
exchange           a request and its possible answers
paths              paths of the data plane
sending            from headers and JSON to messages
showing            from a message to the answer that shows it
receives           requests that wait for messages
broker_properties  the JSON of the header BrokerProperties
properties         application properties as headers
encoding           a sent message and its record
names              texts of refusals for unknown names
"""
