"""Folders of runs as the lab leaves them, written by hand: no code of the lab takes part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
FINAL = hashlib.sha256(b"final parameters").hexdigest()
ENVIRONMENT = {"OS": "by hand"}
CONFIG: Row = {
    "schema_version": "deepvm.lab-run/1",
    "matrix": "made",
    "dataset": {"name": "tokens", "path": None},
    "dataset_size": 50,
    "model": {"name": "gpt-tiny", "width": 16, "norm": "batch", "dropout": 0.0},
    "failure": "base",
    "variant": "blk",
    "strategy": "blocking",
    "seed": 3,
    "world": 2,
    "worlds": [[0, 2]],
    "min_world": None,
    "virtual_shards": 0,
    "global_batch": 8,
    "accumulate": 1,
    "steps": 20,
    "checkpoint_every": 5,
    "max_inflight": 2,
    "keep": 3,
    "launcher": "forkserver",
    "strikes": [],
    "disk": {},
    "controls": [],
}


def window(config: Row, step: int, rank: int, world: int) -> list[int]:
    """The samples of a rank at a step, from the pinned rule alone."""
    size, batch = config["dataset_size"], config["global_batch"]
    per_epoch = size // batch
    epoch, cursor = divmod(step, per_epoch)
    order = np.random.default_rng([config["seed"], epoch]).permutation(size)[: per_epoch * batch]
    mine = order[cursor * batch : (cursor + 1) * batch].reshape(world, batch // world)[rank]
    return [int(one) for one in mine]


def row(config: Row, step: int, rank: int, world: int, attempt: int) -> Row:
    """A line of a rank's log."""
    ids = window(config, step, rank, world)
    epoch, cursor = divmod(step, config["dataset_size"] // config["global_batch"])
    loss = 1 / (step + 1) + rank / 64
    return {
        "attempt": attempt,
        "global_step": step,
        "epoch": epoch,
        "cursor_step": cursor,
        "sample_ids_hash": hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest(),
        "sample_ids_count": len(ids),
        "world_size": world,
        "rank": rank,
        "loss": loss,
        "loss_hex": loss.hex(),
        "seconds": 0.01,
        "time": 1000.0 + step + 100 * attempt,
    }


def attempt(
    number: int, first: int, reached: int, struck: Sequence[str] = (), *, world: int, steps: int
) -> Row:
    """An attempt of ``supervisor.json``."""
    done = reached == steps and not struck
    return {
        "attempt": number,
        "world": world,
        "state": "completed" if done else "failed",
        "until": steps,
        "began": 1000.0 + 100 * number,
        "detected": 1050.0 + 100 * number,
        "exits": [0 if done else 137] * world,
        "causes": list(struck),
        "struck": {key: 1049.9 + 100 * number for key in struck},
        "resumed_step": first,
        "reached_step": reached,
        "damaged": 0,
        "disk_errors": 0,
        "detect_s": 0.1 if struck else None,
        "restart_s": 0.2,
        "restore_s": 0.05,
        "replay_s": 0.3,
    }


def strike(
    fault: str, step: int, rank: int = 0, *, target: str = "worker", ends: bool = True, **more: Any
) -> Row:
    """A planned failure."""
    facts = {
        "target": target,
        "seconds": 0.0,
        "delay_s": 0.0,
        "key": f"{fault}-{step}-{rank}",
        "ends": ends,
    }
    return {"fault": fault, "step": step, "rank": rank, **facts, **more}


def make_run(
    folder: Path, *, failures: Sequence[int] = (12, 16), final: str = FINAL, **changes: Any
) -> Path:
    """A run that passes all gates: it failed when so many steps were done, and went on from its
    newest checkpoint.
    """
    config = {**CONFIG, **changes}
    world, steps, every = config["world"], config["steps"], config["checkpoint_every"]
    folder.mkdir(parents=True)
    keys = [f"exit-{step}-0" for step in failures]
    config["strikes"] = [strike("exit", step) for step in failures]
    ends = [*failures, steps]
    firsts = [0, *(step // every * every for step in failures)]
    attempts, checkpoints = [], []
    logs: list[list[Row]] = [[] for _ in range(world)]
    events: list[list[Row]] = [[] for _ in range(world)]
    for number, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        struck = [keys[number]] if number < len(keys) else []
        attempts.append(attempt(number, first, end, struck, world=world, steps=steps))
        for rank in range(world):
            logs[rank] += [row(config, step, rank, world, number) for step in range(first, end)]
            # Who is hit says no more
            last = "ended" if not struck else "raised" if rank else "strike"
            for name in ("started", "joined", "restored", last):
                facts = (
                    {"pid": 2**22 + number}
                    if name == "started"
                    else {"step": first, "seconds": 0.05}
                )
                at = 1000.0 + 100 * number
                events[rank].append(
                    {"event": name, "time": at, "attempt": number, "rank": rank, **facts}
                )
        checkpoints += [
            checkpoint(number, step) for step in range(first + 1, end + 1) if step % every == 0
        ]
    failed = len(failures)
    supervisor = {
        "state": "completed",
        "restarts": failed,
        "wall_s": 50.0 + 100 * failed,
        "hangs": 0,
        "attempts": attempts,
    }
    write(folder, "config.json", config)
    write(folder, "supervisor.json", supervisor)
    write(folder, "environment.json", ENVIRONMENT)
    for rank in range(world):
        write_lines(folder, f"rank_{rank}.jsonl", logs[rank])
        write_lines(folder, f"worker_{rank}.jsonl", events[rank])
    if config["strategy"] is not None:
        write_lines(folder, "checkpoint_rank0.jsonl", checkpoints)
    (folder / "final.sha256").write_text(final + "\n")
    return folder


def checkpoint(number: int, step: int) -> Row:
    """A line of the log of checkpoints."""
    zeros = dict.fromkeys(
        ("snapshot_s", "foreground_s", "background_s", "enqueue_s", "backpressure_s", "stall_s"),
        0.01,
    )
    return {
        "attempt": number,
        "time": 1000.0,
        "step": step,
        **zeros,
        "bytes": 1000,
        "retries": 0,
        "error": "",
    }


def make_calm(folder: Path, **changes: Any) -> Path:
    """An undisturbed run without checkpoints."""
    return make_run(folder, failures=(), failure="calm", variant="none", strategy=None, **changes)


def write(folder: Path, name: str, document: Any) -> None:
    """A JSON document."""
    (folder / name).write_text(json.dumps(document, indent=1))


def write_lines(folder: Path, name: str, rows: Sequence[Row]) -> None:
    """A file of JSON lines."""
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in rows))


def change_document(folder: Path, name: str, change: Callable[[Row], None]) -> None:
    """Change a JSON document in place."""
    document = json.loads((folder / name).read_text())
    change(document)
    write(folder, name, document)


def change_lines(folder: Path, name: str, change: Callable[[list[Row]], list[Row]]) -> None:
    """Change a file of JSON lines."""
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    write_lines(folder, name, change(rows))


def steps(rows: list[Row], step: int) -> Iterator[Row]:
    """The lines of a step."""
    return (one for one in rows if one["global_step"] == step)
