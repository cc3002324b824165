"""What is asked of a job's records: each promise, kept and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.lab.made_runs import CONFIG, checkpoint, row, strike

from deepvm.errors import DataError
from deepvm.lab.audit.gates import GATES
from deepvm.lab.records import Records

STEPS, EVERY = 60, 20


def attempt(number: int, state: str, resumed: int, reached: int, **more: Any) -> dict[str, Any]:
    found = {
        "attempt": number,
        "state": state,
        "resumed_step": resumed,
        "reached_step": reached,
        "until": reached,
    }
    found |= {"causes": [], "struck": {}, "damaged": 0, "disk_errors": 0, "safe": []}
    found |= {"world": 1, "began": 0.0, "detected": 0.0, "exits": []}
    return found | more


class Job:
    """The records of a job of one rank that was taken back after a notice, and lost its machine
    later.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.strategy, self.strikes = "deepvm", [("notice", 25), ("loss", 45)]
        self.attempts = [
            attempt(0, "preempted", 0, 30, causes=["notice-25-0"], struck={"notice-25-0": 1.0}),
            attempt(1, "failed", 30, 50, causes=["loss-45-0"], struck={"loss-45-0": 40.0}),
            attempt(2, "completed", 40, 60),
        ]
        self.attempts[0]["safe"] = [[20, "periodic", True], [30, "emergency", True]]
        self.attempts[1]["safe"] = [[40, "periodic", True]]
        self.times = [0.0, 30.0, 60.0]
        self.generations, self.left = 3, list[int]()
        self.told: list[dict[str, Any]] = []
        """Events of the job besides those by which generations are formed."""

    def failed(self) -> dict[str, str]:
        """The reasons of the gates of stories and leftovers, of those that are not passed."""
        config = {**CONFIG, "steps": STEPS, "checkpoint_every": EVERY, "strategy": self.strategy}
        config |= {"world": 1, "worlds": [[0, 1]]}
        strikes = [strike(fault, step) for fault, step in self.strikes]
        config |= {"strikes": strikes, "launcher": "deepvm-run"}
        supervisor = {
            "state": "completed",
            "restarts": 2,
            "wall_s": 90.0,
            "hangs": 0,
            "attempts": self.attempts,
            "left": self.left,
        }
        self._write("config.json", config)
        self._write("supervisor.json", supervisor)
        rows, events = [], []
        for one in self.attempts:
            number = one["attempt"]
            since = {"time": self.times[number], "attempt": number}
            events.append({"event": "joined", **since})
            events.append(
                {"event": "restored", **since, "step": one["resumed_step"], "seconds": 0.5}
            )
            for place, step in enumerate(range(one["resumed_step"], one["reached_step"])):
                at = self.times[number] + place / 10
                rows.append({**row(config, step, 0, 1, number), "time": at})
        self._lines("rank_0.jsonl", rows)
        self._lines("worker_0.jsonl", events)
        self._lines("checkpoint_rank0.jsonl", [checkpoint(0, 20), *self._last()])
        job = [
            {"event": "state", "time": float(n), "generation": n}
            for n in range(1, self.generations + 1)
        ]
        self._lines("orchestrator.jsonl", [*job, *self.told])
        run = Records.read(self.folder)
        return {
            name: why for name in ("stories", "leftovers") if (why := next(GATES[name](run), ""))
        }

    def _last(self) -> list[dict[str, Any]]:
        """The checkpoints of the generation that came to its end, which has recorded all."""
        number, first = len(self.attempts) - 1, self.attempts[-1]["resumed_step"]
        return [
            checkpoint(number, step)
            for step in range((first // EVERY + 1) * EVERY, STEPS + 1, EVERY)
        ]

    def _write(self, name: str, document: Any) -> None:
        (self.folder / name).write_text(json.dumps(document))

    def _lines(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_job_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    assert Job(tmp_path).failed() == {}


def older_version(job: Job) -> None:
    job.attempts[2]["resumed_step"] = 30


def older_checkpoint(job: Job) -> None:
    job.attempts[2]["resumed_step"] = 20


def lost_behind_a_notice(job: Job) -> None:
    job.attempts[0]["safe"].pop()
    job.attempts[1]["resumed_step"] = 20


def two_at_once(job: Job) -> None:
    job.times[1] = 2.0


def a_generation_that_is_not_recorded(job: Job) -> None:
    job.generations = 4


def an_unplanned_end(job: Job) -> None:
    job.attempts[1]["causes"] = []


def a_version_from_nowhere(job: Job) -> None:
    job.attempts[0] |= {"safe": [[20, "periodic", True]]}


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (older_version, "continued from step 30, though version 40 was safe"),
        (older_checkpoint, "continued from step 20, though there was a checkpoint of 30"),
        (lost_behind_a_notice, "notice-25-0 was announced in time, and 10 steps were lost"),
        (a_generation_that_is_not_recorded, "3 attempts are recorded of 4 generations"),
        (an_unplanned_end, "attempt 1 failed, and nothing had been planned"),
        (a_version_from_nowhere, "continued from step 30, but no such checkpoint is recorded"),
    ],
)
def test_a_promise_that_is_broken_is_told(
    tmp_path: Path, breaks: Callable[[Job], None], why: str
) -> None:
    job = Job(tmp_path)
    breaks(job)
    assert why in job.failed()["stories"]


def test_two_generations_at_once_are_told(tmp_path: Path) -> None:
    """A generation is formed while the older one trains.

    Once its ranks have met, that must be gone.
    """
    job = Job(tmp_path)
    two_at_once(job)
    assert job.failed() == {"leftovers": "attempt 0 of rank 0 did step 21 alongside attempt 1"}


def test_strategies_that_cannot_be_asked_may_lose_steps(tmp_path: Path) -> None:
    job = Job(tmp_path)
    lost_behind_a_notice(job)
    job.strategy = "blocking"
    assert job.failed() == {}


def test_what_was_damaged_on_purpose_need_not_be_restored(tmp_path: Path) -> None:
    job = Job(tmp_path)
    older_checkpoint(job)
    job.strikes[1] = ("flip", 45)
    struck = {
        "causes": ["flip-45-0"],
        "struck": {"flip-45-0": 40.0},
        "broken": ["checkpoints/lab-000000000030.pt"],
    }
    job.attempts[1] |= struck
    assert job.failed() == {}


def test_a_rebalance_is_an_insurance(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.attempts[2]["struck"] = {"rebalance-50-0": 61.0}
    job.told.append(
        {"event": "safe", "time": 60.5, "generation": 3, "reason": "insurance", "version": 3}
    )
    assert (
        "rebalance-50-0 was announced, and no checkpoint was asked for" in job.failed()["stories"]
    )
    job.told[0]["time"] = 61.5
    assert job.failed() == {}


def test_what_a_job_leaves_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.left = [4711]
    assert "4711" in job.failed()["leftovers"]
    job.left = []
    (tmp_path / "job-state").mkdir()
    assert "job-state is left" in job.failed()["leftovers"]


def test_a_damaged_record_is_said_to_be_damaged(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.attempts[0]["safe"] = [[]]
    with pytest.raises(DataError, match=r"json: damaged: attempts\[0\].safe\[0\] is"):
        job.failed()
