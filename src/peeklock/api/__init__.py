"""The HTTP API `/$api/v1/`, sans-IO: as JSON, what the REST interface of Azure Service Bus lacks.

api         the steps of a request: find, authorize, read, handle
table       the table of operations, and how a request is read by it
exchange    a request and its possible answers
waits       requests that wait for the broker, and streams
entities    operations on entities
messages    on the messages of an entity
locks       on locks: receive, renew, settle, stream
sessions    on sessions
search      on the messages of all entities
scheduled   on scheduled messages: move them in time
history     on messages that left recently
model       messages as JSON
instants    instants as text
schema      the part of JSON Schema that is used
problems    statuses and names of problems
openapi     the OpenAPI document
data_plane  the data plane in that document
"""
