"""The folder of a small matrix as ``deepvm lab run`` leaves it, written by hand: no training,
always the same times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepvm.lab.checked import check, publishable
from deepvm.lab.records import AUDIT, CHECKPOINTS, CONFIG, ENVIRONMENT, FINAL, RUNS, SUPERVISOR
from deepvm.lab.results import suites_of
from deepvm.lab.running.manifest import Manifest, Row, key_of
from support.lab.made_runs import row, write, write_lines

SIZE, BATCH, WORLD, STEPS, EVERY = 4096, 1024, 2, 12, 4
BEGAN_S = 1_795_780_800.0  # 2026-11-27T12:00:00Z
NO_PROCESS = 2**22 + 1  # above Linux's largest number of a process
STRATEGIES = {
    "none": None,
    "ref-blk": "blocking",
    "ref-ovl": "overlapped",
    "blk": "blocking",
    "ovl": "overlapped",
}
STRATEGIES |= {"deepvm": "deepvm"}
STALLS_S = {"blocking": 0.4, "overlapped": 0.1, "deepvm": 0.02}
"""Of a checkpoint."""
STEP_S, DETECT_S, RESTART_S, RESTORE_S, START_S = 0.25, 0.05, 0.3, 0.1, 0.5
FAILURES: Mapping[str, Sequence[int]] = {"base": (4, 8), "late": (6, 10)}
MACHINE = {
    "OS": "Debian GNU/Linux 12 (bookworm), kernel 6.1, x86_64",
    "CPU": "Example CPU",
    "cores": "2 usable, 2 logical CPUs",
    "memory": "16.0 GiB",
    "disk": "ext4 file system",
    "Python": "3.11.7",
    "PyTorch": "2.13.0",
    "NumPy": "2.0.0",
    "backend": "gloo, CPU, one thread a rank",
    "deepvm": "0.1.0",
}


def publish(out: Path) -> None:
    """The publishable files of its suites, with what ``deepvm lab check`` asks of them."""
    runs = [records for records, _ in check(out)[1]]
    for suite in suites_of((run, True) for run in runs):
        finals = {run.folder.name: run.final for run in runs if (run.folder / FINAL).exists()}
        names = [cost.run for cost in suite.costs]
        rows = [{"run": name, "final_sha256": finals.get(name)} for name in names]
        (out / publishable(suite, "json")).write_text(json.dumps({"runs": rows}))


def make(
    out: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    wrong: Collection[str] = (),
    unfinished: Collection[str] = (),
    variants: Sequence[str] = tuple(STRATEGIES),
    matrix: str = "by-hand",
) -> Path:
    """Write it, into a folder that may be new.

    ``wrong``: runs that end with other parameters. ``unfinished``: those that end before their last
    step.
    """
    out.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(out)
    for config in configs(seeds, variants, matrix):
        strikes = [one["step"] for one in config["strikes"]]
        names = ("tokens", "gpt-tiny", config["failure"], config["variant"])
        name = f"{'-'.join(names)}-s{config['seed']}"
        folder = out / RUNS / name
        folder.mkdir(parents=True)
        wall_s = write_run(folder, config, wrong=name in wrong, ends=name not in unfinished)
        state = "failed" if name in unfinished else "invalid" if name in wrong else "completed"
        goodput = round(STEPS / wall_s, 4)
        reason = "" if state == "completed" else "by hand"
        listed = Row(
            key_of(config, MACHINE),
            name,
            *names,
            config["seed"],
            state,
            round(wall_s, 3),
            goodput,
            len(strikes),
            reason,
        )
        manifest.add(listed)
    return out


def list_again(out: Path) -> None:
    """Give the manifest the keys of configurations that were changed: as if the runs had been made
    so.
    """
    manifest = Manifest(out)
    for listed in list(manifest.rows.values()):
        config = json.loads((out / RUNS / listed.run / CONFIG).read_text())
        manifest.add(replace(listed, key=key_of(config, MACHINE)))


def configs(seeds: Sequence[int], variants: Sequence[str], matrix: str) -> Iterator[dict[str, Any]]:
    for seed in seeds:
        for variant in variants:
            calm = variant == "none" or variant.startswith("ref-")
            for failure in ("calm",) if calm else tuple(FAILURES):
                yield config_of(matrix, seed, variant, failure)


def config_of(matrix: str, seed: int, variant: str, failure: str) -> dict[str, Any]:
    steps = FAILURES.get(failure, ())
    common = {"rank": 0, "target": "worker", "seconds": 0.0, "delay_s": 0.0, "ends": True}
    return {
        "schema_version": "deepvm.lab-run/1",
        "matrix": matrix,
        "dataset": {"name": "tokens", "path": None},
        "dataset_size": SIZE,
        "model": {"name": "gpt-tiny", "width": 16, "norm": "batch", "dropout": 0.1},
        "failure": failure,
        "variant": variant,
        "strategy": STRATEGIES[variant],
        "seed": seed,
        "world": WORLD,
        "worlds": [[0, WORLD]],
        "min_world": None,
        "virtual_shards": 0,
        "global_batch": BATCH,
        "accumulate": 1,
        "steps": STEPS,
        "checkpoint_every": EVERY,
        "max_inflight": 4,
        "keep": 3,
        "launcher": "forkserver",
        "strikes": [
            {"fault": "exit", "step": step, "key": f"exit-{step}-0", **common} for step in steps
        ],
        "disk": {},
        "controls": [],
    }


def write_run(
    folder: Path, config: Mapping[str, Any], *, wrong: bool = False, ends: bool = True
) -> float:
    """One run; returns its seconds. Steps of seed s take 1 + s/10 times as long."""
    seed, strategy = config["seed"], config["strategy"]
    step_s, stall_s = STEP_S * (1 + seed / 10), STALLS_S.get(strategy or "", 0.0)
    strikes = [one["step"] for one in config["strikes"]]
    now, resumed, reached, attempts, checkpoints = (
        BEGAN_S + 100 * seed,
        0,
        0,
        list[dict[str, Any]](),
        list[Any](),
    )
    logs: list[list[dict[str, Any]]] = [[] for _ in range(WORLD)]
    events: list[list[dict[str, Any]]] = [[] for _ in range(WORLD)]
    for number in range(len(strikes) + 1):
        until = strikes[number] if number < len(strikes) else STEPS
        until = until if ends or number < len(strikes) else STEPS - 1
        began = now
        now += (RESTART_S - DETECT_S if number else START_S) + RESTORE_S
        for rank in range(WORLD):
            facts = {"attempt": number, "rank": rank}
            events[rank].append({"event": "started", "time": began, **facts, "pid": NO_PROCESS})
            events[rank].append(
                {"event": "restored", "time": now, **facts, "step": resumed, "seconds": RESTORE_S}
            )
        restored, replay_s = now, 0.0
        for step in range(resumed, until):
            now += step_s
            for rank in range(WORLD):
                logs[rank].append(
                    {**row(config, step, rank, WORLD, number), "seconds": step_s, "time": now}
                )
            if strategy and (step + 1) % EVERY == 0:
                now += stall_s
                checkpoints.append(checkpoint_row(number, step + 1, strategy, stall_s, now))
                events[0].append(stall_row(number, step + 1, strategy, stall_s, now))
            if step < reached:
                replay_s = now - restored
        last = number == len(strikes)
        key = "" if last else f"exit-{until}-0"
        state = "completed" if last and ends else "failed"
        facts = {
            "attempt": number,
            "world": WORLD,
            "state": state,
            "until": STEPS,
            "began": began,
            "detected": now + DETECT_S,
            "exits": [0, 0] if state == "completed" else [137, 1],
            "causes": [key] if key else [],
            "struck": {key: now} if key else {},
            "resumed_step": resumed,
            "reached_step": until,
            "damaged": 0,
            "disk_errors": 0,
        }
        facts |= {"detect_s": DETECT_S} if key else {}
        facts |= (
            {"restart_s": RESTART_S, "restore_s": RESTORE_S, "replay_s": replay_s} if number else {}
        )
        attempts.append(facts)
        now += DETECT_S
        reached = max(reached, until)
        resumed = until // EVERY * EVERY if strategy else 0
    wall_s = now - (BEGAN_S + 100 * seed)
    final = hashlib.sha256(f"{seed}{' other' if wrong else ''}".encode()).hexdigest()
    written: dict[str, Any] = {
        CONFIG: config,
        ENVIRONMENT: MACHINE,
        SUPERVISOR: {
            "state": "completed" if ends else "failed",
            "restarts": len(strikes),
            "wall_s": wall_s,
            "hangs": 0,
            "attempts": attempts,
        },
        AUDIT: {"key": key_of(config, MACHINE), "gates": {}},
    }
    for name, document in written.items():
        write(folder, name, document)
    if ends:
        (folder / FINAL).write_text(f"{final}\n")
    for rank in range(WORLD):
        write_lines(folder, f"rank_{rank}.jsonl", logs[rank])
        write_lines(folder, f"worker_{rank}.jsonl", events[rank])
    if strategy:
        write_lines(folder, CHECKPOINTS, checkpoints)
    return wall_s


def checkpoint_row(
    attempt: int, step: int, strategy: str, stall_s: float, now: float
) -> dict[str, Any]:
    blocking = strategy == "blocking"
    return {
        "attempt": attempt,
        "time": now,
        "step": step,
        "snapshot_s": 0.02,
        "foreground_s": stall_s - 0.02 if blocking else 0.0,
        "background_s": 0.0 if blocking else 0.35,
        "enqueue_s": 0.0,
        "backpressure_s": 0.0,
        "stall_s": stall_s,
        "bytes": 100_000,
        "retries": 0,
        "error": "",
    }


def stall_row(attempt: int, step: int, strategy: str, stall_s: float, now: float) -> dict[str, Any]:
    """That training has waited for a checkpoint: a line of ``worker_0.jsonl``."""
    write_s = stall_s - 0.02 if strategy == "blocking" else 0.0
    parts = {"seconds": stall_s, "snapshot_s": 0.02, "write_s": write_s}
    return {
        "event": "stalled",
        "time": now,
        "attempt": attempt,
        "rank": 0,
        "step": step,
        "in_step": False,
        **parts,
    }
