#!/bin/sh
# Starts the program from the folder $1. OpenSSL trusts the authorities of SSL_CERT_FILE.
set -eu
if [ -n "${PEEKLOCK_CA:-}" ]; then export SSL_CERT_FILE="$PEEKLOCK_CA"; fi
exec "$1/interop"
