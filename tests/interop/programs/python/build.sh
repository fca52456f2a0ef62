#!/bin/sh
# Nothing is compiled: the official client is in the Python that runs the tests. Writes down its versions.
set -eu

"$PYTHON" - "$1/versions.json" <<'PYTHON'
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

names = ("azure-servicebus", "azure-core", "aiohttp")
versions = {**{name: version(name) for name in names}, "Python": platform.python_version()}
Path(sys.argv[1]).write_text(json.dumps(versions))
PYTHON
