"""What proves that a failure was real, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.lab.made_runs import (
    change_document,
    change_lines,
    make_calm,
    make_run,
    strike,
    write_lines,
)
from support.lab.record_changes import all_rows, events_of, judge, note_the_end, struck

from deepvm.lab.audit.gates import GATES
from deepvm.lab.records import Records


def test_a_failure_proves_something_only_in_training(tmp_path: Path) -> None:
    make_calm(tmp_path / "calm")
    folder = make_run(tmp_path / "run", failures=(6,))
    change_lines(
        folder,
        "rank_0.jsonl",
        lambda rows: [one for one in rows if one["attempt"] > 0 or one["global_step"] > 4],
    )
    change_lines(folder, "rank_0.jsonl", lambda rows: [one for one in rows if one["attempt"] > 0])
    change_lines(folder, "rank_1.jsonl", lambda rows: [one for one in rows if one["attempt"] > 0])
    found = judge(folder)
    assert "struck before training had started" in found["failures"]


def test_what_had_to_end_and_did_not_proves_nothing(runs: Path) -> None:
    change_document(
        runs / "run",
        "supervisor.json",
        lambda d: d["attempts"][-1]["struck"].update({"exit-18-0": 1.0}),
    )
    change_document(runs / "run", "config.json", lambda d: d["strikes"].append(strike("exit", 18)))
    assert "exit-18-0 did not end its attempt" in judge(runs / "run")["failures"]


@pytest.mark.parametrize(
    ("launcher", "exits", "killed"),
    [
        ("forkserver", [-9, 1], True),
        ("forkserver", [137, 1], True),
        ("forkserver", [None, None], True),
        ("forkserver", [1, 137], False),
        ("forkserver", [1, 1], False),
        ("forkserver", [0, 0], False),
        ("torchrun", [1, 1], True),
        ("torchrun", [0, 0], False),
    ],
)
def test_a_kill_kills_the_rank_that_it_hits(
    runs: Path, launcher: str, exits: list[int | None], killed: bool
) -> None:
    struck(runs / "run", "kill", launcher=launcher, exits=exits)
    found = judge(runs / "run")
    assert (
        found == {}
        if killed
        else "kill-12-0 has not ended rank 0: they exited with" in found["failures"]
    )


@pytest.mark.parametrize("launcher", ["forkserver", "torchrun"])
@pytest.mark.parametrize("word", ["raised", "ended"])
def test_a_rank_that_has_noted_its_end_was_not_killed(runs: Path, launcher: str, word: str) -> None:
    struck(runs / "run", "kill", launcher=launcher, exits=[-9, 1])
    note_the_end(runs / "run", 0, word)
    assert (
        f"kill-12-0 has not ended rank 0: the last that it noted is {word}"
        in judge(runs / "run")["failures"]
    )


def test_of_a_machine_that_is_killed_some_ranks_may_raise_before(runs: Path) -> None:
    struck(runs / "run", "kill", target="machine", exits=[1, -9])
    note_the_end(runs / "run", 0, "raised")
    note_the_end(runs / "run", 1, "strike")
    assert judge(runs / "run") == {}
    note_the_end(runs / "run", 1, "raised")
    assert (
        "kill-12-0 has not ended any rank: the last that it noted is raised, raised"
        in judge(runs / "run")["failures"]
    )


@pytest.mark.parametrize(
    ("fault", "code", "word", "done"),
    [("segfault", -11, "strike", 11), ("loader", 1, "raised", 11)],
)
def test_each_failure_ends_a_rank_in_its_own_way(
    runs: Path, fault: str, code: int, word: str, done: int
) -> None:
    """Both meet a rank within step 12, whose line is never written."""
    folder = runs / "run"
    struck(folder, fault, exits=[code, 1], reached_step=done)
    all_rows(lambda rows: [x for x in rows if x["attempt"] or x["global_step"] < done])(folder)
    note_the_end(folder, 0, word)
    assert judge(folder) == {}
    change_document(folder, "supervisor.json", lambda d: d["attempts"][0].update(exits=[137, 1]))
    assert f"{fault}-12-0 has not ended rank 0: they exited" in judge(folder)["failures"]


def test_a_rank_that_hangs_is_seen_to_hang(runs: Path) -> None:
    folder = runs / "run"
    struck(folder, "hang", state="hung", exits=[-9, -9], reached_step=11)
    all_rows(lambda rows: [x for x in rows if x["attempt"] or x["global_step"] < 11])(folder)
    assert judge(folder) == {}
    change_document(folder, "supervisor.json", lambda d: d["attempts"][0].update(state="failed"))
    assert (
        "hang-12-0 did not hang its attempt, which is recorded as failed"
        in judge(folder)["failures"]
    )


def test_of_two_failures_at_one_step_the_first_ends_the_attempt(runs: Path) -> None:
    change_document(
        runs / "run", "config.json", lambda d: d["strikes"].append(strike("exit", 12, 1))
    )
    key = {"exit-12-1": 1049.9}
    change_document(
        runs / "run", "supervisor.json", lambda d: d["attempts"][0]["struck"].update(key)
    )
    change_document(
        runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(exits=[137, -9])
    )
    assert judge(runs / "run") == {}


def passing(folder: Path, fault: str, **more: object) -> None:
    """A failure that ends nothing strikes in the last attempt."""
    planned = strike(fault, 17, ends=False, **more)
    change_document(folder, "config.json", lambda d: d["strikes"].append(planned))
    key = {planned["key"]: 1217.5}
    change_document(folder, "supervisor.json", lambda d: d["attempts"][2]["struck"].update(key))


@pytest.mark.parametrize(("seconds", "stood"), [(1.0, True), (1.2, False), (60.0, True)])
def test_a_rank_that_is_stopped_stands_still(runs: Path, seconds: float, stood: bool) -> None:
    """Steps are a second apart; behind the end of its attempt nobody can see it."""
    passing(runs / "run", "stop", seconds=seconds)
    said = "stop-17-0 did not stop rank 0: it never stood still for 1.2 s"
    change_document(
        runs / "run", "supervisor.json", lambda d: d["attempts"][2].update(detected=1219.5)
    )
    assert judge(runs / "run") == ({} if stood else {"failures": said})


@pytest.mark.parametrize(
    ("seconds", "starts", "right"), [(0.5, 1, False), (0.5, 2, True), (99.0, 1, True)]
)
def test_a_memory_node_is_started_again(
    runs: Path, seconds: float, starts: int, right: bool
) -> None:
    passing(runs / "run", "node", seconds=seconds)
    (runs / "run" / "memory-node.log").write_text("a warning\nlistening on 127.0.0.1:1\n" * starts)
    said = "node-17-0 has ended no memory node: one was started 1 times"
    assert judge(runs / "run") == ({} if right else {"failures": said})


@pytest.mark.parametrize(
    ("machine", "why", "at", "lost"),
    [
        ("m9", "lost", 1218.0, True),
        ("m1", "lost", 1218.0, False),
        ("m9", "released", 1218.0, False),
        ("m9", "lost", 1200.0, False),
    ],
)
def test_a_job_loses_the_machine_that_keeps_versions(
    runs: Path, machine: str, why: str, at: float, lost: bool
) -> None:
    folder = runs / "run"
    passing(folder, "node", seconds=0.5)
    change_document(folder, "config.json", lambda d: d.update(launcher="deepvm-run"))
    change_document(
        folder,
        "supervisor.json",
        lambda d: [one.update(machines=["m1", "m2"]) for one in d["attempts"]],
    )
    write_lines(
        folder, "orchestrator.jsonl", [{"event": "machine", "time": at, "id": machine, "why": why}]
    )
    found = next(GATES["failures"](Records.read(folder)), "")
    assert found == ("" if lost else "node-17-0 has ended no machine that keeps checkpoints")


def test_a_failure_that_ends_nothing_strikes_in_the_run(runs: Path) -> None:
    passing(runs / "run", "rebalance")
    assert judge(runs / "run") == {}
    change_document(
        runs / "run",
        "supervisor.json",
        lambda d: d["attempts"][2]["struck"].update({"rebalance-17-0": 9e9}),
    )
    assert "rebalance-17-0 struck" in judge(runs / "run")["failures"]


def test_a_disk_that_never_failed_proves_nothing(runs: Path) -> None:
    change_document(runs / "run", "config.json", lambda d: d.update(disk={"eio": {"share": 0.2}}))
    assert "the disk has never failed" in judge(runs / "run")["failures"]
    change_document(
        runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(disk_errors=1)
    )
    assert judge(runs / "run") == {}
    change_document(
        runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(disk_errors=0)
    )
    change_document(runs / "run", "config.json", lambda d: d.update(disk={"slow": {"mbps": 1.0}}))
    assert judge(runs / "run") == {"failures": "the disk was never slow"}
    slowed = {"event": "slowed", "attempt": 0, "rank": 0, "time": 1000.0, "seconds": 0.25}
    events_of(0, lambda rows: [*rows, slowed])(runs / "run")
    assert judge(runs / "run") == {}
