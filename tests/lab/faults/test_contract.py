"""What every fault promises, over the registry: it strikes when said, ends the attempt or does not,
and is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.effort import sampled
from support.lab.trainings import Ran, ran

from deepvm.errors import RequestError
from deepvm.lab.faults.fault import DiskFault, FaultInjection, FaultSchedule, MachineFault
from deepvm.lab.launchers.forkserver import Forkserver
from deepvm.lab.registry import FAULTS, find_fault, strike_document
from deepvm.lab.running.launcher import Launcher, Order

pytestmark = pytest.mark.xdist_group("lab-faults")
DISK = [name for name in FAULTS if isinstance(find_fault(name), DiskFault)]
AT_STEPS = [name for name in FAULTS if name not in DISK]
OF_MACHINES = [name for name in FAULTS if isinstance(find_fault(name), MachineFault)]
"""Only jobs of ``deepvm run`` have some: tests/lab/orchestrated."""
ENDS = [name for name in AT_STEPS if find_fault(name).ends and name not in OF_MACHINES]
HANGS = {"hang", "held-gil"}
AT = 6


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    made = Forkserver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def calm(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("calm") / "run", launcher, None)


# --- when they strike -----------------------------------------------------------------------------


def test_it_strikes_at_the_steps_that_are_given() -> None:
    for name in AT_STEPS:
        found = list(find_fault(name).strikes(name, FaultSchedule(at=[3, 9], rank=1), 20, 4))
        assert [(one.step, one.rank, one.delay_s) for one in found] == [(3, 1, 0.0), (9, 1, 0.0)]
        assert len({one.key for one in found}) == 2 and all(one.fault == name for one in found)


def test_random_strikes_are_those_of_their_seed() -> None:
    for name in AT_STEPS:
        fault = find_fault(name)
        draws = [
            list(fault.strikes(name, FaultSchedule(count=5, seed=seed), 40, 4))
            for seed in (1, 1, 2)
        ]
        assert draws[0] == draws[1] != draws[2]
        for found in draws:
            assert len({one.step for one in found}) == 5 and all(
                1 <= one.step <= 32 and 0 <= one.rank < 4 for one in found
            )
            assert all(one.delay_s == 0 for one in found) == (fault.moment is not None)


def test_random_strikes_leave_the_last_fifth_alone() -> None:
    """There training may end before they strike, and a run that ends well proves nothing."""
    for name in AT_STEPS:
        found = list(find_fault(name).strikes(name, FaultSchedule(count=1000), 40, 4))
        assert [one.step for one in found] == list(range(1, 33))
        assert [
            one.step for one in find_fault(name).strikes(name, FaultSchedule(count=3), 1, 1)
        ] == [1]


def test_random_kills_in_a_write_hit_the_rank_that_writes() -> None:
    found = [
        list(
            find_fault("kill").strikes(
                "kill", FaultSchedule(count=9, target="write", rank=r), 40, 4
            )
        )
        for r in (None, 2)
    ]
    assert [{one.rank for one in strikes} for strikes in found] == [{0}, {2}]


def test_disks_strike_at_no_step() -> None:
    for name in FAULTS:
        found = list(
            find_fault(name).strikes(name, FaultSchedule(at=[3], share=0.5, mbps=1.0), 20, 2)
        )
        assert (not found) is (name in DISK)


def test_an_order_is_the_same_from_its_file(tmp_path: Path) -> None:
    strike = FaultInjection("kill", 7, 1, "machine", 0.5, 0.125)
    assert FaultInjection.of(strike_document(strike)) == strike
    order = Order(tmp_path, 2, ["kill-7-1"], 5, ["tcp://a"])
    assert Order.read(order.write()) == order


@pytest.mark.parametrize("name", ["eio", "enospc"])
def test_bad_disks_draw_by_the_seed_of_the_matrix_and_of_the_run(name: str) -> None:
    fault = find_fault(name)
    assert isinstance(fault, DiskFault)
    seeds = {
        fault.faults(FaultSchedule(share=0.1, seed=given), seed)["seed"]
        for given in (0, 1)
        for seed in (0, 1, 101)
    }
    assert len(seeds) == 6


# --- what they do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampled(ENDS))
def test_it_ends_the_attempt_and_the_next_one_is_right(
    name: str, launcher: Launcher, calm: Ran, tmp_path: Path
) -> None:
    one = ran(tmp_path / "run", launcher, "blocking", FaultInjection(name, AT), hang_s=1.5)
    assert one.ended and one.wrong(calm) == {}
    first, second = one.supervisor["attempts"]
    assert list(first["struck"]) == first["causes"] == [f"{name}-{AT}-0"]
    assert first["state"] == ("hung" if name in HANGS else "failed") and first["exits"][0]
    assert AT - 1 <= first["reached_step"] <= AT + 2
    assert 0 <= first["detect_s"] < 60
    damaged = int(name in ("torn", "flip"))
    assert (
        first["broken"] == (["checkpoints/step-000000004"] if damaged else [])
        and second["broken"] == []
    )
    assert second["damaged"] == damaged and second["resumed_step"] == (0 if damaged else 4)


@pytest.mark.parametrize("name", ["torn", "flip"])
def test_nothing_to_damage_is_recorded_too(name: str, launcher: Launcher, tmp_path: Path) -> None:
    one = ran(tmp_path / "run", launcher, "blocking", FaultInjection(name, AT), checkpoint_every=12)
    assert one.ended and [attempt["broken"] for attempt in one.supervisor["attempts"]] == [[], []]


def test_a_launcher_without_an_agent_cannot_lose_it(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="this launcher has no process besides the ranks"):
        ran(tmp_path / "run", launcher, "blocking", FaultInjection("kill", AT, target="agent"))


@pytest.mark.parametrize("target", ["worker", "machine", "write"])
def test_kills_hit_their_target(target: Any, launcher: Launcher, calm: Ran, tmp_path: Path) -> None:
    one = ran(tmp_path / "run", launcher, "blocking", FaultInjection("kill", AT, target=target))
    assert one.ended and one.wrong(calm) == {}
    first, second = one.supervisor["attempts"]
    assert first["exits"] == [-9]
    assert second["resumed_step"] == 4
    events = {row["event"] for row in one.records.events(0)}
    assert ("killed-in-write" in events) == (target == "write")
    if target == "write":  # armed at step 6, struck in the checkpoint of step 8
        armed, struck = (
            next(r["time"] for r in one.records.events(0) if r["event"] == e)
            for e in ("armed", "killed-in-write")
        )
        assert first["struck"] == {f"kill-{AT}-0": struck} and struck > armed
        assert first["detect_s"] == pytest.approx(first["detected"] - struck)


def test_a_straggler_is_waited_for(launcher: Launcher, calm: Ran, tmp_path: Path) -> None:
    one = ran(tmp_path / "run", launcher, "blocking", FaultInjection("stop", AT, seconds=0.5))
    (only,) = one.supervisor["attempts"]
    assert one.ended and one.wrong(calm) == {} and only["struck"]
    times = [row["time"] for row in one.records.steps[0]]
    assert max(b - a for a, b in zip(times, times[1:], strict=False)) >= 0.4


def test_a_lost_node_ends_nothing(launcher: Launcher, calm: Ran, tmp_path: Path) -> None:
    one = ran(
        tmp_path / "run",
        launcher,
        "deepvm-tcp",
        FaultInjection("node", AT, seconds=0.1),
        FaultInjection("exit", 10),
    )
    assert one.ended and one.wrong(calm) == {}
    assert one.supervisor["attempts"][0]["struck"].keys() == {"node-6-0", "exit-10-0"}


@pytest.mark.parametrize("name", DISK)
@pytest.mark.parametrize("strategy", ["blocking", "torch-save"])
def test_a_bad_disk_costs_no_step(
    name: str, strategy: str, launcher: Launcher, calm: Ran, tmp_path: Path
) -> None:
    """Even a share that would draw nothing fails once: else a run would prove nothing."""
    when = FaultSchedule(mbps=0.5) if name == "slow" else FaultSchedule(share=0.001)
    one = ran(tmp_path / "run", launcher, strategy, disk={name: when})
    assert one.ended and one.wrong(calm) == {}
    (only,) = one.supervisor["attempts"]
    assert only["disk_errors"] == (0 if name == "slow" else 1)
    first = one.records.checkpoints[0]
    if name == "slow":
        assert first["foreground_s"] > 0.8 * first["bytes"] / 0.5e6
    else:
        assert (first["retries"], bool(first["error"])) == (
            (1, False) if strategy == "blocking" else (0, True)
        )
