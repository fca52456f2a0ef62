#!/bin/sh
# Installs the pinned dependencies beside a copy of the program: build.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cp "$here"/*.js "$here"/package.json "$here"/package-lock.json "$here"/.npmrc "$1"/
cd "$1"
npm ci --no-audit --no-fund
node -e '
  const { dependencies } = require("./package.json");
  const versions = { ...dependencies, "Node.js": process.versions.node };
  require("fs").writeFileSync("versions.json", JSON.stringify(versions));
'
