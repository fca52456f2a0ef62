"""Connections of the server: listening sockets, AMQP, HTTP, WebSocket.

ports             The ports of a broker, and their TLS files.
listener          Accepted connections, until their first bytes choose a protocol.
control           The control socket.
sockets           Listening on every address of a host; the end of a transport's output.
ending            The end of a connection whose peer may still send.
door              The beginning of a connection to a node, until its namespace is known.
relay             Leads connections to the node that owns their namespace.
to_owner          The connection of one to that node.
node_port         The port at which other nodes hand on clients.
probing           Whether a node's listener answers, and which nodes it can reach.
handed_on         The transport of a connection whose beginning another part has answered.
protocols         Makes the protocol of each connection.
endpoint          What HTTP connections use of one namespace.
amqp              AMQP between a transport and a gateway.
frame_files       Files of the frames before an error.
http              HTTP/1.1: a connection, reading requests, writing answers.
http_phases       Its phases, and how long each may take.
http_heads        Heads of requests and answers.
http_bodies       Bodies of requests while they arrive.
http_dispatch     Which part of the broker answers a request.
operator_pages    Which page an operator asks for, and who may see it.
connection_pages  The pages that show and close connections.
cluster_pages     The pages that show nodes, and move namespaces.
key_pages         The pages that show and change keys.
namespace_pages   The pages that show and make namespaces, and what tests ask of them.
backup_pages      The stores of a broker in memory, for `peeklock backup`.
explorer_pages    The files of the explorer.
config_page       The page that shows the definitions.
probes            The pages that probes ask for.
metrics_pages     The pages that Prometheus asks for.
namespace_pages   The pages that show, make and end namespaces.
http_wait         A request that waits for messages, or reads a stream of them.
hub               Unanswered HTTP requests, as a connection to the shard.
websocket         AMQP over WebSocket.
auth_throttle     Pacing of addresses that show bad tokens or keys.
"""
