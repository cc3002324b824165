"""Gates on lines as the probe writes them: each wrong training fails its gate and no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from support.lab.audit_logs import attempt, logged, samples, start, step, train

from deepvm.lab.certify.attempt import Attempt
from deepvm.lab.certify.history import History
from deepvm.lab.certify.script_gates import GATES, Evidence, Run, judge

IDS = {n: [3 * n, 3 * n + 1, 3 * n + 2] for n in range(10)}


def some(first: int, after: int) -> dict[int, list[int]]:
    return {n: IDS[n] for n in range(first, after)}


def undisturbed(rows: Sequence[Any] = (*train(10), *samples(IDS)), final: str = "") -> Run:
    return Run([attempt(0, rows)], final)


def killed(
    *attempts: Attempt, final: str = "", reference: Sequence[Any] = (*train(10), *samples(IDS))
) -> Run:
    history = History(logged(reference), logged(reference))
    for one in attempts:
        history.add(one)
    return Run(attempts, final, history)


LOST = attempt(0, [*train(7), *samples(some(0, 7))], "killed")
BACK = attempt(1, [*train(10, after=5), *samples(some(5, 10))])
RIGHT = Evidence(undisturbed(), undisturbed(), [killed(LOST, BACK)], planned=1, hits=1)


def failed(found: Evidence) -> dict[str, str]:
    return {gate.name: gate.reason for gate in judge(found) if gate.state == "failed"}


def skipped(found: Evidence) -> set[str]:
    return {gate.name for gate in judge(found) if gate.state == "skipped"}


def test_a_right_one_passes_all() -> None:
    assert [(gate.name, gate.state, gate.reason) for gate in judge(RIGHT)] == [
        (name, "passed", "") for name in GATES
    ]


def other_samples(ids: Mapping[int, list[int]], **more: Any) -> Evidence:
    return replace(
        RIGHT, killed=[killed(LOST, attempt(1, [*train(10, after=5), *samples(dict(ids), **more)]))]
    )


WRONG = {
    "parameters differ": (
        replace(
            RIGHT,
            killed=[
                killed(
                    LOST,
                    attempt(1, [*train(9, after=5), step(5, "x", "s10"), *samples(some(5, 10))]),
                )
            ],
        ),
        "parameters",
        "attempt 1, which resumed from step 5, diverged at step 10: its gradients are others",
    ),
    "buffers differ": (
        replace(
            RIGHT,
            killed=[
                killed(
                    LOST,
                    attempt(
                        1,
                        [
                            *train(9, after=5),
                            step(5, "w10", "s10", buffers="x"),
                            *samples(some(5, 10)),
                        ],
                    ),
                )
            ],
        ),
        "parameters",
        "buffers, such as BatchNorm's averages, are others",
    ),
    "a step is left out": (
        replace(
            RIGHT, killed=[killed(LOST, attempt(1, [*train(9, after=5), *samples(some(5, 10))]))]
        ),
        "parameters",
        "attempt 1 ended at step 9, of 10",
    ),
    "anew": (
        replace(RIGHT, killed=[killed(LOST, attempt(1, [*train(10), *samples(IDS)]))]),
        "resumed",
        "each attempt started at step 0 again",
    ),
    "a sample is missing": (
        other_samples({**some(5, 9), 9: [27, 28]}),
        "samples",
        "epoch 0: of the ids of its samples, 1 are missing (29)",
    ),
    "a sample is there twice": (
        other_samples({**some(5, 9), 9: [27, 28, 29, 27]}),
        "samples",
        "epoch 0: of the ids of its samples, 1 are too many (27)",
    ),
    "another loss": (
        other_samples(some(5, 10), loss="x"),
        "replays",
        "step 5 of rank 0: attempt 1 had another loss",
    ),
    "another order": (
        other_samples({**some(5, 10), 5: IDS[5][::-1]}),
        "replays",
        "step 5 of rank 0: attempt 1 had other samples",
    ),
    "a kill missed": (replace(RIGHT, planned=2), "kills", "1 of 2 kills hit the training"),
    "a process lives": (
        replace(RIGHT, killed=[killed(replace(LOST, left=2), BACK)]),
        "kills",
        "2 processes could not",
    ),
    "a crash": (
        replace(
            RIGHT,
            killed=[
                RIGHT.killed[0],
                killed(LOST, attempt(1, [], "failed", last_lines="KeyError: 1")),
            ],
        ),
        "ends",
        "attempt 1, started after a kill after a step, failed with exit code 0:\nKeyError: 1",
    ),
    "a crash on a torn file": (
        replace(
            RIGHT,
            killed=[
                RIGHT.killed[0],
                killed(replace(LOST, torn_file="a/b.pt"), attempt(1, [], "failed")),
            ],
        ),
        "ends",
        "started after a kill while a/b.pt was written, failed",
    ),
    "a hang": (
        replace(RIGHT, killed=[RIGHT.killed[0], killed(LOST, attempt(1, [], "hung"))]),
        "ends",
        "did not end within 1 s",
    ),
    "chance in the parameters": (
        replace(
            RIGHT,
            second=undisturbed(
                [start("w0", ""), step(1, "x", "s", lr=0.5), *train(10)[2:], *samples(IDS)]
            ),
        ),
        "repeats",
        "two undisturbed runs differ from step 1 on: the learning rate is 0.5, not 0.01",
    ),
    "chance in the samples": (
        replace(RIGHT, second=undisturbed([*train(10), *samples({**IDS, 3: [0, 0, 0]})])),
        "repeats",
        "two undisturbed runs logged other samples",
    ),
    "chance in the number of steps": (
        replace(RIGHT, second=undisturbed([*train(9), *samples(IDS)])),
        "repeats",
        "two undisturbed runs made 10 and 9 steps",
    ),
}


def test_a_wrong_one_fails_its_gate_only() -> None:
    for name in WRONG:
        evidence, gate, said = WRONG[name]
        assert list(failed(evidence)) == [gate]
        assert said in failed(evidence)[gate]


def test_each_gate_has_a_wrong_one() -> None:
    assert {gate for _, gate, _ in WRONG.values()} == set(GATES)


def test_nothing_else_is_judge_if_undisturbed_runs_differ() -> None:
    evidence, _, _ = WRONG["chance in the samples"]
    assert skipped(evidence) == set(GATES) - {"repeats"}


def test_what_cannot_be_judge_is_skipped() -> None:
    crash = replace(RIGHT, killed=[killed(LOST, attempt(1, [], "failed"))])
    assert skipped(crash) == {"kills", "resumed", "parameters", "samples", "replays"}
    silent = [attempt(0, train(7), "killed"), attempt(1, train(10, after=5))]
    unlogged = replace(
        RIGHT, first=undisturbed(train(10)), second=undisturbed(train(10)), killed=[killed(*silent)]
    )
    assert skipped(unlogged) == {"samples", "replays"} and not failed(unlogged)
    assert sum("SampleLog" in gate.reason for gate in judge(unlogged)) == 1


def test_no_step_done_again_is_no_replay() -> None:
    lost, back = attempt(0, [*train(5), *samples(some(0, 5))], "killed"), BACK
    assert skipped(replace(RIGHT, killed=[killed(lost, back)])) == {"replays"}


def test_a_kill_before_the_first_checkpoint_is_no_fault() -> None:
    early = attempt(0, [*train(2), *samples(some(0, 2))], "killed")
    lost, back = replace(LOST, number=1), replace(BACK, number=2)
    assert not failed(replace(RIGHT, killed=[killed(early, lost, back)]))


def test_unknown_parameters_are_not_the_first_ones() -> None:
    """As of a checkpoint in half precision: it resumes, and wrongly."""
    back = attempt(1, [start("half", "s5"), *train(10, after=5)[1:], *samples(some(5, 10))])
    assert "resumed" not in failed(replace(RIGHT, killed=[killed(LOST, back)]))


def test_a_later_attempt_owns_a_step() -> None:
    """What was done in vain does not count, neither twice nor otherwise."""
    lost = attempt(0, [*train(7), *samples({**some(0, 6), 6: [99, 98, 97]})], "killed")
    assert list(failed(replace(RIGHT, killed=[killed(lost, BACK)]))) == ["replays"]


def test_each_epoch_counts_by_itself() -> None:
    def two(ids: Mapping[int, list[int]]) -> list[Any]:
        early, late = (
            {n: i for n, i in ids.items() if (n < 5) is first} for first in (True, False)
        )
        return [*samples(early, epoch=0), *samples(late, epoch=1)]

    swapped = {**some(5, 9), 9: IDS[0]}
    rows = [*train(10), *two(IDS)]
    wrong = attempt(1, [*train(10, after=5), *two(swapped)])
    right = replace(RIGHT, first=undisturbed(rows), second=undisturbed(rows))
    found = failed(
        replace(right, killed=[killed(attempt(0, [*train(5), *two(some(0, 5))], "killed"), wrong)])
    )
    assert found == {
        "samples": (
            "epoch 1: of the ids of its samples, 3 are missing (27, 28, 29) and 3 are too many (0,"
            " 1, 2)"
        )
    }


def test_samples_whose_steps_the_weights_lack_are_lost() -> None:
    """The cursor lies ahead of the checkpoint: what was trained after it is neither in the weights
    nor done again.
    """
    ahead = attempt(1, [*train(10, after=5), *samples(some(7, 10))])
    found = failed(replace(RIGHT, killed=[killed(LOST, ahead)]))
    assert found == {
        "samples": "epoch 0: of the ids of its samples, 6 are missing (15, 16, 17 and 3 more)"
    }


def test_a_checkpoint_older_than_the_last_attempt_loses_its_samples_too() -> None:
    """Attempt 1 goes on from step 5 and saves nothing; attempt 2 goes on from step 3."""
    second = attempt(1, [*train(8, after=5), *samples(some(5, 8))], "killed")
    right = attempt(2, [*train(10, after=3), *samples(some(3, 10))])
    assert not failed(replace(RIGHT, killed=[killed(LOST, second, right)]))
    ahead = attempt(2, [*train(10, after=3), *samples(some(8, 10))])
    found = failed(replace(RIGHT, killed=[killed(LOST, second, ahead)]))
    assert found == {
        "samples": "epoch 0: of the ids of its samples, 15 are missing (9, 10, 11 and 12 more)"
    }


def test_a_file_of_final_parameters_is_compared_besides() -> None:
    wrong = attempt(1, [*train(9, after=5), step(5, "x", "s"), *samples(some(5, 10))])
    with_file = Evidence(
        undisturbed(final="a"), undisturbed(final="a"), [killed(LOST, BACK, final="a")], 1, 1
    )
    assert not failed(with_file)
    differs = failed(replace(with_file, killed=[killed(LOST, wrong, final="a")]))
    assert list(differs) == ["parameters"] and "diverged at step 10" in differs["parameters"]
    other = failed(replace(with_file, killed=[killed(LOST, BACK, final="it is not there")]))
    assert other == {"parameters": "the file of final parameters differs (it is not there)"}
    assert list(failed(replace(with_file, second=undisturbed(final="b")))) == ["repeats"]
    chance = undisturbed([*train(9), step(10, "x", "s"), *samples(IDS)], final="a")
    assert list(failed(replace(with_file, second=chance))) == ["repeats"]
