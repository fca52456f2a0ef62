#!/bin/sh
# Runs the program that build.sh has put in FOLDER: run.sh FOLDER
set -eu
# Node reads the authorities to trust once, at its start.
NODE_EXTRA_CA_CERTS=${PEEKLOCK_CA:-}
export NODE_EXTRA_CA_CERTS
exec node "$1/main.js"
