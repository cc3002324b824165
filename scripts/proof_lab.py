#!/usr/bin/env python3
"""Reproduce docs/internals/explain/lab.md: trainings that fail in the recovery lab, their audit.

    python scripts/proof_lab.py                # about 20 minutes on two cores; `make proof-lab`
    python scripts/proof_lab.py --only kills   # a part; may be given several times

Prints a line for each part, with what it measured and its limit; the exit status is 1 unless all
hold. Runs and pages stay in build/proof-lab/, and are not made again by the next call. Times mean
something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepvm.lab.audit.gates import verdicts
from deepvm.lab.geometry import Geometry, ids_hash
from deepvm.lab.records import Records
from deepvm.reports.terminal import Column, print_lines, print_rows

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "proof-lab"
SHAPE = """name: ecrl-shape
datasets: [{{name: cifar10, path: {folder}}}, {{name: cifar100, path: {folder}}}]
models: [{{name: resnet18, width: 8}}, {{name: resnet50, width: 8}}]
failures:
  base: {{exit: [20, 60]}}
  late: {{exit: [40, 70]}}
variants: [none, ref-blk, ref-ovl, blk, ovl]
world: 4
global_batch: 32
steps: 80
checkpoint_every: 5
max_inflight: 4
"""
"""ECRL's matrix: schedules and K of 1600 steps, divided by 20 and 10; synthetic images."""

Finding = tuple[str, str, bool]
"""(what was measured, its limit, whether it holds)"""


def ran(matrix: str | Path, name: str) -> tuple[dict[str, Any], float]:
    """Run a matrix into its folder; its report and the seconds it took.

    Raises SystemExit: it could not be run.
    """
    began_s = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "deepvm",
        "lab",
        "run",
        str(matrix),
        "--out",
        str(OUT / name),
        "-o",
        "json",
    ]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}")
    return json.loads(done.stdout), time.monotonic() - began_s


def audited(name: str) -> Finding:
    """How many runs of a folder pass all gates."""
    words = [sys.executable, "-m", "deepvm", "lab", "check", str(OUT / name), "-o", "json"]
    found = json.loads(
        subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout
    )
    for failure in found["failures"]:
        print_lines([f"{failure['run']}: {failure['gate']}: {failure['reason']}"])
    return (
        f"{found['passed']} of {found['runs']} runs pass all gates",
        "all",
        found["passed"] == found["runs"],
    )


def matrix_of(name: str) -> Iterator[Finding]:
    """A matrix that comes with deepvm."""
    ran(name, name)
    yield audited(name)


def quick() -> Iterator[Finding]:
    """The default matrix: how long it takes, and how long restarts take."""
    _, took_s = ran("quick", "quick")
    yield audited("quick")
    yield f"{took_s:.0f} s", "300 s", took_s <= 300
    starts = sorted(restarts_of("quick"))
    said = (
        f"restart of a forkserver's ranks: median {statistics.median(starts):.2f} s, longest"
        f" {starts[-1]:.2f} s"
    )
    yield said, "0.5 s each", starts[-1] <= 0.5


def restarts_of(name: str) -> Iterator[float]:
    """From the moment a failure was seen until all ranks had met again."""
    for path in (OUT / name / "runs").glob("*/supervisor.json"):
        for attempt in json.loads(path.read_text())["attempts"]:
            if attempt.get("restart_s") is not None:
                yield attempt["restart_s"]


def selftest() -> Iterator[Finding]:
    """The negative controls."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "deepvm", "lab", "selftest"], cwd=ROOT, check=False
    )
    took_s = time.monotonic() - began_s
    yield "each negative control fails its own gate only", "all", done.returncode == 0
    yield f"{took_s:.0f} s", "180 s", took_s <= 180


def kills() -> Iterator[Finding]:
    """100 kills of each strategy; those that struck are counted, and what they hit."""
    ran("kills", "kills")
    yield audited("kills")
    for variant in ("blk", "ovl", "dcp-async", "deepvm"):
        struck = again = 0
        for path in (OUT / "kills" / "runs").glob(f"*-{variant}-s*/supervisor.json"):
            attempts = json.loads(path.read_text())["attempts"]
            struck += sum(len(one["struck"]) for one in attempts)
            again += sum((one.get("replay_s") or 0) > 0 for one in attempts)
        yield (
            f"{variant}: {struck} kills, steps were done again after {again} of them",
            "100",
            struck == 100,
        )


def paired() -> Iterator[Finding]:
    """Costs of strategies, six repeats side by side; stalls have limits, goodput has no gate."""
    report, _ = ran("paired", "paired")
    yield audited("paired")
    (suite,) = report["suites"]
    rows = []
    for name, one in suite["variants"].items():
        ratio = suite["paired"].get(f"{name}_over_blk")
        shown = (
            ""
            if ratio is None
            else f"{ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        )
        goodput = one["goodput"]
        times = [f"{one[key]:.3f}" for key in ("stall_s", "drain_s")]
        rows.append([name, f"{goodput['mean']:.2f}", shown, *times, str(goodput["n"])])
    head = [
        Column("variant"),
        *(Column(text, "right") for text in ("steps/s", "over blk", "stall, s", "drain, s", "n")),
    ]
    print_rows(head, rows)
    stalls, drains = (
        {name: one[key] for name, one in suite["variants"].items()}
        for key in ("stall_s", "drain_s")
    )
    for name, most in (("ovl", 0.5), ("deepvm", 0.1)):
        ratio = stalls[name] / stalls["blk"]
        drained = (stalls[name] + drains[name]) / (stalls["blk"] + drains["blk"])
        yield (
            f"stall of {name} over blk: {ratio:.3f}, with its drain {drained:.3f}",
            f"{most}",
            ratio <= most,
        )


def ecrl() -> Iterator[Finding]:
    """ECRL's matrix on images that are made up in CIFAR's format; its tables are in analysis.md."""
    with tempfile.TemporaryDirectory() as folder:
        place = OUT / "cifar"
        place.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        for file, labels in (("data_batch_1.bin", [10]), ("train.bin", [20, 100])):
            heads = np.stack([rng.integers(0, most, 256, dtype=np.uint8) for most in labels], 1)
            images = rng.integers(0, 256, (256, 3072), dtype=np.uint8)
            (place / file).write_bytes(np.concatenate([heads, images], 1).tobytes())
        matrix = Path(folder) / "ecrl-shape.yaml"
        matrix.write_text(SHAPE.format(folder=place))
        ran(matrix, "ecrl-shape")
    yield audited("ecrl-shape")
    tables = (OUT / "ecrl-shape" / "analysis.md").read_text().count("## Table")
    yield f"{tables} of ECRL's tables 2 to 7", "6", tables == 6


def audit() -> Iterator[Finding]:
    """How long it takes to judge 10 000 steps of four ranks."""
    with tempfile.TemporaryDirectory() as folder:
        run = written_run(Path(folder) / "run", steps=10_000, world=4)
        began_s = time.perf_counter()
        gates = verdicts(Records.read(run))
        took_s = time.perf_counter() - began_s
    yield f"10 000 steps of 4 ranks: {took_s:.2f} s", "2 s", took_s <= 2 and not gates["samples"]


def written_run(folder: Path, *, steps: int, world: int) -> Path:
    """Records of a run without failures, by the pinned rules."""
    folder.mkdir()
    geometry = Geometry(50_000, 256)
    config = {
        "dataset": {"name": "cifar10", "path": None},
        "dataset_size": geometry.dataset_size,
        "model": {"name": "resnet18"},
        "failure": "calm",
        "variant": "none",
        "strategy": None,
        "seed": 0,
        "world": world,
        "worlds": [[0, world]],
        "virtual_shards": 0,
        "global_batch": geometry.global_batch,
        "accumulate": 1,
        "steps": steps,
        "checkpoint_every": 50,
        "max_inflight": 4,
        "launcher": "forkserver",
        "strikes": [],
        "disk": {},
        "controls": [],
    }
    (folder / "config.json").write_text(json.dumps(config))
    attempt = {
        "attempt": 0,
        "state": "completed",
        "struck": {},
        "causes": [],
        "damaged": 0,
        "disk_errors": 0,
    }
    attempt |= {"resumed_step": 0, "reached_step": steps, "until": steps, "world": world}
    attempt |= {"began": 0.0, "detected": 1.0, "exits": [0] * world}
    supervisor = {"state": "completed", "restarts": 0, "wall_s": 1.0, "attempts": [attempt]}
    (folder / "supervisor.json").write_text(json.dumps(supervisor))
    (folder / "final.sha256").write_text("0" * 64)
    for rank in range(world):
        with (folder / f"rank_{rank}.jsonl").open("w") as file:
            for step in range(steps):
                epoch, cursor = geometry.place(step)
                if not cursor:
                    order = geometry.permutation(0, epoch)
                ids = geometry.shard(geometry.window(order, cursor), rank, world)
                row: dict[str, Any] = {
                    "attempt": 0,
                    "global_step": step,
                    "epoch": epoch,
                    "cursor_step": cursor,
                }
                row |= {
                    "rank": rank,
                    "sample_ids_hash": ids_hash(ids),
                    "sample_ids_count": len(ids),
                    "world_size": world,
                }
                row |= {"loss": 1.0, "loss_hex": (1.0).hex(), "seconds": 0.1, "time": float(step)}
                file.write(json.dumps(row) + "\n")
    return folder


def matrix_kills() -> Iterator[Finding]:
    """A matrix that is killed at 20 random moments."""
    test = (
        "tests/lab/test_matrix_runner.py"
        "::test_a_matrix_killed_at_random_moments_ends_as_if_it_had_not_been"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", test]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "THOROUGH_TESTS": "1"}, check=False)
    yield (
        "killed at 20 random moments: the same gates, no run twice, no process left",
        "all",
        done.returncode == 0,
    )


PARTS: Mapping[str, Callable[[], Iterator[Finding]]] = {
    "quick": quick,
    "selftest": selftest,
    "world4": lambda: matrix_of("world4"),
    "elastic": lambda: matrix_of("elastic"),
    "kills": kills,
    "matrix-kills": matrix_kills,
    "ecrl": ecrl,
    "audit": audit,
    "paired": paired,
}


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
        found = list(PARTS[name]())
        took = f"{(time.monotonic() - began_s) / 60:.1f} min"
        for place, (what, limit, holds) in enumerate(found):
            rows.append(
                [
                    "" if place else name,
                    what,
                    limit,
                    "" if place else took,
                    "ok" if holds else "SHORT",
                ]
            )
            short = short or not holds
    head = [
        Column("part"),
        Column("measured"),
        Column("limit", "right"),
        Column("took", "right"),
        Column(""),
    ]
    print_rows(head, rows)
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
