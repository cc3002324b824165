"""Attempts as they follow from a job's events and its ranks' own records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deepvm.jobs.history.history import EventRow
from deepvm.lab.launchers.deepvm_run import JobRecord
from deepvm.lab.records import SUPERVISOR
from deepvm.lab.running.launcher import write_supervisor


class Job:
    """A job of two ranks, of which tests say what has happened."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder, list[EventRow]()

    def event(self, at_s: float, kind: str, generation: int, **facts: Any) -> None:
        self.events.append(EventRow(at_s, kind, "running", {"generation": generation, **facts}))

    def trains(
        self, generation: int, at_s: float, first: int, last: int, machines: tuple[str, ...]
    ) -> None:
        """A generation restores a step, and does others, ten a second."""
        self.event(at_s, "started", generation)
        for rank, machine in enumerate(machines):
            about = {"attempt": generation - 1, "rank": rank}
            with (self.folder / f"worker_{rank}.jsonl").open("a") as file:
                for row in (
                    {"event": "placed", "time": at_s, "machine": machine},
                    {"event": "joined", "time": at_s + 0.5},
                    {"event": "restored", "time": at_s + 1.0, "step": first, "seconds": 0.25},
                ):
                    file.write(json.dumps({**row, **about}) + "\n")
            with (self.folder / f"rank_{rank}.jsonl").open("a") as file:
                for step in range(first, last):
                    at = at_s + 1.0 + (step - first + 1) / 10
                    file.write(json.dumps({"global_step": step, "time": at, **about}) + "\n")

    def attempts(
        self, struck: dict[str, tuple[float, int]], *, done: bool = True
    ) -> list[dict[str, Any]]:
        config = {"world": 2, "steps": 100}
        attempts = JobRecord(self.folder, config, self.events, struck, done).attempts()
        write_supervisor(self.folder, "completed" if done else "failed", 99.0, attempts)
        self.document = json.loads((self.folder / SUPERVISOR).read_bytes())
        found: list[dict[str, Any]] = self.document["attempts"]
        return found


def test_a_loss(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.trains(1, 0.0, 0, 50, ("m1", "m2"))
    job.event(2.0, "safe", 1, version=40, reason="periodic", lasts=True)
    job.event(6.25, "machine", 1, id="m1", state="ended")
    job.trains(2, 9.0, 40, 100, ("m2", "m3"))
    job.event(17.0, "ended", 2, code=0)
    first, second = job.attempts({"loss-50-0": (6.0, 0)})
    assert (first["state"], first["causes"], first["reached_step"]) == ("failed", ["loss-50-0"], 50)
    assert first["safe"] == [[40, "periodic", True]] and first["detect_s"] == 0.25
    assert (second["state"], second["resumed_step"], second["machines"]) == (
        "completed",
        40,
        ["m2", "m3"],
    )
    assert (second["restart_s"], second["restore_s"]) == (3.5, 0.25)
    assert abs(second["replay_s"] - 1.0) < 1e-6  # ten steps
    assert (
        (self := job.document)["restarts"] == 1
        and self["state"] == "completed"
        and self["wall_s"] == 99.0
    )


def test_a_notice_and_a_newcomer(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.trains(1, 0.0, 0, 50, ("m1", "m2"))
    job.event(6.5, "noticed", 1, id="m1")
    job.trains(2, 7.0, 50, 70, ("m2",))
    job.trains(3, 12.0, 70, 100, ("m2", "m3"))
    states = [(a["state"], a["world"], a["until"]) for a in job.attempts({"notice-50-0": (6.0, 0)})]
    assert states == [("preempted", 2, 50), ("completed", 1, 70), ("completed", 2, 100)]
    assert job.document["restarts"] == 1


def test_steps_that_a_newcomer_costs_are_a_failure_that_nobody_planned(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.trains(1, 0.0, 0, 50, ("m1",))
    job.trains(2, 7.0, 40, 100, ("m1", "m2"))
    first, _ = job.attempts({})
    assert (first["state"], first["causes"]) == ("failed", [])


def test_a_generation_that_never_trains_belongs_to_the_recovery_before(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.trains(1, 0.0, 0, 50, ("m1", "m2"))
    job.event(6.5, "machine", 1, id="m1", state="ended")
    job.event(8.0, "state", 2)
    job.trains(3, 9.0, 40, 100, ("m3", "m4"))
    found = job.attempts({"loss-50-0": (6.0, 0)})
    assert [a["state"] for a in found] == ["failed", "superseded", "completed"]
    assert found[1]["causes"] == ["loss-50-0"] and found[0]["detect_s"] == 0.5
    assert not {"detect_s", "restart_s", "restore_s", "replay_s"} & set(found[1])
    assert found[2]["restart_s"] == 9.75 - found[0]["detected"]


def test_a_generation_is_back_when_all_of_its_ranks_are(tmp_path: Path) -> None:
    """One rank of the second has restored when the other is lost."""
    job = Job(tmp_path)
    job.trains(1, 0.0, 0, 50, ("m1", "m2"))
    job.event(6.5, "machine", 1, id="m1", state="ended")
    job.trains(2, 7.0, 40, 40, ("m3", "m2"))
    log = tmp_path / "worker_0.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text(
        "".join(
            json.dumps(row) + "\n"
            for row in rows
            if (row["event"], row["attempt"]) != ("restored", 1)
        )
    )
    job.event(8.5, "machine", 2, id="m3", state="ended")
    job.trains(3, 9.0, 40, 100, ("m4", "m2"))
    first, second, third = job.attempts({"loss-50-0": (6.0, 0)})
    assert "restart_s" not in second and second["detected"] == 8.5
    assert third["restart_s"] == 9.75 - first["detected"]


def test_a_hang(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.trains(1, 0.0, 0, 50, ("m1", "m2"))
    with (tmp_path / "worker_0.jsonl").open("a") as file:
        file.write(
            json.dumps(
                {"event": "strike", "key": "hang-51-0", "time": 6.1, "attempt": 0, "rank": 0}
            )
            + "\n"
        )
    job.event(21.0, "hung", 2)  # it has formed the next one
    job.trains(2, 22.0, 40, 100, ("m1", "m2"))
    first, _ = job.attempts({})
    assert (first["state"], first["causes"]) == ("hung", ["hang-51-0"])
    assert abs(first["detect_s"] - 14.9) < 1e-6 and job.document["hangs"] == 1


def test_trainers_that_fail_at_once_are_no_planned_end(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.event(0.0, "started", 1)
    job.event(1.0, "ended", 1, code=1, lines=[])
    job.trains(2, 2.0, 0, 100, ("m1", "m2"))
    first, _ = job.attempts({})
    assert (first["state"], first["causes"]) == ("failed", [])


def test_a_job_that_fails(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.trains(1, 0.0, 0, 50, ("m1", "m2"))
    job.event(6.0, "ended", 1, code=1, lines=["boom"])
    (only,) = job.attempts({}, done=False)
    assert (only["state"], only["exits"], only["last_lines"]) == ("failed", [1], ["boom"])
    assert job.document["state"] == "failed" and job.document["restarts"] == 0
