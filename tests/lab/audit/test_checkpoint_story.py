"""Damaged checkpoints: who must notice them, and from which one an attempt goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.lab.made_runs import change_document, change_lines, strike
from support.lab.record_changes import checkpoints, goes_on, judge, struck

from deepvm.lab.audit.checkpoint_story import possibly_saved
from deepvm.lab.audit.gates import GATES
from deepvm.lab.records import Records


def broke(folder: Path, fault: str, *found: int, strategy: str = "blocking") -> dict[str, str]:
    """The first failure damages the checkpoint of step 10; ``found``: the damaged ones that later
    attempts find.
    """
    struck(folder, fault, broken=["step-000000010"], exits=[-9, -9])
    change_document(folder, "config.json", lambda d: d.update(strategy=strategy))
    for number, damaged in enumerate(found, 1):
        change_document(
            folder,
            "supervisor.json",
            lambda d, n=number, v=damaged: d["attempts"][n].update(damaged=v),
        )  # type: ignore[misc]
    return judge(folder)


def test_damage_is_found_by_the_next_attempt_and_nowhere_else(runs: Path) -> None:
    assert broke(runs / "run", "torn", 1) == {}
    assert (
        "attempt 1 found 99 damaged checkpoints, and only 1 had been"
        in broke(runs / "run", "torn", 99)["stories"]
    )
    assert (
        "attempt 2 found a damaged checkpoint, and nothing"
        in broke(runs / "run", "torn", 1, 1)["stories"]
    )
    found = broke(runs / "run", "torn", 0, 0)
    assert found == {"stories": "attempt 1 did not notice the damage of torn-12-0"}


@pytest.mark.parametrize(
    ("fault", "strategy", "first", "right"),
    [
        ("kill", "blocking", 5, False),
        ("torn", "blocking", 5, True),
        ("torn", "blocking", 0, False),
        ("torn", "torch-save", 0, True),
    ],
)
def test_an_attempt_goes_on_from_the_newest_checkpoint_that_is_whole(
    runs: Path, fault: str, strategy: str, first: int, right: bool
) -> None:
    """Of steps 5 and 10, the second may be damaged; torch-save has only that one."""
    folder = runs / "run"
    broken = ["step-000000010"] if fault == "torn" else []
    struck(folder, fault, broken=broken, exits=[-9, -9])
    change_document(folder, "config.json", lambda d: d.update(strategy=strategy))
    goes_on(1, first)(folder)
    change_document(
        folder, "supervisor.json", lambda d: d["attempts"][1].update(damaged=len(broken))
    )
    said = (
        f"attempt 1 continued from step {first}, though there was a checkpoint of"
        f" {5 if broken else 10}"
    )
    assert judge(folder) == ({} if right else {"stories": said})


def test_damage_that_no_strike_did_is_no_excuse(runs: Path) -> None:
    facts = {"broken": ["step-000000010"]}
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(facts))
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][1].update(damaged=1))
    assert "attempt 1 found a damaged checkpoint, and nothing had" in judge(runs / "run")["stories"]


def test_damage_is_found_until_there_is_a_newer_checkpoint(runs: Path) -> None:
    change_lines(
        runs / "run",
        "checkpoint_rank0.jsonl",
        lambda rows: [one for one in rows if one["attempt"] != 1],
    )
    assert broke(runs / "run", "flip", 1, 1) == {}


@pytest.mark.parametrize(
    ("fault", "strategy", "silent"),
    [
        ("flip", "torch-save", True),
        ("torn", "torch-save", False),
        ("flip", "dcp", True),
        ("torn", "dcp-async", False),
        ("torn", "deepvm-tcp", True),
        ("flip", "deepvm", False),
    ],
)
def test_what_has_no_checksum_need_not_notice_a_bit(
    runs: Path, fault: str, strategy: str, silent: bool
) -> None:
    assert (broke(runs / "run", fault, 0, strategy=strategy) == {}) is silent


def test_damage_of_a_checkpoint_that_was_not_whole_need_not_be_noticed(runs: Path) -> None:
    folder = runs / "run"
    change_lines(
        folder,
        "checkpoint_rank0.jsonl",
        lambda rows: [r for r in rows if (r["attempt"], r["step"]) != (0, 10)],
    )
    assert broke(folder, "torn", 0) == {}


def test_what_damaged_nothing_proves_nothing(runs: Path) -> None:
    struck(runs / "run", "torn", broken=[], exits=[-9, -9])
    assert judge(runs / "run") == {"failures": "torn-12-0 damaged no file: it proves nothing"}


def test_what_may_be_saved_is_behind_the_last_record(runs: Path) -> None:
    about = Records.read(runs / "run").checkpoints[0]

    def possible(*recorded: int, reached: int = 19, **changes: object) -> set[int]:
        checkpoints(lambda _: [{**about, "attempt": 0, "step": step} for step in recorded])(
            runs / "run"
        )
        run = Records.read(runs / "run")
        return possibly_saved(
            run, {**run.supervisor["attempts"][0], "reached_step": reached, **changes}
        )

    assert (
        possible(5, 10) == {15}
        and possible(5, 10, reached=20) == {15, 20}
        and possible(15) == set()
    )
    # Two in flight, and the one that is due
    assert possible() == {5, 10, 15} and possible(reached=40) == {30, 35, 40}
    assert possible(5, state="completed") == set()
    # Writes several at a time
    change_document(runs / "run", "config.json", lambda d: d.update(strategy="deepvm"))
    assert possible(5, 15) == {10} and possible(10, 15, reached=20) == {5, 20}


@pytest.mark.parametrize(("at", "excused"), [(1e9, True), (1.0, False)])
def test_a_node_that_is_lost_may_take_checkpoints_along(
    runs: Path, at: float, excused: bool
) -> None:
    """They may have been nowhere but in its memory, if they were saved before."""
    folder = runs / "run"
    change_document(
        folder, "config.json", lambda d: d["strikes"].append(strike("node", 11, ends=False))
    )
    change_document(
        folder, "supervisor.json", lambda d: d["attempts"][0]["struck"].update({"node-11-0": at})
    )
    goes_on(1, 5)(folder)
    found = next(GATES["stories"](Records.read(folder)), "")
    assert ("though there was a checkpoint of 10" in found) is not excused, found
