"""Each gate passes what is right, and fails for what it is there for and nothing else; runs are written by hand."""

from __future__ import annotations

import itertools
from collections import Counter
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
    window,
)

from deepvm.errors import DataError
from deepvm.lab.audit.gates import GATES, Records, judged
from deepvm.lab.audit.references import with_references

OTHER = "0" * 64


def judge(folder: Path) -> dict[str, str]:
    """What is wrong at each gate that fails."""
    found = judged(with_references(Records.read(folder), folder.parent))
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


def without_the_last_step(folder: Path) -> None:
    for rank in (0, 1):
        lines_of(rank, lambda rows: [one for one in rows if one["global_step"] < 19])(folder)


WRONG: dict[str, tuple[str, str, Change]] = {
    # what: gate, a part of the reason, change
    "no rank did the last step": (
        "steps samples",
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
        "step 8 of rank 0 is said to be 1, 3",
        lines_of(0, lambda rows: updated(rows, 8, 0, cursor_step=3)),
    ),
    "another loss at a replay": (
        "replays",
        "step 11 of rank 0: attempt 1 had another loss",
        lines_of(0, lambda rows: updated(rows, 11, 1, loss_hex=(0.5).hex())),
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
        document("config.json", lambda d: d["strikes"].append({"fault": "exit", "key": "exit-3-0", "ends": True})),
    ),
    "restarts that were not counted": (
        "stories",
        "1 restarts for 2",
        document("supervisor.json", lambda d: d.update(restarts=1)),
    ),
    "attempts that were not counted": ("stories failures", "not counted from 0", last_attempt("attempt", 7)),
    "a checkpoint that nobody recorded": ("stories", "went on from step 13", last_attempt("resumed_step", 13)),
    "damage that nobody did": ("stories", "found a damaged checkpoint", last_attempt("damaged", 1)),
    "a failure without a cause": (
        "stories",
        "attempt 0 failed, and nothing had been planned",
        document("supervisor.json", lambda d: d["attempts"][0].update(causes=[])),
    ),
    "an orphan that went on writing": (
        "leftovers",
        "attempt 0 of rank 1 went on writing",
        lines_of(1, lambda rows: [*rows, row(CONFIG, 12, 1, 2, 0)]),
    ),
    "a half-written checkpoint": (
        "leftovers",
        ".step-000000005.0 is left",
        half_written,
    ),
    "an order": ("leftovers", "order-2.json is left", lambda folder: (folder / "order-2.json").touch()),
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
    assert set(found) == {"replays"} and "had another samples" in found["replays"]


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
    key = {"fault": "exit", "key": "exit-18-0", "ends": True}
    change_document(runs / "run", "config.json", lambda d: d["strikes"].append(key))
    assert "exit-18-0 has ended nothing" in judge(runs / "run")["failures"]


def test_a_disk_that_never_failed_proves_nothing(runs: Path) -> None:
    change_document(runs / "run", "config.json", lambda d: d.update(disk={"eio": {"share": 0.2}}))
    assert "the disk has never failed" in judge(runs / "run")["failures"]
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(disk_errors=1))
    assert judge(runs / "run") == {}
    change_document(runs / "run", "supervisor.json", lambda d: d["attempts"][0].update(disk_errors=0))
    change_document(runs / "run", "config.json", lambda d: d.update(disk={"slow": {"mbps": 1.0}}))
    assert judge(runs / "run") == {}


def test_without_an_undisturbed_run_nothing_is_said_to_be_equal(tmp_path: Path) -> None:
    assert "no undisturbed run" in judge(make_run(tmp_path / "run"))["parameters"]


@pytest.mark.parametrize(
    "changes", [{"seed": 4}, {"steps": 25}, {"global_batch": 4}, {"world": 1, "worlds": [[0, 1]]}, {"dataset_size": 51}]
)
def test_runs_of_another_training_are_no_reference(tmp_path: Path, changes: Row) -> None:
    make_calm(tmp_path / "calm", **changes, final=OTHER)
    assert "no undisturbed run" in judge(make_run(tmp_path / "run"))["parameters"]


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


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda d: d.pop("steps")),
        ("supervisor.json", lambda d: d.pop("attempts")),
        ("supervisor.json", lambda d: d.update(attempts=[{}])),
        ("config.json", lambda d: d.update(dataset_size="many")),
    ],
)
def test_records_that_lack_something_are_damaged(runs: Path, name: str, change: Callable[[Row], None]) -> None:
    change_document(runs / "run", name, change)
    with pytest.raises(DataError, match="damaged"):
        judge(runs / "run")


# --- samples, against an oracle that counts them ---


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[Row, list[list[Row]]]:
    """A configuration, and logs of ranks from which lines may be missing, doubled in a later attempt, or exchanged."""
    world = draw(st.sampled_from([1, 2, 4]))
    size, batch = draw(st.integers(8, 40)), 4 * draw(st.integers(1, 2))
    config = {**CONFIG, "world": world, "dataset_size": size, "global_batch": batch, "steps": draw(st.integers(1, 12))}
    logs = [[row(config, step, rank, world, 0) for step in range(config["steps"])] for rank in range(world)]
    for _ in range(draw(st.integers(0, 3))):
        rank, step = draw(st.integers(0, world - 1)), draw(st.integers(0, config["steps"] - 1))
        what = draw(st.sampled_from(["drop", "again", "other"]))
        if what == "drop":
            logs[rank] = [one for one in logs[rank] if one["global_step"] != step]
        elif what == "again":
            logs[rank].append(row(config, step, rank, world, 1))
        else:
            other = row(config, draw(st.integers(0, config["steps"] - 1)), rank, world, 0)
            updated(logs[rank], step, 0, sample_ids_hash=other["sample_ids_hash"])
    return config, logs


@settings(deadline=None)
@given(damaged_logs())
def test_samples_agree_with_an_oracle_that_counts_each_of_them(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[Row, list[list[Row]]]
) -> None:
    """By definition: of each (epoch, step) the multiset of samples is that of its window, on each rank its shard."""
    config, logs = made
    folder = make_run(tmp_path_factory.mktemp("runs") / "run", failures=(), **config)
    for rank, rows in enumerate(logs):
        change_lines(folder, f"rank_{rank}.jsonl", lambda _, rows=rows: rows)  # type: ignore[misc]
    shards = {
        row(config, step, rank, config["world"], 0)["sample_ids_hash"]: tuple(
            window(config, step, rank, config["world"])
        )
        for step, rank in itertools.product(range(config["steps"]), range(config["world"]))
    }
    right = True
    for step in range(config["steps"]):
        seen: Counter[int] = Counter()
        owners = [max(steps(rows, step), key=lambda one: one["attempt"], default=None) for rows in logs]
        newest = max((one["attempt"] for one in owners if one), default=0)
        for rank, owner in enumerate(owners):
            ids = shards[owner["sample_ids_hash"]] if owner else ()
            right &= owner is not None and ids == tuple(window(config, step, rank, config["world"]))
            seen.update(ids)
        expected = Counter(i for rank in range(config["world"]) for i in window(config, step, rank, config["world"]))
        right &= seen == expected and newest >= 0
    assert (judged(Records.read(folder))["samples"] == "") == right


def test_attempts_of_other_worlds_are_followed(tmp_path: Path) -> None:
    """Elastic: 2 ranks until step 10, then 1; the record of each attempt says how far it was to go."""
    changes: Row = {"virtual_shards": 2, "worlds": [[0, 2], [10, 1]]}
    make_calm(tmp_path / "calm", virtual_shards=2)
    folder = make_run(tmp_path / "run", failures=(), **changes)
    config = {**CONFIG, **changes}
    first = attempt(0, 0, 10, world=2, steps=20) | {"state": "completed", "until": 10}
    second = attempt(1, 10, 20, world=1, steps=20)
    change_document(folder, "supervisor.json", lambda d: d.update(attempts=[first, second]))
    later = [row(config, step, 0, 1, 1) for step in range(10, 20)]
    change_lines(folder, "rank_0.jsonl", lambda rows: [one for one in rows if one["global_step"] < 10] + later)
    change_lines(folder, "rank_1.jsonl", lambda rows: [one for one in rows if one["global_step"] < 10])
    assert judge(folder) == {} and (folder / "final.sha256").read_text().strip() == FINAL
