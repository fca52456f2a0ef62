#!/bin/sh
# Makes an environment of its own in the folder $1: Celery with kombu's Azure Service Bus transport, pinned.
set -eu
"$PYTHON" -m venv "$1/venv"
"$1/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
cp ./*.py "$1/"
"$1/venv/bin/python" - "$1/versions.json" <<'VERSIONS'
import importlib.metadata, json, platform, sys

versions = {name: importlib.metadata.version(name) for name in ("celery", "kombu", "azure-servicebus")}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(versions | {"Python": platform.python_version()}, file)
VERSIONS
