# Sourced by run.sh of the programs in Java. Java takes no PEM file: the authority that PEEKLOCK_CA names goes into a trust
# store in a folder that goes with the program, and $trust has the options. It holds nothing secret; the password is only
# there because keytool asks for one. Without PEEKLOCK_CA Java trusts its own authorities.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trust=
if [ -n "${PEEKLOCK_CA:-}" ]; then
    keytool -J-XX:TieredStopAtLevel=1 -importcert -noprompt -alias peeklock -file "$PEEKLOCK_CA" \
        -keystore "$scratch/trust.p12" -storetype PKCS12 -storepass changeit >&2
    trust="-Djavax.net.ssl.trustStore=$scratch/trust.p12 -Djavax.net.ssl.trustStorePassword=changeit"
fi
