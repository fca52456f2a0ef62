#!/bin/sh
# run.sh OUT sync|aio
exec "$PYTHON" "$(dirname "$0")" "$2"
