"""python tests/benchmarks/run.py [--small] [--only core,measure] [--out docs/studies/tables/bench.json]

Runs every benchmark in a process of its own, one after the other, some 40 minutes in all on two idle cores, and writes
what they found as JSON; `scripts/make_benchmarks.py` makes pages of it. A benchmark that fails is named, and the
others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contest import HERE

ORDER = ("commands", "core", "cost", "measure", "attention", "wide", "monitor", "remedy", "scale", "workers", "peers")


def machine() -> dict[str, Any]:
    names = ("anisoscope", "numpy", "torch", "transformers")
    cpu = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    about = {"processor": cpu[0] if cpu else platform.processor(), "cores": os.cpu_count(), "load_before": load}
    return about | {"python": platform.python_version(), **{name: version(name) for name in names}}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default=",".join(ORDER))
    parser.add_argument("--out", type=Path, default=Path("docs/studies/tables/bench.json"))
    chosen = parser.parse_args()
    found: dict[str, object] = {"machine": machine(), "small": chosen.small, "rows": []}
    failed, rows = [], []
    for name in chosen.only.split(","):
        started = time.perf_counter()
        command = [sys.executable, str(HERE / f"bench_{name}.py"), *(["--small"] if chosen.small else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.append(name)
            print(f"{name} FAILED\n{done.stderr[-3000:]}", flush=True)
            continue
        given = json.loads(done.stdout.splitlines()[-1])
        rows += [{"of": name, **row} for row in given.pop("rows")]
        found |= given
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    chosen.out.write_text(json.dumps(found | {"rows": rows, "failed": failed}, indent=1, ensure_ascii=False) + "\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
