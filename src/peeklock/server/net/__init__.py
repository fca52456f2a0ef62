"""Connections of the server: listening sockets, AMQP, HTTP, WebSocket.

amqp           An AMQP connection on the event loop: bytes between a transport and a gateway.
api_desk       The requests of one HTTP connection to the API.
api_hub        Requests of the API that the broker has not answered yet, and streams of deliveries.
auth_throttle  How much patience there is with the addresses that connections come from.
event_stream   An HTTP answer that goes on: server-sent events, for as long as the client is there.
http           HTTP/1.1 on a transport: requests in, answers out.
http_bodies    Bodies of HTTP requests while they arrive.
http_dispatch  Which part of the broker answers an HTTP request.
http_heads     The heads of HTTP requests and answers: what stands there, and which requests are not followed.
http_wait      The request with which an HTTP connection waits for messages.
hub            Requests over HTTP that the broker has not answered yet, joined to a shard.
listener       Listening sockets, and the choice of protocol by a connection's first bytes.
ports          The ports of a broker: which there are, and what stands behind them.
refusal_log    Log lines about what was refused over HTTP, which anybody can cause.
websocket      AMQP over WebSocket: the upgrade, and a transport for an AMQP connection that frames what it
               writes.
"""
