"""Benchmarks: `./run bench [--quick] [SCENARIO...]`.

Measures the broker as a process from outside: rates, latencies, CPU, memory, disk. `systems` starts what is
measured, `loadgen` drives it, or `client` where that cannot, `scenarios` names what is done, `report` writes
`bench/results/`, `against` compares two commits. Knows the broker's command line and the wire, nothing of its
insides.
"""

from __future__ import annotations
