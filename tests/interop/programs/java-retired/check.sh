#!/bin/sh
# Says why the program cannot run on this machine, if so.
if [ "$(id -u)" = 0 ]; then mapped=; else mapped=--map-root-user; fi
unshare $mapped --net --mount ip link set lo up 2>/dev/null && exit 0
echo "this user may not have a network namespace of its own (unshare --net --mount, ip link)"
exit 1
