"""Where attempts go on, and what is said of the first difference: from lines as the probe writes
them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.lab.audit_logs import attempt, logged, samples, start, step, train

from deepvm.lab.certify.attempt import AttemptLog
from deepvm.lab.certify.history import History

REFERENCE = train(10)


def history(*attempts: Any) -> History:
    found = History(logged(REFERENCE), logged(REFERENCE))
    for one in attempts:
        found.add(one)
    return found


def test_an_attempt_is_found_by_its_parameters() -> None:
    found = history(attempt(0, train(7)), attempt(1, train(10, after=5)))
    assert [(one.resumed, one.reached) for one in found.placed] == [(0, 7), (5, 10)]
    assert found.first_difference().reason == ""


def test_of_equal_parameters_the_optimizer_decides() -> None:
    """A learning rate of 0 leaves parameters as they are."""
    rows = [start("w0", ""), step(1, "w0", "s1"), step(2, "w0", "s2"), step(3, "w3", "s3")]
    found = History(logged(rows), logged(rows))
    assert found.place_of(start("w0", "s1")) == 1
    assert found.place_of(start("w0", "s2")) == 2
    assert found.place_of(start("w0", "lost")) == 2


def test_optimizers_that_take_turns() -> None:
    rows = [
        start("d0", "", "d"),
        step(1, "d1", "", "d"),
        start("g0", "", "g"),
        step(2, "g1", "", "g"),
    ]
    rows += [step(3, "d2", "", "d"), step(4, "g2", "", "g")]
    found = History(logged(rows), logged(rows))
    assert found.place_of(start("d1", "", "d")) == 2
    assert found.place_of(start("d2", "", "d")) == 4


def test_a_later_attempt_is_found_after_one_that_had_diverged() -> None:
    wrong = [start("w5", "s5"), step(1, "x6", "s6"), step(2, "x7", "s7")]
    found = history(
        attempt(0, train(7)),
        attempt(1, wrong),
        attempt(2, [start("x7", "s7"), step(1, "x8", "s8")]),
    )
    assert [one.resumed for one in found.placed] == [0, 5, 7]


def test_unknown_parameters_are_told() -> None:
    found = history(attempt(0, train(7)), attempt(1, [start("half", "s5"), step(1, "x6", "s6")]))
    assert found.placed[1].resumed is None
    assert (
        found.first_difference().reason
        == "attempt 1 continued with parameters that the undisturbed run never had"
    )


def test_the_cause_is_reported() -> None:
    for state, row, said in [
        ("s5", step(1, "x", "s", lr=0.1), "the learning rate is 0.1, not 0.01"),
        ("none", step(1, "x", "s"), "the optimizer had another state, such as momentum, before it"),
        ("s5", step(1, "x", "s", torch="other"), "another random state of torch"),
        (
            "s5",
            step(1, "w6", "s6", buffers="other"),
            "buffers, such as BatchNorm's averages, are others",
        ),
        (
            "s5",
            step(1, "x", "s"),
            "its gradients are others: other samples, other buffers or random numbers of its own",
        ),
        (
            "none",
            step(1, "x", "s", lr=0.1),
            "the learning rate is 0.1, not 0.01; the optimizer had another state",
        ),
    ]:
        found = history(attempt(0, train(7)), attempt(1, [start("w5", state), row]))
        assert (
            f"which resumed from step 5, diverged at step 6: {said}"
            in found.first_difference().reason
        )


def test_samples_would_tell_more() -> None:
    """That is said where the script logs none."""
    wrong = [start("w5", "s5"), step(1, "x", "s")]
    unlogged = history(attempt(0, train(7)), attempt(1, wrong))
    assert unlogged.first_difference().reason.endswith(
        "; log samples (deepvm.lab.SampleLog) to know which"
    )
    rows = [*REFERENCE, *samples({n: [n] for n in range(10)})]
    found = History(logged(rows), logged(rows))
    found.add(attempt(0, wrong))
    assert found.first_difference().reason.endswith("random numbers of its own")


def test_random_states_that_nobody_seeds_are_no_cause() -> None:
    again = [step(1, "w1", "s1", python="other") if row.get("n") == 1 else row for row in REFERENCE]
    found = History(logged(REFERENCE), logged(again))
    found.add(attempt(0, [start("w0", ""), step(1, "x", "s1", python="third")]))
    assert "gradients are others" in found.first_difference().reason
    seeded = history(attempt(0, [start("w0", ""), step(1, "x", "s1", python="third")]))
    assert "another random state of Python" in seeded.first_difference().reason


def test_the_rank_that_shows_it_is_named() -> None:
    def on_both(rows: list[Any], other: list[Any]) -> AttemptLog:
        one, two = logged(rows), logged(other)
        return AttemptLog({0: one.starts[0], 1: two.starts[0]}, {0: one.steps[0], 1: two.steps[0]})

    found = History(on_both(REFERENCE, REFERENCE), on_both(REFERENCE, REFERENCE))
    wrong = [start("w5", "s5"), step(1, "x", "s")]
    other = [start("w5", "s5"), step(1, "x", "s", torch="other")]
    found.add(replace(attempt(1, []), logged=on_both(wrong, other)))
    assert found.first_difference().reason.endswith(
        "diverged at step 6: on rank 1, another random state of torch"
    )


def test_too_few_and_too_many_steps_are_told() -> None:
    assert (
        history(attempt(0, train(9))).first_difference().reason
        == "attempt 0 ended at step 9, of 10"
    )
    more = history(attempt(0, train(10)), attempt(1, [start("w10", "s10"), step(1, "w11", "s11")]))
    assert (
        more.first_difference().reason == "attempt 1 resumed from step 10 and made step 11, of 10"
    )


def test_an_attempt_without_steps() -> None:
    """It finds that all is done, or it fails; then nobody knows where it would have gone on."""
    found = history(attempt(0, train(10)), attempt(1, []), attempt(2, [], state="failed"))
    assert [one.resumed for one in found.placed] == [0, 10, None]


def test_a_script_may_log_its_steps_itself() -> None:
    rows = [
        {
            "kind": "samples",
            "global_step": n,
            "epoch": 0,
            "sample_ids": ["1"],
            "loss_hex": None,
            "time": n,
        }
        for n in range(5, 9)
    ]
    found = History(logged(rows), logged(rows))
    assert found.place_of(rows[2]) == 2 and found.steps == 4
    assert found.place_of({**rows[2], "global_step": 99}) is None
