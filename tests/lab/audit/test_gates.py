"""Each gate passes what is right, and fails for what it is there for and nothing else.

Runs are written by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.lab.made_runs import (
    CONFIG,
    FINAL,
    Row,
    attempt,
    change_document,
    change_lines,
    make_calm,
    make_run,
    row,
    strike,
    write_lines,
)
from support.lab.record_changes import (
    Change,
    all_lines,
    all_rows,
    checkpoints,
    document,
    events_of,
    goes_on,
    judge,
    last_attempt,
    lines_of,
    updated,
)

from deepvm.errors import DataError
from deepvm.lab.audit.gates import verdicts
from deepvm.lab.records import Records

OTHER = "0" * 64


def test_what_is_right_passes_all_gates(runs: Path) -> None:
    assert judge(runs / "run") == {} and judge(runs / "calm") == {}


def half_written(folder: Path) -> None:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / ".step-000000005.0").touch()


def two_resumptions(folder: Path) -> None:
    """Rank 1 of attempt 1 goes on from step 12, rank 0 from step 10."""
    lines_of(
        1, lambda rows: [one for one in rows if one["attempt"] != 1 or one["global_step"] >= 12]
    )(folder)
    change_lines(
        folder,
        "worker_1.jsonl",
        lambda rows: [
            {**one, "step": 12} if one["event"] == "restored" and one["attempt"] == 1 else one
            for one in rows
        ],
    )


def a_rank_too_many(folder: Path) -> None:
    rows = [{**row(CONFIG, step, 1, 2, 0), "sample_ids_hash": OTHER} for step in range(12)]
    write_lines(folder, "rank_7.jsonl", rows)


def reached(number: int, step: int) -> Change:
    return document("supervisor.json", lambda d: d["attempts"][number].update(reached_step=step))


def struck_at(number: int, at: float) -> Change:
    def change(found: Row) -> None:
        struck = found["attempts"][number]["struck"]
        struck.update(dict.fromkeys(struck, at))

    return document("supervisor.json", change)


def planned_at(step: int) -> Change:
    """The first failure was planned, and is said to have struck, at another step."""

    def change(folder: Path) -> None:
        document("config.json", lambda d: d["strikes"].__setitem__(0, strike("exit", step)))(folder)
        facts = {"struck": {f"exit-{step}-0": 1049.9}, "causes": [f"exit-{step}-0"]}
        document("supervisor.json", lambda d: d["attempts"][0].update(facts))(folder)

    return change


def without_the_last_step(folder: Path) -> None:
    for rank in (0, 1):
        lines_of(rank, lambda rows: [one for one in rows if one["global_step"] < 19])(folder)


WRONG: dict[str, tuple[str, str, Change]] = {
    # what: gate, a part of the reason, change
    "no rank did the last step": (
        "steps stories",
        "step 19 was the last one",
        without_the_last_step,
    ),
    "it gave up": (
        "steps",
        "ended as failed",
        document("supervisor.json", lambda d: d.update(state="failed")),
    ),
    "a step is missing on a rank": (
        "samples",
        "step 7 of rank 1 is missing",
        lines_of(1, lambda rows: [x for x in rows if x["global_step"] != 7]),
    ),
    "other samples": (
        "samples",
        "step 3 of rank 0 had other samples",
        lines_of(
            0,
            lambda rows: updated(
                rows, 3, 0, sample_ids_hash=row(CONFIG, 4, 0, 2, 0)["sample_ids_hash"]
            ),
        ),
    ),
    "fewer samples": (
        "samples",
        "step 3 of rank 0",
        lines_of(0, lambda rows: updated(rows, 3, 0, sample_ids_count=3)),
    ),
    "another place": (
        "samples",
        "step 8 of rank 0 is logged as epoch 1, step 3",
        lines_of(0, lambda rows: updated(rows, 8, 0, cursor_step=3)),
    ),
    "a world of no ranks": (
        "samples stories",
        "step 0 had a world of 0, not 2",
        all_lines(lambda one: {**one, "world_size": 0, "sample_ids_hash": "rubbish", "epoch": 9}),
    ),
    "another world than that of its attempt": (
        "stories",
        "attempt 0 had a world of 2, and rank 1 of 1 did a step",
        lines_of(1, lambda rows: updated(rows, 11, 0, world_size=1)),
    ),
    "ranks that went on from two steps": (
        "samples stories",
        "step 10 of rank 1 is missing in attempt 1",
        two_resumptions,
    ),
    "a rank too many": (
        "samples stories",
        "step 0 was done by rank 7, of a world of 2",
        a_rank_too_many,
    ),
    "an attempt that nobody started": (
        "steps stories",
        "rank 0 did step 19 in attempt 7, which is not recorded",
        all_lines(lambda one: {**one, "attempt": 7} if one["global_step"] == 19 else one),
    ),
    "a step twice in an attempt": (
        "samples",
        "step 11 of rank 1 was done twice in attempt 0",
        lines_of(1, lambda rows: [*rows[:12], rows[11], *rows[12:]]),
    ),
    "another loss at a replay": (
        "replays",
        "step 11 of rank 0: attempt 1 had another loss",
        lines_of(0, lambda rows: updated(rows, 11, 1, loss=0.5, loss_hex=(0.5).hex())),
    ),
    "other parameters": (
        "parameters",
        "other parameters",
        lambda folder: (folder / "final.sha256").write_text(OTHER),
    ),
    "no digest": (
        "parameters",
        "no SHA-256",
        lambda folder: (folder / "final.sha256").write_text(""),
    ),
    "a failure that never struck": (
        "failures",
        "exit-3-0 has never struck",
        document("config.json", lambda d: d["strikes"].append(strike("exit", 3))),
    ),
    "restarts that were not counted": (
        "stories",
        "1 restarts for 2",
        document("supervisor.json", lambda d: d.update(restarts=1)),
    ),
    "attempts that were not counted": (
        "steps stories failures",
        "not counted from 0",
        last_attempt("attempt", 7),
    ),
    "a checkpoint that nobody recorded": ("stories", "continued from step 13", goes_on(2, 13)),
    "a checkpoint that was not restored": (
        "stories",
        "attempt 1 continued from step 5, though there was a checkpoint of 10",
        goes_on(1, 5),
    ),
    "an attempt that began anew": (
        "stories",
        "attempt 2 continued from step 0, though there was a checkpoint of 15",
        goes_on(2, 0),
    ),
    "ranks that tell another story": (
        "samples stories",
        "attempt 2 continued from step 10, and from 15 by its ranks",
        last_attempt("resumed_step", 10),
    ),
    "a rank that has not said from where it continued": (
        "stories",
        "rank 1 did step 10 in attempt 1, and has not noted from where it continued",
        events_of(
            1, lambda rows: [x for x in rows if x["event"] != "restored" or x["attempt"] != 1]
        ),
    ),
    "steps that were lost and count": (
        "samples",
        "step 10 of rank 0 is missing in attempt 1",
        all_rows(lambda rows: [x for x in rows if x["attempt"] != 1 or x["global_step"] >= 12]),
    ),
    "steps in another order": (
        "samples",
        "step 0 of rank 0 is missing in attempt 0",
        all_rows(lambda rows: [rows[1], rows[0], *rows[2:]]),
    ),
    "a step before the one at which an attempt went on": (
        "samples",
        "step 9 of rank 0 was done in attempt 1, which continued from step 10",
        all_rows(
            lambda rows: [
                *rows[:12],
                *({**x, "attempt": 1, "time": 1100.0} for x in rows[9:10]),
                *rows[12:],
            ]
        ),
    ),
    "a reached step that is too high": (
        "stories",
        "attempt 1 reached step 99, and 16 by its ranks",
        reached(1, 99),
    ),
    "a reached step that is too low": (
        "stories",
        "attempt 1 reached step 1, and 16 by its ranks",
        reached(1, 1),
    ),
    "an end that was not planned": (
        "stories",
        "attempt 2 is recorded as completed at step 20, and was to end at 3",
        last_attempt("until", 3),
    ),
    "a run that took less time than its logs": (
        "stories",
        "the run took 62.5 s, and 250.0 s by its logs",
        document("supervisor.json", lambda d: d.update(wall_s=d["wall_s"] / 4)),
    ),
    "recoveries that took longer than the run": (
        "stories",
        "the run took 250.0 s, and its recoveries 501.4 s",
        document("supervisor.json", lambda d: d["attempts"][1].update(replay_s=500.0)),
    ),
    "a checkpoint of a step that was not reached": (
        "stories",
        "attempt 0 recorded a checkpoint of step 15, which it has not reached",
        checkpoints(lambda rows: [*rows, {**rows[0], "step": 15}]),
    ),
    "a checkpoint that was not due": (
        "stories",
        "attempt 0 recorded a checkpoint of step 3, at which none was due",
        checkpoints(lambda rows: [*rows, {**rows[0], "step": 3}]),
    ),
    "a checkpoint of no attempt": (
        "stories",
        "a checkpoint of step 20 is recorded by attempt 9, which is not",
        checkpoints(lambda rows: [*rows, {**rows[-1], "attempt": 9}]),
    ),
    "checkpoints that were all skipped": (
        "stories",
        "attempt 1 continued from step 10, but no such checkpoint is recorded",
        checkpoints(lambda rows: [{**one, "error": "skipped"} for one in rows]),
    ),
    "a checkpoint that failed by itself": (
        "stories",
        "the checkpoint of step 5 failed, and no fault was planned: no space",
        checkpoints(lambda rows: [{**rows[0], "error": "no space"}, *rows[1:]]),
    ),
    "no checkpoint at all": (
        "stories",
        "attempt 2 recorded no checkpoint of step 20",
        checkpoints(lambda rows: []),
    ),
    "damage that nobody did": ("stories", "found a damaged checkpoint", last_attempt("damaged", 1)),
    "a failure without a cause": (
        "stories",
        "attempt 0 failed, and nothing had been planned",
        document("supervisor.json", lambda d: d["attempts"][0].update(causes=[])),
    ),
    "an orphan that continued writing": (
        "leftovers",
        "attempt 0 of rank 1 continued writing",
        lines_of(1, lambda rows: [*rows, {**row(CONFIG, 12, 1, 2, 0), "time": 1101.0}]),
    ),
    "an attempt that was there when the next one began": (
        "leftovers",
        "attempt 0 of rank 1 did step 11 alongside attempt 1",
        lines_of(1, lambda rows: updated(rows, 11, 0, time=1101.0)),
    ),
    "a half-written checkpoint": ("leftovers", ".step-000000005.0 is left", half_written),
    "a half-written record": (
        "leftovers",
        ".supervisor.json.0123abcd.tmp is left",
        lambda folder: (folder / ".supervisor.json.0123abcd.tmp").touch(),
    ),
    "an order": (
        "leftovers",
        "order-2.json is left",
        lambda folder: (folder / "order-2.json").touch(),
    ),
    "no record of a worker": (
        "stories artefacts",
        "worker_1.jsonl is missing",
        lambda folder: (folder / "worker_1.jsonl").unlink(),
    ),
    "no record of any worker": (
        "stories artefacts",
        "worker_0.jsonl is missing",
        lambda folder: [(folder / f"worker_{rank}.jsonl").unlink() for rank in (0, 1)],
    ),
    "a strike after its attempt": (
        "failures",
        "exit-12-0 struck 99.9 s after attempt 0",
        struck_at(0, 1149.9),
    ),
    "a strike before its attempt": (
        "failures",
        "exit-16-0 struck 1099.0 s before attempt 1",
        struck_at(1, 1.0),
    ),
    "a strike at another step": (
        "failures",
        "exit-12-0 is planned as exit at step 2 of rank 0",
        document("config.json", lambda d: d["strikes"][0].update(step=2)),
    ),
    "a strike before its step": (
        "failures",
        "exit-13-0 was due at step 13, and rank 0 had done 12 steps in attempt 0",
        planned_at(13),
    ),
    "a strike behind its step": (
        "failures",
        "exit-11-0 was due at step 11, and rank 0 had done 12 steps in attempt 0",
        planned_at(11),
    ),
    "ranks that did not end as the failure ends them": (
        "failures",
        "exit-12-0 has not ended rank 0: they exited with 1, 1",
        document("supervisor.json", lambda d: d["attempts"][0].update(exits=[1, 1])),
    ),
    "ranks that ended well": (
        "failures",
        "exit-12-0 has not ended rank 0: they exited with 0, 0",
        document("supervisor.json", lambda d: d["attempts"][0].update(exits=[0, 0])),
    ),
    "a rank that raised": (
        "failures",
        "exit-12-0 has not ended rank 0: the last that it noted is raised",
        events_of(
            0,
            lambda rows: [{**x, "event": "raised"} if x["event"] == "strike" else x for x in rows],
        ),
    ),
    "no record of checkpoints": (
        "artefacts",
        "checkpoint_rank0.jsonl is missing",
        lambda folder: (folder / "checkpoint_rank0.jsonl").unlink(),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_gate_fails_for_what_it_is_there_for_alone(runs: Path, what: str) -> None:
    gates, reason, change = WRONG[what]
    change(runs / "run")
    found = judge(runs / "run")
    assert set(found) == set(gates.split()) and any(reason in why for why in found.values()), found


def test_the_older_attempt_of_a_step_does_not_count(runs: Path) -> None:
    """Samples of a step that was lost and done again are those of its last attempt."""
    wrong = row(CONFIG, 4, 0, 2, 0)["sample_ids_hash"]
    change_lines(
        runs / "run", "rank_0.jsonl", lambda rows: updated(rows, 11, 0, sample_ids_hash=wrong)
    )
    found = judge(runs / "run")
    assert set(found) == {"replays"} and "had other samples" in found["replays"]


def test_a_last_line_may_be_torn_and_no_other(runs: Path) -> None:
    log = runs / "run" / "rank_0.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"attempt": 2, "global_st')
    assert judge(runs / "run") == {}
    log.write_bytes(b'{"attempt": 2, "global_st\n' + whole)
    with pytest.raises(DataError, match=r"rank_0\.jsonl, line 1: damaged"):
        judge(runs / "run")


@pytest.mark.parametrize(
    "name", [".step-5.0", ".latest.json.0123abcd.tmp", ".last.pt.1", ".lab-000000000005.pt.ab.tmp"]
)
@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/lab"])
def test_half_written_files_are_found_at_any_depth(runs: Path, place: str, name: str) -> None:
    (runs / "run" / place).mkdir(parents=True)
    (runs / "run" / place / name).touch()
    assert judge(runs / "run") == {"leftovers": f"{place}/{name} is left"}


def test_what_strategies_keep_is_not_left(runs: Path) -> None:
    (runs / "run" / "checkpoints" / "step-5").mkdir(parents=True)
    kept = (
        ".lab.epoch",
        ".lab.epoch.lock",
        ".deepvm-writers.lock",
        ".lab.spare.tmp",
        "step-5/.metadata",
        "latest.json",
    )
    for name in kept:
        (runs / "run" / "checkpoints" / name).touch()
    assert judge(runs / "run") == {}


def test_replays_are_compared_after_a_change_of_the_world(tmp_path: Path) -> None:
    """A step by two ranks, and twice by one: the last two must be equal."""
    folder = make_run(tmp_path / "run")
    again = [row(CONFIG, 3, 0, 1, number) for number in (1, 2)]
    change_lines(folder, "rank_0.jsonl", lambda rows: rows + again)
    assert verdicts(Records.read(folder))["replays"] == ""
    again[1] |= {"loss": 0.5, "loss_hex": (0.5).hex()}
    change_lines(folder, "rank_0.jsonl", lambda rows: rows[:-1] + again[1:])
    assert (
        verdicts(Records.read(folder))["replays"] == "step 3 of rank 0: attempt 2 had another loss"
    )


@pytest.mark.parametrize(("world", "right"), [(1, True), (2, True), (4, False)])
def test_a_job_may_go_on_with_fewer_ranks(tmp_path: Path, world: int, right: bool) -> None:
    folder = make_run(tmp_path / "run", failures=(), virtual_shards=2, min_world=1)
    for rank in range(4):
        lines = [row(CONFIG, step, rank, world, 0) for step in range(20)] if rank < world else []
        write_lines(folder, f"rank_{rank}.jsonl", lines)
    found = verdicts(Records.read(folder))["samples"]
    assert found == ("" if right else "step 0 had a world of 4, not 1 to 2")


def test_without_an_undisturbed_run_nothing_is_said_to_be_equal(tmp_path: Path) -> None:
    assert "no failure-free run" in judge(make_run(tmp_path / "run"))["parameters"]


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 4},
        {"steps": 25},
        {"global_batch": 4},
        {"world": 1, "worlds": [[0, 1]]},
        {"dataset_size": 51},
    ],
)
def test_runs_of_another_training_are_no_reference(tmp_path: Path, changes: Row) -> None:
    make_calm(tmp_path / "calm", **changes, final=OTHER)
    assert "no failure-free run" in judge(make_run(tmp_path / "run"))["parameters"]


def test_with_virtual_shards_any_world_is_a_reference(tmp_path: Path) -> None:
    make_calm(tmp_path / "calm", world=1, worlds=[[0, 1]], virtual_shards=2)
    assert judge(make_run(tmp_path / "run", virtual_shards=2)) == {}
    (tmp_path / "calm" / "final.sha256").write_text(OTHER)
    assert set(judge(tmp_path / "run")) == {"parameters"}


def test_references_that_differ_are_no_reference(runs: Path) -> None:
    make_run(runs / "ref", failures=(), failure="calm", variant="ref-blk", final=OTHER)
    assert set(judge(runs / "run")) == {"parameters"}


def test_ranks_of_two_worlds_in_one_step_are_wrong(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", virtual_shards=2)
    make_calm(tmp_path / "calm", virtual_shards=2)
    change_lines(folder, "rank_1.jsonl", lambda rows: updated(rows, 4, 0, world_size=4))
    assert "step 4 has ranks of [2, 4] worlds" in judge(folder)["samples"]


def test_attempts_of_other_worlds_are_followed(tmp_path: Path) -> None:
    """Elastic: 2 ranks until step 10, then 1.

    The record of each attempt says how far it was to go.
    """
    changes: Row = {"virtual_shards": 2, "worlds": [[0, 2], [10, 1]]}
    make_calm(tmp_path / "calm", virtual_shards=2)
    folder = make_run(tmp_path / "run", failures=(), **changes)
    config = {**CONFIG, **changes}
    first = attempt(0, 0, 10, world=2, steps=20) | {"state": "completed", "until": 10}
    second = attempt(1, 10, 20, world=1, steps=20)
    change_document(
        folder, "supervisor.json", lambda d: d.update(attempts=[first, second], wall_s=150.0)
    )
    later = [row(config, step, 0, 1, 1) for step in range(10, 20)]
    change_lines(
        folder,
        "rank_0.jsonl",
        lambda rows: [one for one in rows if one["global_step"] < 10] + later,
    )
    change_lines(
        folder, "rank_1.jsonl", lambda rows: [one for one in rows if one["global_step"] < 10]
    )
    change_lines(
        folder,
        "checkpoint_rank0.jsonl",
        lambda rows: [{**one, "attempt": int(one["step"] > 10)} for one in rows],
    )
    for rank in (0, 1):
        change_lines(
            folder,
            f"worker_{rank}.jsonl",
            lambda rows, rank=rank: (
                rows if rank else [*rows, {**rows[2], "attempt": 1, "step": 10}]
            ),  # type: ignore[misc]
        )
    assert judge(folder) == {} and (folder / "final.sha256").read_text().strip() == FINAL
