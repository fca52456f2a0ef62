#!/bin/sh
# Compiles the program into the folder $1. Cargo.lock pins every crate; --locked keeps it as it is.
set -eu
CARGO_TARGET_DIR="$1/target" cargo build --quiet --locked
mv "$1/target/debug/interop" "$1/interop"
rm -r "$1/target"
version() { cargo pkgid --locked "$1" | sed 's/.*[#@]//'; }
printf '{"azure_messaging_servicebus": "%s", "azure_core": "%s", "reqwest": "%s", "Rust": "%s"}\n' \
  "$(version azure_messaging_servicebus)" "$(version azure_core)" "$(version reqwest)" \
  "$(rustc --version | cut -d ' ' -f 2)" > "$1/versions.json"
