#!/bin/sh
# Run the program that build.sh put into the folder $1. Requests come on standard input, answers go to standard output.
set -eu
build=$1

# Java takes no PEM file: the local authority goes into a trust store. It holds nothing secret, so the password is only
# there because keytool asks for one.
trust=$(mktemp -d)
trap 'rm -rf "$trust"' EXIT
keytool -J-XX:TieredStopAtLevel=1 -importcert -noprompt -alias peeklock -file "$PEEKLOCK_CA" \
    -keystore "$trust/trust.p12" -storetype PKCS12 -storepass changeit >&2

# For a small machine: one collector thread, the quick compiler only, 256 MB.
java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m \
    -Djavax.net.ssl.trustStore="$trust/trust.p12" -Djavax.net.ssl.trustStorePassword=changeit \
    -Dorg.slf4j.simpleLogger.defaultLogLevel="${PEEKLOCK_LOG:-error}" -Dorg.slf4j.simpleLogger.showDateTime=true \
    -cp "$build/classes:$build/lib/*" interop.Main
