#!/bin/sh
# Starts the program from the folder $1 in a network and a file system view of its own: see network.py.
set -eu
if [ "$(id -u)" = 0 ]; then mapped=; else mapped=--map-root-user; fi
exec unshare $mapped --net --mount "$1/venv/bin/python" "$1/main.py"
