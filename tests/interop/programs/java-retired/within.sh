#!/bin/sh
# In a network of its own: lead the client's ports to the socket $1, then run what follows.
set -eu
socket=$1
shift
ip link set lo up
mkfifo "$socket.ready"
"$PYTHON" relay.py in "$socket" > "$socket.ready" < /dev/null &
read -r _ < "$socket.ready"
exec "$@"
