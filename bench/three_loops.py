"""`python -m bench.three_loops`: three ways to send over a slow path, by the official client, as a table.

Runs `examples/three_loops.py` in both its forms against its own broker, over a path with 70 ms round trip,
and prints the best possible time of each way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.delay import delayed_path
from bench.systems import KEY, KEY_NAME, Peeklock

EXAMPLE = Path(__file__).parents[1] / "examples/three_loops.py"
ROUND_TRIP_S = 0.07
IN_FLIGHT_MAX = 10
LINE = re.compile(r"^([a-z ]+): (\d+) sends in ([\d.]+) s, at most (\d+) in flight$", re.MULTILINE)


def measure(broker: Peeklock, form: str) -> list[tuple[str, int, float, int]]:
    """Run the example in one form of the client: `(loop, sends, seconds, most in flight)` for each loop."""
    with delayed_path(broker.port, ROUND_TRIP_S / 2) as port:
        connection_string = (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};"
            "UseDevelopmentEmulator=true;"
        )
        done = subprocess.run(
            [sys.executable, EXAMPLE, "loops", "--api", form],
            env={**os.environ, "SERVICEBUS_CONNECTION_STRING": connection_string},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=120,
        )
    return [(loop, int(n), float(s), int(most)) for loop, n, s, most in LINE.findall(done.stdout)]


def main() -> int:
    """Print the table as Markdown."""
    print(f"| client | loop | sends | seconds | at best, {ROUND_TRIP_S * 1000:.0f} ms a round trip |")
    print("|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        broker = Peeklock(Path(folder), ("loops",))
        broker.start()
        try:
            for form in ("sync", "aio"):
                for loop, sends, seconds, most in measure(broker, form):
                    best = ROUND_TRIP_S * -(-sends // most)
                    way = f"{loop}, at most {most} in flight"
                    print(f"| {form} | {way} | {sends} | {seconds:.2f} | {best:.2f} |")
        finally:
            broker.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
