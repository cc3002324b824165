"""Show how much of each package its own tests cover, and name the modules below the limit.

Lines and branches count together. For some packages tests of others count too (``BESIDE``), for
some the slow ones (``SLOW``). It exits with 1 when a module or package is below its limit, and with
2 when there is no such package.

Usage: python scripts/coverage_rooms.py [PACKAGE ...]     (``make coverage`` for all packages)
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST = 85.0
"""Percent per module and for a package's mean, by its own tests and the processes they start."""
LEAST_MEAN = {"core": 95.0, "planner": 95.0}
"""Percent of the mean over a package's modules: these packages compute what money depends on."""
BESIDE = {
    "checkpoint": ["cli/checkpoint"],
    "exporters": ["cli/plan/test_export.py"],
    "reports": [
        "cli",
        "profiling/checkpoint/test_bench.py",
        "simulator/traces/test_deadline_replay.py",
    ],
    "simulator": ["cli/simulate"],
}
"""Tests elsewhere for a package: its output is compared with golden outputs of the commands."""
SLOW = {"profiling"}
"""Packages whose slow tests count too: real training runs on several processes."""


def rooms() -> list[str]:
    """The rooms that have tests of their own."""
    found = sorted(p.parent.name for p in (ROOT / "deepvm").glob("*/__init__.py"))
    return [room for room in found if (ROOT / "tests" / room).is_dir()]


def covered(room: str) -> dict[str, float]:
    """Per cent of each module of a room."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        marks = ["-m", "not gpu"] if room in SLOW else []
        tests = [
            f"tests/{name}"
            for name in [room, *BESIDE.get(room, [])]
            if (ROOT / "tests" / name).exists()
        ]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "auto",
            *marks,
            *tests,
            f"--cov=deepvm/{room}",
        ]
        command += ["--cov-branch", f"--cov-report=json:{report}", "--cov-report="]
        # Counting slows the processes that tests start, and warns on their stderr: the few tests of
        # start-up and Ctrl-C that fail for it have still run their code. Whether tests pass is for
        # `make test` to say.
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if ended.returncode not in (0, 1) or not report.exists():
            sys.exit(f"the tests of {room} did not run: python -m pytest {' '.join(tests)}")
        files = json.loads(report.read_text())["files"]
    return {
        name: own["summary"]["percent_covered"]
        for name, own in files.items()
        if own["summary"]["num_statements"]
    }


def main() -> int:
    """Print a row for each room, and one for each module below the limit."""
    low = False
    if unknown := set(sys.argv[1:]) - set(rooms()):
        print(
            f"no such room: {', '.join(sorted(unknown))}; there are {', '.join(rooms())}",
            file=sys.stderr,
        )
        return 2
    for room in sys.argv[1:] or rooms():
        modules = covered(room)
        mean = sum(modules.values()) / len(modules)
        low |= mean < LEAST_MEAN.get(room, LEAST)
        print(f"{room:<12} {mean:5.1f} %  mean of {len(modules)} modules", flush=True)
        for name, percent in sorted(modules.items(), key=lambda row: row[1]):
            if percent < LEAST:
                low = True
                print(f"    {percent:5.1f} %  {name}", flush=True)
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
