#!/usr/bin/env python3
"""Reproduce docs/internals/explain/orchestrator.md: campaigns of jobs that outlive machines.

    python scripts/proof_recovery.py                  # about an hour; `make proof-recovery`
    python scripts/proof_recovery.py --only history   # a part; may be given several times

Prints a line for each part: how many of its runs have passed, and how long they took; the exit
status is 1 unless all have. As root, because parts need machines with networks of their own; where
these are lacking, that is said.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from deepvm.reports.terminal import Column, print_rows

ROOT = Path(__file__).resolve().parent.parent
BENCH = ("bench_recovery.py", "--only", "notice", "--cloud", "netns", "--repeats", "50", "--check")


@dataclass(frozen=True)
class Part:
    """A claim, and the tests of the thorough suite that show it."""

    claim: str
    tests: tuple[str, ...]


PARTS: Mapping[str, Part] = {
    "parameters": Part(
        "parameters after 6 preemptions: bit for bit",
        (
            "tests/jobs/test_runs.py::test_parameters_after_six_preemptions_are_those_of_an_undisturbed_run",
        ),
    ),
    "notices": Part(
        "100 notices of 5 s: each heeded, no step lost",
        ("tests/jobs/test_networks.py::test_every_notice_of_five_seconds_is_heeded",),
    ),
    "bound": Part("100 notices: safe within step + 1.5 x save + 0.3 s", ()),
    "kills": Part(
        "200 kills and each labeled point: nothing lost or left",
        (
            "tests/jobs/test_kill_campaign.py::test_two_hundred_kills",
            "tests/jobs/test_kill_points.py::test_a_job_ends_well_whatever_is_killed",
            "tests/jobs/test_kill_points.py::test_two_ranks_and_an_anchor",
            "tests/jobs/test_kill_points.py::test_a_version_that_is_complete_when_rank_0_vanishes_unheard",
            "tests/jobs/test_kill_points.py::test_the_other_states",
        ),
    ),
    "history": Part(
        "200 kill -9 of writers of the history: no row lost",
        ("tests/jobs/test_history.py::test_what_was_written_survives_a_kill",),
    ),
    "simulator": Part(
        "local runs beside the simulator: within 5 %",
        ("tests/jobs/test_validate.py::test_local_runs_agree_with_the_simulator",),
    ),
}


def passed_of(report: Path) -> tuple[int, int]:
    """Passed tests and all tests by pytest's report; skipped ones have not passed."""
    suites = list(ElementTree.parse(report).iter("testsuite")) if report.exists() else []
    counts = {
        key: sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    }
    return (
        counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"],
        counts["tests"],
    )


def shown(part: Part) -> tuple[int, int]:
    """Run a part, with what it prints.

    Returns how many of its runs have passed, and how many there were.
    """
    if not part.tests:
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / BENCH[0], *BENCH[1:]], cwd=ROOT, check=False
        )
        return int(done.returncode == 0), 1
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-s", "-m", "not gpu", f"--junitxml={report}", *part.tests]
        command = [sys.executable, "-m", "pytest", *words]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "THOROUGH_TESTS": "1"}, check=False)
        return passed_of(report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="a part; may be given several times"
    )
    rows, short = [], False
    for name in parser.parse_args(arguments).only or PARTS:
        began_s = time.monotonic()
        passed, count = shown(PARTS[name])
        short = short or passed < max(count, 1)
        took = f"{(time.monotonic() - began_s) / 60:.1f} min"
        rows.append(
            [
                name,
                PARTS[name].claim,
                f"{passed} of {count}",
                took,
                "ok" if passed == count > 0 else "SHORT",
            ]
        )
    head = [
        Column("part"),
        Column("claim"),
        Column("passed", "right"),
        Column("took", "right"),
        Column(""),
    ]
    print_rows(head, rows)
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
