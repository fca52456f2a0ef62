#!/bin/sh
# Compile the program into the folder $1 and copy there what it needs: $1/classes, $1/lib.
set -eu
output=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
mvn -B -q -ntp "-Doutput=$output" compile dependency:copy-dependencies

client=$(ls "$output/lib" | sed -n 's/^qpid-jms-client-\(.*\)\.jar$/\1/p')
java=$(java -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p')
printf '{"org.apache.qpid:qpid-jms-client": "%s", "Java": "%s"}\n' "$client" "$java" > "$output/versions.json"
