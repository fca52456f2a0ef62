#!/bin/sh
# Run the program that build.sh put into the folder $1. Requests come on standard input, answers go to standard output.
set -eu
build=$1
. ../java/trust.sh

# The client takes no port. Where the connection string has one, it runs in a network of its own: see relay.py.
within=
port=$(printf '%s' "$PEEKLOCK_TEST_CONNECTION_STRING" | sed -n 's|.*Endpoint=sb://[^:;/]*:\([0-9]*\).*|\1|p')
if [ -n "$port" ]; then
    host=$(printf '%s' "$PEEKLOCK_TEST_CONNECTION_STRING" | sed -n 's|.*Endpoint=sb://\([^:;/]*\).*|\1|p')
    "$PYTHON" relay.py out "$scratch/broker" "$host" "$port" &
    if [ "$(id -u)" = 0 ]; then mapped=; else mapped=--map-root-user; fi
    within="unshare $mapped --net sh within.sh $scratch/broker"
fi

# For a small machine: one collector thread, the quick compiler only, 256 MB.
$within java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m $trust \
    -Dorg.slf4j.simpleLogger.defaultLogLevel="${PEEKLOCK_LOG:-error}" \
    -cp "$build/classes:$build/lib/*" interop.Main
