"""Saves of a sharded model that meet a failing disk, on all ranks of a run.

See ``train_sharded.Run.faults``.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepvm.checkpoint.files import shared_file_write
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.errors import CheckpointError
from support.checkpoint.failing_disk import in_place_of
from support.checkpoint.train_sharded import JOB, Run, Training, differences, read

WAIT_S = 3.0
"""How long ranks wait for one that cannot even say that it failed; else a minute."""


@dataclass
class Attempt:
    """What became of version 2, which met a fault.

    Attributes:
        returned: on which ranks the save returned without an error. took_s: at most.
        found: the newest version behind it, -1 for none, and where it differs from the state of
            this step.
        next: the same once version 3 was saved.
    """

    returned: list[bool]
    took_s: float
    found: tuple[int, list[str]]
    next: tuple[int, list[str]]


def attempts(run: Run, rank: int) -> None:
    """Save version 1; 2, which a fault meets on one rank.

    And 3: for each fault, in a folder of its own.
    """
    shared_file_write.put_part.__defaults__ = (WAIT_S,)
    made = [
        attempt(run, rank, f"{run.tiers[0]}/{number}", *fault)
        for number, fault in enumerate(run.faults)
    ]
    if not rank:
        torch.save(made, run.out)


def attempt(
    run: Run, rank: int, url: str, call: str, nth: int, error: int, forever: bool, victim: int
) -> Attempt:
    training = Training(run, [url], keep=0)
    saver, states = training.saver, dict[int, Any]()

    def step() -> None:
        training.step()
        states[saver.version] = training.take()

    step()
    saver.save(block=True)
    step()
    name, bad = in_place_of(call, nth, error, forever)
    good, begin, returned = getattr(os, name), time.monotonic(), True
    if rank == victim:
        setattr(os, name, bad)
    try:
        saver.save(block=True)
    except CheckpointError:
        returned = False
    finally:
        setattr(os, name, good)
    rows: list[Any] = [None] * run.world
    torch.distributed.all_gather_object(rows, (returned, time.monotonic() - begin))
    found = newest(url, states) if not rank else (-1, [])
    torch.distributed.barrier()
    step()
    saver.save(block=True)
    torch.distributed.barrier()
    after = newest(url, states) if not rank else (-1, [])
    saver.close()
    return Attempt([r for r, _ in rows], max(s for _, s in rows), found, after)


def newest(url: str, states: dict[int, Any]) -> tuple[int, list[str]]:
    """What a reader finds: the newest version, and where it differs from the state that the
    training had.
    """
    tier = FileTier.open(url, "reader", 0, 0, "tiers")
    with tempfile.TemporaryDirectory() as folder:
        for record in tier.versions(JOB):
            try:
                found = read(tier.fetch(record, Path(folder)))
            except (CheckpointError, RuntimeError) as error:  # torch finds out about holes, too
                return record.version, [str(error)]
            return record.version, differences(found, states[record.version])
    return -1, []
