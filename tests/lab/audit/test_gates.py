"""Each gate passes what is right, and fails for what it is there for and nothing else; runs are written by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    steps,
    strike,
    window,
    write_lines,
)

from deepvm.errors import DataError
from deepvm.lab.audit.checkpoint_story import possibly_saved
from deepvm.lab.audit.gates import GATES, verdicts
from deepvm.lab.audit.references import with_references
from deepvm.lab.records import Records

OTHER = "0" * 64


def judge(folder: Path) -> dict[str, str]:
    """What is wrong at each gate that fails."""
    found = verdicts(with_references(Records.read(folder), folder.parent))
    assert list(found) == list(GATES)
    return {gate: why for gate, why in found.items() if why}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with an undisturbed run, and one that failed twice; both right."""
    make_calm(tmp_path / "calm")
    make_run(tmp_path / "run")
    return tmp_path


def test_what_is_right_passes_all_gates(runs: Path) -> None:
    assert judge(runs / "run") == {} and judge(runs / "calm") == {}


Change = Callable[[Path], object]


def lines_of(rank: int, change: Callable[[list[Row]], list[Row]]) -> Change:
    return lambda folder: change_lines(folder, f"rank_{rank}.jsonl", change)


def document(name: str, change: Callable[[Row], None]) -> Change:
    return lambda folder: change_document(folder, name, change)


def updated(rows: list[Row], step: int, attempt: int, **values: object) -> list[Row]:
    for one in steps(rows, step):
        if one["attempt"] == attempt:
            one.update(values)
    return rows


def last_attempt(key: str, value: object) -> Change:
    return document("supervisor.json", lambda found: found["attempts"][-1].update({key: value}))


def half_written(folder: Path) -> None:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / ".step-000000005.0").touch()


def all_lines(change: Callable[[Row], Row]) -> Change:
    """Change each line of both ranks."""

    def both(folder: Path) -> None:
        for rank in (0, 1):
            lines_of(rank, lambda rows: [change(one) for one in rows])(folder)

    return both


def two_resumptions(folder: Path) -> None:
    """Rank 1 of attempt 1 goes on from step 12, rank 0 from step 10."""
    lines_of(1, lambda rows: [one for one in rows if one["attempt"] != 1 or one["global_step"] >= 12])(folder)
    change_lines(
        folder,
        "worker_1.jsonl",
        lambda rows: [
            {**one, "step": 12} if one["event"] == "restored" and one["attempt"] == 1 else one for one in rows
        ],
    )


def a_rank_too_many(folder: Path) -> None:
    rows = [{**row(CONFIG, step, 1, 2, 0), "sample_ids_hash": OTHER} for step in range(12)]
    write_lines(folder, "rank_7.jsonl", rows)


def checkpoints(change: Callable[[list[Row]], list[Row]]) -> Change:
    return lambda folder: change_lines(folder, "checkpoint_rank0.jsonl", change)


def events_of(rank: int, change: Callable[[list[Row]], list[Row]]) -> Change:
    return lambda folder: change_lines(folder, f"worker_{rank}.jsonl", change)


def all_rows(change: Callable[[list[Row]], list[Row]]) -> Change:
    """Change the logs of both ranks."""
    return lambda folder: [lines_of(rank, change)(folder) for rank in (0, 1)]


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


def goes_on(number: int, first: int) -> Change:
    """An attempt goes on from another step, and all but the checkpoints say so."""

    def change(folder: Path) -> None:
        document("supervisor.json", lambda d: d["attempts"][number].update(resumed_step=first))(folder)
        for rank in (0, 1):

            def anew(rows: list[Row], rank: int = rank) -> list[Row]:
                done = max(x["global_step"] for x in rows if x["attempt"] == number)
                own = [row(CONFIG, step, rank, 2, number) for step in range(first, done + 1)]
                older, newer = ([x for x in rows if (x["attempt"] - number) * sign > 0] for sign in (-1, 1))
                return [*older, *own, *newer]

            lines_of(rank, anew)(folder)
            events_of(
                rank,
                lambda rows: [
                    {**x, "step": first} if x["event"] == "restored" and x["attempt"] == number else x for x in rows
                ],
            )(folder)

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
    "it gave up": ("steps", "ended as failed", document("supervisor.json", lambda d: d.update(state="failed"))),
    "a step is missing on a rank": (
        "samples",
        "step 7 of rank 1 is missing",
        lines_of(1, lambda rows: [x for x in rows if x["global_step"] != 7]),
    ),
    "other samples": (
        "samples",
        "step 3 of rank 0 had other samples",
        lines_of(0, lambda rows: updated(rows, 3, 0, sample_ids_hash=row(CONFIG, 4, 0, 2, 0)["sample_ids_hash"])),
    ),
    "fewer samples": ("samples", "step 3 of rank 0", lines_of(0, lambda rows: updated(rows, 3, 0, sample_ids_count=3))),
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
    "a rank too many": ("samples stories", "step 0 was done by rank 7, of a world of 2", a_rank_too_many),
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
    "no digest": ("parameters", "no SHA-256", lambda folder: (folder / "final.sha256").write_text("")),
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
    "a checkpoint that nobody recorded": ("stories", "went on from step 13", goes_on(2, 13)),
    "a checkpoint that was not restored": (
        "stories",
        "attempt 1 went on from step 5, though there was a checkpoint of 10",
        goes_on(1, 5),
    ),
    "an attempt that began anew": (
        "stories",
        "attempt 2 went on from step 0, though there was a checkpoint of 15",
        goes_on(2, 0),
    ),
    "ranks that tell another story": (
        "samples stories",
        "attempt 2 went on from step 10, and from 15 by its ranks",
        last_attempt("resumed_step", 10),
    ),
    "a rank that has not said from where it went on": (
        "stories",
        "rank 1 did steps in attempt 1, and has not noted from where it went on",
        events_of(1, lambda rows: [x for x in rows if x["event"] != "restored" or x["attempt"] != 1]),
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
        "step 9 of rank 0 was done in attempt 1, which went on from step 10",
        all_rows(lambda rows: [*rows[:12], *({**x, "attempt": 1, "time": 1100.0} for x in rows[9:10]), *rows[12:]]),
    ),
    "a reached step that is too high": ("stories", "attempt 1 reached step 99, and 16 by its ranks", reached(1, 99)),
    "a reached step that is too low": ("stories", "attempt 1 reached step 1, and 16 by its ranks", reached(1, 1)),
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
        "attempt 1 went on from step 10, of which no checkpoint is recorded",
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
    "an orphan that went on writing": (
        "leftovers",
        "attempt 0 of rank 1 went on writing",
        lines_of(1, lambda rows: [*rows, {**row(CONFIG, 12, 1, 2, 0), "time": 1101.0}]),
    ),
    "an attempt that was there when the next one began": (
        "leftovers",
        "attempt 0 of rank 1 did step 11 beside attempt 1",
        lines_of(1, lambda rows: updated(rows, 11, 0, time=1101.0)),
    ),
    "a half-written checkpoint": (
        "leftovers",
        ".step-000000005.0 is left",
        half_written,
    ),
    "a half-written record": (
        "leftovers",
        ".supervisor.json.0123abcd.tmp is left",
        lambda folder: (folder / ".supervisor.json.0123abcd.tmp").touch(),
    ),
    "an order": ("leftovers", "order-2.json is left", lambda folder: (folder / "order-2.json").touch()),
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
    "a strike after its attempt": ("failures", "exit-12-0 struck 99.9 s after attempt 0", struck_at(0, 1149.9)),
    "a strike before its attempt": ("failures", "exit-16-0 struck 1099.0 s before attempt 1", struck_at(1, 1.0)),
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
        events_of(0, lambda rows: [{**x, "event": "raised"} if x["event"] == "strike" else x for x in rows]),
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
    change_lines(runs / "run", "rank_0.jsonl", lambda rows: updated(rows, 11, 0, sample_ids_hash=wrong))
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


def test_a_failure_proves_something_only_in_training(tmp_path: Path) -> None:
    make_calm(tmp_path / "calm")
    folder = make_run(tmp_path / "run", failures=(6,))
    change_lines(
        folder, "rank_0.jsonl", lambda rows: [one for one in rows if one["attempt"] > 0 or one["global_step"] > 4]
    )
    change_lines(folder, "rank_0.jsonl", lambda rows: [one for one in rows if one["attempt"] > 0])
    change_lines(folder, "rank_1.jsonl", lambda rows: [one for one in rows if one["attempt"] > 0])
    found = judge(folder)
    assert "struck before training had begun" in found["failures"]


def test_what_had_to_end_and_did_not_proves_nothing(runs: Path) -> None:
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][-1]["struck"].update({"exit-18-0": 1.0}))
    change_document(runs / "run", "config.json", lambda d: d["strikes"].append(strike("exit", 18)))
    assert "exit-18-0 did not end its attempt" in judge(runs / "run")["failures"]


def struck(
    folder: Path, fault: str, *, target: str = "worker", launcher: str = "forkserver", **changes: object
) -> None:
    """The first failure becomes another one; ``changes``: of its attempt."""
    planned = strike(fault, 12, target=target)
    change_document(folder, "config.json", lambda d: d["strikes"].__setitem__(0, planned))
    change_document(folder, "config.json", lambda d: d.update(launcher=launcher))
    facts = {"struck": {planned["key"]: 1049.9}, "causes": [planned["key"]], **changes}
    change_document(folder, "supervisor.json", lambda d: d["attempts"][0].update(facts))
    if launcher == "torchrun":
        change_document(folder, "supervisor.json", lambda d: d["attempts"][1].update(exits=[1, 1]))


def note_the_end(folder: Path, rank: int, word: str) -> None:
    """The last event of a rank in the first attempt becomes another one."""

    def change(rows: list[Row]) -> list[Row]:
        rows[3]["event"] = word
        return rows

    events_of(rank, change)(folder)


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
def test_a_kill_kills_the_rank_that_it_hits(runs: Path, launcher: str, exits: list[int | None], killed: bool) -> None:
    struck(runs / "run", "kill", launcher=launcher, exits=exits)
    found = judge(runs / "run")
    assert found == {} if killed else "kill-12-0 has not ended rank 0: they exited with" in found["failures"]


@pytest.mark.parametrize("launcher", ["forkserver", "torchrun"])
@pytest.mark.parametrize("word", ["raised", "ended"])
def test_a_rank_that_has_noted_its_end_was_not_killed(runs: Path, launcher: str, word: str) -> None:
    struck(runs / "run", "kill", launcher=launcher, exits=[-9, 1])
    note_the_end(runs / "run", 0, word)
    assert f"kill-12-0 has not ended rank 0: the last that it noted is {word}" in judge(runs / "run")["failures"]


def test_of_a_machine_that_is_killed_some_ranks_may_raise_before(runs: Path) -> None:
    struck(runs / "run", "kill", target="machine", exits=[1, -9])
    note_the_end(runs / "run", 0, "raised")
    note_the_end(runs / "run", 1, "strike")
    assert judge(runs / "run") == {}
    note_the_end(runs / "run", 1, "raised")
    assert (
        "kill-12-0 has not ended any rank: the last that it noted is raised, raised" in judge(runs / "run")["failures"]
    )


@pytest.mark.parametrize(
    ("fault", "code", "word", "done"), [("segfault", -11, "strike", 11), ("loader", 1, "raised", 11)]
)
def test_each_failure_ends_a_rank_in_its_own_way(runs: Path, fault: str, code: int, word: str, done: int) -> None:
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
    assert "hang-12-0 did not hang its attempt, which is recorded as failed" in judge(folder)["failures"]


def test_of_two_failures_at_one_step_the_first_ends_the_attempt(runs: Path) -> None:
    change_document(runs / "run", "config.json", lambda d: d["strikes"].append(strike("exit", 12, 1)))
    key = {"exit-12-1": 1049.9}
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0]["struck"].update(key))
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(exits=[137, -9]))
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
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][2].update(detected=1219.5))
    assert judge(runs / "run") == ({} if stood else {"failures": said})


@pytest.mark.parametrize(("seconds", "starts", "right"), [(0.5, 1, False), (0.5, 2, True), (99.0, 1, True)])
def test_a_memory_node_is_started_again(runs: Path, seconds: float, starts: int, right: bool) -> None:
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
def test_a_job_loses_the_machine_that_keeps_versions(runs: Path, machine: str, why: str, at: float, lost: bool) -> None:
    folder = runs / "run"
    passing(folder, "node", seconds=0.5)
    change_document(folder, "config.json", lambda d: d.update(launcher="deepvm-run"))
    change_document(folder, "supervisor.json", lambda d: [one.update(machines=["m1", "m2"]) for one in d["attempts"]])
    write_lines(folder, "orchestrator.jsonl", [{"event": "machine", "time": at, "id": machine, "why": why}])
    found = next(GATES["failures"](Records.read(folder)), "")
    assert found == ("" if lost else "node-17-0 has ended no machine that keeps versions")


def test_a_failure_that_ends_nothing_strikes_in_the_run(runs: Path) -> None:
    passing(runs / "run", "rebalance")
    assert judge(runs / "run") == {}
    change_document(
        runs / "run", "supervisor.json", lambda d: d["attempts"][2]["struck"].update({"rebalance-17-0": 9e9})
    )
    assert "rebalance-17-0 struck" in judge(runs / "run")["failures"]


def broke(folder: Path, fault: str, *found: int, strategy: str = "blocking") -> dict[str, str]:
    """The first failure damages the checkpoint of step 10; ``found``: the damaged ones that later attempts find."""
    struck(folder, fault, broken=["step-000000010"], exits=[-9, -9])
    change_document(folder, "config.json", lambda d: d.update(strategy=strategy))
    for number, damaged in enumerate(found, 1):
        change_document(folder, "supervisor.json", lambda d, n=number, v=damaged: d["attempts"][n].update(damaged=v))  # type: ignore[misc]
    return judge(folder)


def test_damage_is_found_by_the_next_attempt_and_nowhere_else(runs: Path) -> None:
    assert broke(runs / "run", "torn", 1) == {}
    assert "attempt 1 found 99 damaged checkpoints, and only 1 had been" in broke(runs / "run", "torn", 99)["stories"]
    assert "attempt 2 found a damaged checkpoint, and nothing" in broke(runs / "run", "torn", 1, 1)["stories"]
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
    change_document(folder, "supervisor.json", lambda d: d["attempts"][1].update(damaged=len(broken)))
    said = f"attempt 1 went on from step {first}, though there was a checkpoint of {5 if broken else 10}"
    assert judge(folder) == ({} if right else {"stories": said})


def test_damage_that_no_strike_did_is_no_excuse(runs: Path) -> None:
    facts = {"broken": ["step-000000010"]}
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(facts))
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][1].update(damaged=1))
    assert "attempt 1 found a damaged checkpoint, and nothing had" in judge(runs / "run")["stories"]


def test_damage_is_found_until_there_is_a_newer_checkpoint(runs: Path) -> None:
    change_lines(runs / "run", "checkpoint_rank0.jsonl", lambda rows: [one for one in rows if one["attempt"] != 1])
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
def test_what_has_no_checksum_need_not_notice_a_bit(runs: Path, fault: str, strategy: str, silent: bool) -> None:
    assert (broke(runs / "run", fault, 0, strategy=strategy) == {}) is silent


def test_damage_of_a_checkpoint_that_was_not_whole_need_not_be_noticed(runs: Path) -> None:
    folder = runs / "run"
    change_lines(
        folder, "checkpoint_rank0.jsonl", lambda rows: [r for r in rows if (r["attempt"], r["step"]) != (0, 10)]
    )
    assert broke(folder, "torn", 0) == {}


def test_what_damaged_nothing_proves_nothing(runs: Path) -> None:
    struck(runs / "run", "torn", broken=[], exits=[-9, -9])
    assert judge(runs / "run") == {"failures": "torn-12-0 damaged no file: it proves nothing"}


def test_what_may_be_saved_is_behind_the_last_record(runs: Path) -> None:
    about = Records.read(runs / "run").checkpoints[0]

    def possible(*recorded: int, reached: int = 19, **changes: object) -> set[int]:
        checkpoints(lambda _: [{**about, "attempt": 0, "step": step} for step in recorded])(runs / "run")
        run = Records.read(runs / "run")
        return possibly_saved(run, {**run.supervisor["attempts"][0], "reached_step": reached, **changes})

    assert possible(5, 10) == {15} and possible(5, 10, reached=20) == {15, 20} and possible(15) == set()
    assert possible() == {5, 10, 15} and possible(reached=40) == {30, 35, 40}  # two in flight, and the one that is due
    assert possible(5, state="completed") == set()
    change_document(runs / "run", "config.json", lambda d: d.update(strategy="deepvm"))  # writes several at a time
    assert possible(5, 15) == {10} and possible(10, 15, reached=20) == {5, 20}


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
    assert verdicts(Records.read(folder))["replays"] == "step 3 of rank 0: attempt 2 had another loss"


@pytest.mark.parametrize(("world", "right"), [(1, True), (2, True), (4, False)])
def test_a_job_may_go_on_with_fewer_ranks(tmp_path: Path, world: int, right: bool) -> None:
    folder = make_run(tmp_path / "run", failures=(), virtual_shards=2, min_world=1)
    for rank in range(4):
        lines = [row(CONFIG, step, rank, world, 0) for step in range(20)] if rank < world else []
        write_lines(folder, f"rank_{rank}.jsonl", lines)
    found = verdicts(Records.read(folder))["samples"]
    assert found == ("" if right else "step 0 had a world of 4, not 1 to 2")


def test_a_disk_that_never_failed_proves_nothing(runs: Path) -> None:
    change_document(runs / "run", "config.json", lambda d: d.update(disk={"eio": {"share": 0.2}}))
    assert "the disk has never failed" in judge(runs / "run")["failures"]
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(disk_errors=1))
    assert judge(runs / "run") == {}
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(disk_errors=0))
    change_document(runs / "run", "config.json", lambda d: d.update(disk={"slow": {"mbps": 1.0}}))
    assert judge(runs / "run") == {"failures": "the disk was never slow"}
    slowed = {"event": "slowed", "attempt": 0, "rank": 0, "time": 1000.0, "seconds": 0.25}
    events_of(0, lambda rows: [*rows, slowed])(runs / "run")
    assert judge(runs / "run") == {}


def test_without_an_undisturbed_run_nothing_is_said_to_be_equal(tmp_path: Path) -> None:
    assert "no failure-free run" in judge(make_run(tmp_path / "run"))["parameters"]


@pytest.mark.parametrize(
    "changes", [{"seed": 4}, {"steps": 25}, {"global_batch": 4}, {"world": 1, "worlds": [[0, 1]]}, {"dataset_size": 51}]
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


# --- samples, against an oracle that counts them ---


Attempts = list[tuple[int, int]]
"""From which step each went on, and how many were done at its end."""


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[Row, Attempts, list[list[Row]]]:
    """A configuration, attempts, and logs of ranks in which lines may be missing, doubled, exchanged, or others."""
    world = draw(st.sampled_from([1, 2, 4]))
    size, batch = draw(st.integers(8, 40)), 4 * draw(st.integers(1, 2))
    config = {**CONFIG, "world": world, "worlds": [[0, world]], "dataset_size": size, "global_batch": batch}
    config["steps"] = draw(st.integers(1, 12))
    attempts: Attempts = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, max((done for _, done in attempts), default=0)))
        attempts.append((first, draw(st.integers(first, config["steps"]))))
    logs = [
        [row(config, step, rank, world, n) for n, span in enumerate(attempts) for step in range(*span)]
        for rank in range(world)
    ]
    for _ in range(draw(st.integers(0, 2))):
        rank = draw(st.integers(0, world - 1))
        if not logs[rank]:
            continue
        place = draw(st.integers(0, len(logs[rank]) - 1))
        what = draw(st.sampled_from(["drop", "drop everywhere", "again", "exchange", "other"]))
        if what == "other":
            other = row(config, draw(st.integers(0, config["steps"] - 1)), rank, world, 0)
            logs[rank][place] = {**logs[rank][place], "sample_ids_hash": other["sample_ids_hash"]}
        elif what == "again":
            logs[rank].insert(place, logs[rank][place])
        elif what == "exchange":
            logs[rank][place - 1], logs[rank][place] = logs[rank][place], logs[rank][place - 1]
        else:
            for one in range(world) if "everywhere" in what else (rank,):
                del logs[one][place : place + 1]
    return config, attempts, logs


@settings(deadline=None)
@given(damaged_logs())
def test_samples_agree_with_an_oracle_that_does_the_steps_again(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[Row, Attempts, list[list[Row]]]
) -> None:
    """By definition: an attempt forgets what is behind its checkpoint, and adds step to step; each rank its shards."""
    config, attempts, logs = made
    folder = make_run(tmp_path_factory.mktemp("runs") / "run", failures=(), **config)
    world = config["world"]
    told = [attempt(n, *span, world=world, steps=config["steps"]) for n, span in enumerate(attempts)]
    change_document(folder, "supervisor.json", lambda d: d.update(attempts=told))
    for rank, rows in enumerate(logs):
        change_lines(folder, f"rank_{rank}.jsonl", lambda _, rows=rows: rows)  # type: ignore[misc]
    shards = {
        row(config, step, rank, world, 0)["sample_ids_hash"]: tuple(window(config, step, rank, world))
        for step, rank in itertools.product(range(config["steps"]), range(world))
    }
    right, histories = True, []
    for rows in logs:
        history: list[tuple[int, ...]] = []
        for number, (first, _) in enumerate(attempts):
            del history[first:]
            history += [()] * (first - len(history))  # lost, and not done again
            for one in (one for one in rows if one["attempt"] == number):
                right &= one["global_step"] == len(history)
                history.append(shards[one["sample_ids_hash"]])
        while history and not history[-1]:
            history.pop()
        histories.append(history)
    for step, ids in enumerate(itertools.zip_longest(*histories, fillvalue=())):
        right &= list(ids) == [tuple(window(config, step, rank, world)) for rank in range(world)]
    assert (verdicts(Records.read(folder))["samples"] == "") == right


def test_attempts_of_other_worlds_are_followed(tmp_path: Path) -> None:
    """Elastic: 2 ranks until step 10, then 1; the record of each attempt says how far it was to go."""
    changes: Row = {"virtual_shards": 2, "worlds": [[0, 2], [10, 1]]}
    make_calm(tmp_path / "calm", virtual_shards=2)
    folder = make_run(tmp_path / "run", failures=(), **changes)
    config = {**CONFIG, **changes}
    first = attempt(0, 0, 10, world=2, steps=20) | {"state": "completed", "until": 10}
    second = attempt(1, 10, 20, world=1, steps=20)
    change_document(folder, "supervisor.json", lambda d: d.update(attempts=[first, second], wall_s=150.0))
    later = [row(config, step, 0, 1, 1) for step in range(10, 20)]
    change_lines(folder, "rank_0.jsonl", lambda rows: [one for one in rows if one["global_step"] < 10] + later)
    change_lines(folder, "rank_1.jsonl", lambda rows: [one for one in rows if one["global_step"] < 10])
    change_lines(
        folder, "checkpoint_rank0.jsonl", lambda rows: [{**one, "attempt": int(one["step"] > 10)} for one in rows]
    )
    for rank in (0, 1):
        change_lines(
            folder,
            f"worker_{rank}.jsonl",
            lambda rows, rank=rank: rows if rank else [*rows, {**rows[2], "attempt": 1, "step": 10}],  # type: ignore[misc]
        )
    assert judge(folder) == {} and (folder / "final.sha256").read_text().strip() == FINAL
