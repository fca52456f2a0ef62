"""The JSON API `/$api/v1/`, sans-IO: operations that the REST interface of Azure Service Bus lacks.

api             the steps of a request: find, authorize, read, handle
table           the table of operations; reads requests by it
exchange        a request and its possible answers
waits           requests that wait for the broker, and streams
me              the operation that shows what a token may do
counts          the operation that shows counts of all entities, and their changes
count_board     these counts, read in slices for all who ask
entities        operations that list and show entities
entity_settings settings of entities as JSON
definitions     operations that create, change and delete entities
rules           operations on the rules of a subscription
match           the operation that explains which rules match a message
rule_json       rules as JSON
messages        operations on the messages of an entity
by_number       operations on one message: delete, dead-letter, defer, schedule it for another time
locks           operations on locks: receive, renew, settle, stream
sessions        operations on sessions
search          operations on the messages of all entities
works           operations whose work a child process does: search, groups
criteria        what messages must be, as JSON
life            the operation on the life of a message, from the event log
jobs            operations on jobs: preview, start, list, stop, resume
scheduled       operations on scheduled messages: enqueue them earlier or later
history         the operation on messages that left recently
model           messages as JSON
section_json    their AMQP sections as JSON
instants        instants as text
schema          the part of JSON Schema that is used
problems        statuses and names of problems
openapi         the OpenAPI document
access          who may see a page of the operator
connections     connections as JSON
cluster_pages   the pages of a node of a cluster in the OpenAPI document
operator_pages  the operator's pages in the OpenAPI document
data_plane      the data plane in that document
"""
