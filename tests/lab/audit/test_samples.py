"""The gate of samples against an oracle that does the steps again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lab.made_runs import (
    CONFIG,
    Row,
    attempt,
    change_document,
    change_lines,
    make_run,
    row,
    window,
)

from deepvm.lab.audit.gates import verdicts
from deepvm.lab.records import Records

Attempts = list[tuple[int, int]]
"""From which step each went on, and how many were done at its end."""


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[Row, Attempts, list[list[Row]]]:
    """A configuration, attempts, and logs of ranks in which lines may be missing, doubled,
    exchanged, or others.
    """
    world = draw(st.sampled_from([1, 2, 4]))
    size, batch = draw(st.integers(8, 40)), 4 * draw(st.integers(1, 2))
    config = {
        **CONFIG,
        "world": world,
        "worlds": [[0, world]],
        "dataset_size": size,
        "global_batch": batch,
    }
    config["steps"] = draw(st.integers(1, 12))
    attempts: Attempts = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, max((done for _, done in attempts), default=0)))
        attempts.append((first, draw(st.integers(first, config["steps"]))))
    logs = [
        [
            row(config, step, rank, world, n)
            for n, span in enumerate(attempts)
            for step in range(*span)
        ]
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
    """By definition: an attempt forgets what is behind its checkpoint, and adds step to step.

    Each rank its shards.
    """
    config, attempts, logs = made
    folder = make_run(tmp_path_factory.mktemp("runs") / "run", failures=(), **config)
    world = config["world"]
    told = [
        attempt(n, *span, world=world, steps=config["steps"]) for n, span in enumerate(attempts)
    ]
    change_document(folder, "supervisor.json", lambda d: d.update(attempts=told))
    for rank, rows in enumerate(logs):
        change_lines(folder, f"rank_{rank}.jsonl", lambda _, rows=rows: rows)  # type: ignore[misc]
    shards = {
        row(config, step, rank, world, 0)["sample_ids_hash"]: tuple(
            window(config, step, rank, world)
        )
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
