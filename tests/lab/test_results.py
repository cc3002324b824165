"""What runs have cost, against SciPy's intervals and figures that were written down by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.lab import made_folder
from support.lab.made_folder import make

from deepvm.lab.checked import check
from deepvm.lab.results import Cost, Estimate, SuiteResult, suites_of

VALUES = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=60)


@given(VALUES)
def test_intervals_are_those_of_students_t(values: list[float]) -> None:
    found = Estimate.of(values)
    error = stats.sem(values)
    assert found.n == len(values) and found.mean == pytest.approx(stats.tmean(values))
    assert found.low is not None and found.high is not None
    if error > 1e-9 * found.mean:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=stats.tmean(values), scale=error)
        assert (found.high - found.low) / (high - low) == pytest.approx(1, rel=1e-3)
        assert found.high - found.mean == pytest.approx(found.mean - found.low)


def test_intervals_need_no_scipy_and_stay_as_published() -> None:
    """It is an extra that 'deepvm lab report' does without; files are compared byte for byte."""
    code = (
        "import sys; sys.modules['scipy'] = None; from deepvm.lab.results import Estimate;"
        " print(*(Estimate.of([0.0, 2.0] * n).high for n in (1, 8, 10)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["13.706", "1.5502218340512004", "1.480083791436128"], done.stderr


@given(VALUES)
def test_ratios_are_a_geometric_mean_with_the_interval_of_logarithms(ratios: list[float]) -> None:
    found, logs = Estimate.of_ratios(ratios), Estimate.of([math.log(one) for one in ratios])
    assert found.mean == pytest.approx(stats.gmean(ratios))
    assert (
        found.low is not None
        and logs.low is not None
        and math.log(found.low) == pytest.approx(logs.low)
    )
    turned = Estimate.of_ratios([1 / one for one in ratios])
    assert turned.mean == pytest.approx(1 / found.mean) and turned.high == pytest.approx(
        1 / found.low
    )


def test_a_single_value_has_no_interval() -> None:
    assert Estimate.of([2.5]) == Estimate(2.5, None, None, 1)
    assert Estimate.of_ratios([2.5]).low is None


@given(VALUES, st.floats(1e-3, 1e3))
def test_another_unit_changes_nothing(values: list[float], factor: float) -> None:
    one, other = Estimate.of(values), Estimate.of([factor * value for value in values])
    assert one.low is not None and other.low is not None
    assert other.mean == pytest.approx(factor * one.mean)
    assert other.low == pytest.approx(factor * one.low, rel=1e-6, abs=1e-9 * factor * one.mean)


def suites(out: Path) -> dict[str, SuiteResult]:
    _, records = check(out)
    return {one.failure: one for one in suites_of(records)}


def test_each_part_of_a_run(tmp_path: Path) -> None:
    """12 steps of 0.25 s and failures at 6 and 10: steps 5, 6, 9 and 10 are done again, behind
    checkpoints each 4.
    """
    cost = suites(make(tmp_path, seeds=(0,)))["late"].variants["blk"].costs[0]
    step_s, stall_s = made_folder.STEP_S, made_folder.STALLS_S["blocking"]
    assert cost.run == "tokens-gpt-tiny-late-blk-s0" and cost.passed and cost.restarts == 2
    assert cost.compute_s == pytest.approx(16 * step_s) and cost.repeated_s == pytest.approx(
        4 * step_s
    )
    assert cost.stall_s == pytest.approx(3 * stall_s)
    assert (cost.write_s, cost.snapshot_s) == pytest.approx((3 * (stall_s - 0.02), 3 * 0.02))
    assert cost.background_s == 0
    parts = (cost.detect_s, cost.restart_s, cost.restore_s)
    assert parts == pytest.approx(
        (2 * made_folder.DETECT_S, 2 * made_folder.RESTART_S, 2 * made_folder.RESTORE_S)
    )
    assert cost.replay_s == pytest.approx(4 * step_s)
    assert cost.goodput == pytest.approx(12 / cost.wall_s)
    spent = cost.compute_s + cost.stall_s + sum(parts)
    assert cost.wall_s - spent == pytest.approx(
        made_folder.START_S + made_folder.RESTORE_S, abs=0.1
    )


def test_runs_without_failures_stand_in_each_suite(tmp_path: Path) -> None:
    found = suites(make(tmp_path, seeds=(0, 1)))
    assert set(found) == {"base", "late"}
    assert found["base"].variants["ref-blk"].costs == found["late"].variants["ref-blk"].costs
    assert [len(one.costs) for one in found["base"].variants.values()] == [2] * 6


def test_ratios_are_of_the_same_seed(tmp_path: Path) -> None:
    """Seeds differ by half in their steps; within a seed nothing is left to chance."""
    late = suites(make(tmp_path, seeds=(0, 5)))["late"]
    by_seed = {
        seed: [c.goodput for n in ("ovl", "blk") for c in late.variants[n].costs if c.seed == seed]
        for seed in (0, 5)
    }
    ratios = [ovl / blk for ovl, blk in by_seed.values()]
    found = late.paired["ovl_over_blk"]
    assert found.n == 2 and found.mean == pytest.approx(stats.gmean(ratios))
    assert "blk_over_blk" not in late.paired


def test_what_does_not_pass_is_in_no_ratio(tmp_path: Path) -> None:
    late = suites(
        make(tmp_path, wrong={"tokens-gpt-tiny-late-ovl-s1", "tokens-gpt-tiny-late-blk-s2"})
    )["late"]
    assert late.paired["ovl_over_blk"].n == 1 and late.paired["deepvm_over_blk"].n == 2
    assert [cost.passed for cost in late.variants["ovl"].costs] == [True, False, True]


def test_losses_are_compared_with_an_undisturbed_run(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,))
    log = tmp_path / "runs" / "tokens-gpt-tiny-late-ovl-s0" / "rank_0.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    last = max(rows, key=lambda row: (row["global_step"], row["attempt"]))
    last["loss"] += 0.12
    last["loss_hex"] = last["loss"].hex()
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    late = suites(tmp_path)["late"].variants
    assert (
        late["ovl"].costs[0].loss_difference == pytest.approx(0.01)
        and late["blk"].costs[0].loss_difference == 0
    )


def test_damaged_records_are_said(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,))
    log = tmp_path / "runs" / "tokens-gpt-tiny-late-ovl-s0" / "checkpoint_rank0.jsonl"
    log.write_text(log.read_text().replace("background_s", "behind_s"))
    checked, records = check(tmp_path)
    ((run, reason),) = checked.incomplete
    assert (
        run == log.parent.name
        and "checkpoint_rank0.jsonl, line 1: damaged: it has no background_s" in reason
    )
    assert run not in {one.folder.name for one, _ in records}


BLK = "tokens-gpt-tiny-late-blk-s0"


def edit(out: Path, name: str, change: Callable[[Any], None]) -> Cost:
    """The cost of a run of which a document was changed, for the run of blocking late failures."""
    file = out / "runs" / BLK / name
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return suites(out)["late"].variants["blk"].costs[0]


def append_line(out: Path, name: str, row: dict[str, Any]) -> None:
    with (out / "runs" / BLK / name).open("a") as file:
        file.write(json.dumps(row) + "\n")


def append(out: Path, name: str, row: dict[str, Any]) -> Cost:
    append_line(out, name, row)
    return suites(out)["late"].variants["blk"].costs[0]


def test_what_is_written_after_the_last_step_is_counted_by_itself(tmp_path: Path) -> None:
    before = suites(make(tmp_path, seeds=(0,)))["late"].variants["blk"].costs[0]
    assert before.drain_s == 0
    cost = append(
        tmp_path,
        "worker_0.jsonl",
        {"event": "closed", "attempt": 2, "rank": 0, "time": 1.0, "seconds": 0.25},
    )
    assert cost.drain_s == 0.25 and cost.stall_s == before.stall_s


def test_a_stall_counts_whether_or_not_its_checkpoint_was_complete(tmp_path: Path) -> None:
    """One that was in flight at a failure has no line of its own."""
    before = suites(make(tmp_path, seeds=(0,)))["late"].variants["blk"].costs[0]
    cost = append(tmp_path, "worker_0.jsonl", made_folder.stall_row(1, 8, "blocking", 0.4, 1.0))
    assert cost.checkpoints == before.checkpoints
    assert cost.stall_s == pytest.approx(before.stall_s + 0.4)
    assert cost.snapshot_s == pytest.approx(before.snapshot_s + 0.02)
    assert cost.write_s == pytest.approx(before.write_s + 0.38)


def test_a_stall_in_a_step_is_no_time_of_the_step(tmp_path: Path) -> None:
    before = suites(make(tmp_path, seeds=(0,)))["late"].variants["blk"].costs[0]
    row = made_folder.stall_row(1, 8, "blocking", 0.4, 1.0)
    outside = append(tmp_path, "worker_0.jsonl", row)
    inside = append(tmp_path, "worker_0.jsonl", {**row, "in_step": True})
    assert outside.compute_s == before.compute_s and inside.compute_s == pytest.approx(
        before.compute_s - 0.4
    )
    assert inside.repeated_s == before.repeated_s


@pytest.mark.parametrize("seconds", [-0.5, "x", None])
def test_a_stall_that_is_no_time_is_damaged(tmp_path: Path, seconds: object) -> None:
    make(tmp_path, seeds=(0,))
    row = {**made_folder.stall_row(1, 8, "blocking", 0.4, 1.0), "seconds": seconds}
    append_line(tmp_path, "worker_0.jsonl", row)
    ((run, reason),) = check(tmp_path)[0].incomplete
    assert run == BLK and "damaged: seconds is" in reason


def test_checkpoints_that_were_skipped_are_counted(tmp_path: Path) -> None:
    before = suites(make(tmp_path, seeds=(0,)))["late"].variants["blk"].costs[0]
    assert (before.checkpoints, before.skipped) == (3, 0)
    row = made_folder.checkpoint_row(2, 12, "blocking", 0.02, 1.0)
    cost = append(tmp_path, "checkpoint_rank0.jsonl", {**row, "error": "skipped"})
    assert (cost.checkpoints, cost.skipped) == (3, 1)


def test_parts_that_are_not_known_are_not_zero(tmp_path: Path) -> None:
    make(tmp_path, seeds=(0,))

    def forget(number: int) -> Callable[[Any], None]:
        return lambda found: found["attempts"][number].update(detect_s=None)

    one = edit(tmp_path, "supervisor.json", forget(0))
    assert one.detect_s == pytest.approx(made_folder.DETECT_S) and one.known["detect_s"] == 1
    assert one.part_s("detect") == pytest.approx(made_folder.DETECT_S)
    assert (
        one.part_s("restart") == pytest.approx(made_folder.RESTART_S)
        and one.known["restart_s"] == 2
    )
    none = edit(tmp_path, "supervisor.json", forget(1))
    assert none.detect_s is None and none.part_s("detect") is None and none.recovery_s is None


@pytest.mark.parametrize("wall_s", [0, -1.0, math.nan, math.inf])
def test_a_run_that_took_no_time_is_damaged(tmp_path: Path, wall_s: float) -> None:
    make(tmp_path, seeds=(0,))
    file = tmp_path / "runs" / BLK / "supervisor.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "wall_s": wall_s}))
    ((run, reason),) = check(tmp_path)[0].incomplete
    assert run == BLK and reason.startswith("supervisor.json: damaged: wall_s is")
