#!/bin/sh
# Run the program that build.sh put into the folder $1. Requests come on standard input, answers go to standard output.
set -eu
build=$1
. ../java/trust.sh

# For a small machine: one collector thread, the quick compiler only, 256 MB.
java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m $trust \
    -Dorg.slf4j.simpleLogger.defaultLogLevel="${PEEKLOCK_LOG:-error}" -Dorg.slf4j.simpleLogger.showDateTime=true \
    -cp "$build/classes:$build/lib/*" interop.Main
