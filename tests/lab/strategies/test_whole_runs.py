"""Every strategy through whole trainings with failures, and the verdict of the gates.

Kills anywhere, many times.

A strategy that does not survive a failure is named with the gates that it fails: the lab's verdict
is to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from support.effort import THOROUGH
from support.lab.trainings import Ran, ran

from deepvm.lab.faults.fault import FaultInjection, FaultSchedule
from deepvm.lab.launchers.forkserver import Forkserver
from deepvm.lab.registry import STRATEGIES, find_fault, find_strategy
from deepvm.lab.running.launcher import Launcher

pytestmark = pytest.mark.xdist_group("lab-faults")
NO_CHECKSUM = {"torch-save", "dcp", "dcp-async"}
"""A bit that has changed may be loaded without a word: then replays and parameters are others."""
BATCH_NORM = {
    "dataset": {"name": "digits", "path": None},
    "model": {"name": "resnet8", "width": 8, "norm": "batch", "dropout": 0.0},
}
WORLDS: dict[str, dict[str, Any]] = {
    "one": {"world": 1},
    "two": {"world": 2},
    "four": {"world": 4},
    "elastic": {"world": 4, "worlds": [[0, 4], [4, 2], [8, 1], [20, 4]], "virtual_shards": 4},
    "accumulate": {"world": 2, "accumulate": 4},
    "batch-norm": {"world": 2, **BATCH_NORM},
    "elastic-batch-norm": {
        "world": 4,
        "worlds": [[0, 4], [7, 2], [13, 4]],
        "virtual_shards": 4,
        **BATCH_NORM,
    },
}
# What strikes from outside may come some steps late: it must not come behind the last one
STEPS, EVERY = 40, 6
MBPS = 1.0
"""Of a slow disk."""
Made = Callable[..., Ran]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Runs, those without failures once for each world."""
    launcher: Launcher = Forkserver()
    folder, number = tmp_path_factory.mktemp("runs"), iter(range(10_000))

    def make(world: str, strategy: str | None, *strikes: FaultInjection, **changes: Any) -> Ran:
        options = {"steps": STEPS, "checkpoint_every": EVERY, **WORLDS[world], **changes}
        return ran(folder / f"{next(number)}", launcher, strategy, *strikes, **options)

    make.calm = cache(lambda world, **changes: make(world, None, **changes))  # type: ignore[attr-defined]
    yield make
    launcher.close()


def wrong(made: Made, one: Ran, world: str, **changes: Any) -> dict[str, str]:
    return one.wrong(made.calm(world, **changes))  # type: ignore[attr-defined]


@pytest.mark.system
def test_two_ranks_come_back_after_a_rank_has_ended(made: Made) -> None:
    """The quick one of those below."""
    one = made("two", "deepvm", FaultInjection("exit", 8), FaultInjection("kill", 15, 1))
    assert one.ended and wrong(made, one, "two") == {} and one.supervisor["restarts"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world", WORLDS)
def test_bit_for_bit_in_every_world(world: str, strategy: str, made: Made) -> None:
    one = made(
        world, strategy, FaultInjection("exit", 7), FaultInjection("kill", 16, target="machine")
    )
    assert one.ended and wrong(made, one, world) == {} and one.supervisor["restarts"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "fault", ["torn", "flip", "segfault", "loader", "stop", "hang", "held-gil", "write"]
)
def test_every_failure(fault: str, strategy: str, made: Made) -> None:
    strike = (
        FaultInjection("kill", 11, target="write")
        if fault == "write"
        else FaultInjection(fault, 15, seconds=0.3)
    )
    one = made("two", strategy, strike, hang_s=4.0)
    found = wrong(made, one, "two")
    if fault == "flip" and strategy in NO_CHECKSUM:
        # The bit is in no step's loss if it is momentum's or a statistic's; nothing else may be
        # wrong.
        assert one.ended and set(found) <= {"replays", "parameters"}, found
        return
    assert one.ended and found == {}
    assert one.supervisor["restarts"] == int(find_fault(strike.fault).ends)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("disk", ["eio", "enospc", "slow"])
def test_every_bad_disk(disk: str, strategy: str, made: Made) -> None:
    when = FaultSchedule(mbps=MBPS) if disk == "slow" else FaultSchedule(share=0.3)
    one = made("two", strategy, FaultInjection("exit", 15), disk={disk: when}, checkpoint_every=3)
    assert one.ended and wrong(made, one, "two") == {}
    if disk != "slow":
        assert any(attempt["disk_errors"] for attempt in one.supervisor["attempts"])
        return
    assert not any(attempt["disk_errors"] for attempt in one.supervisor["attempts"])
    made_s = [
        (row["foreground_s"] + row["background_s"], row["bytes"])
        for row in one.records.checkpoints
        if not row["error"]
    ]
    # Two ranks may write at the same time; without a slow disk a checkpoint takes 5 to 50 ms.
    assert made_s and all(seconds >= size / 2 / (MBPS * 1e6) for seconds, size in made_s)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_writes_can_be_killed_in_a_write(strategy: str, made: Made) -> None:
    """Rank 1, too, where all ranks write.

    Where rank 0 alone does, the failure never happens, and the gate says so.
    """
    one = made("two", strategy, FaultInjection("kill", 11, 1, target="write"))
    found = wrong(made, one, "two")
    if find_strategy(strategy).all_ranks_write:
        assert one.ended and found == {} and one.supervisor["restarts"] == 1
    else:
        assert found == {"failures": "kill-11-1 has never struck"}


@pytest.mark.slow
def test_a_lost_node_among_exits(made: Made) -> None:
    one = made(
        "two",
        "deepvm-tcp",
        FaultInjection("exit", 7),
        FaultInjection("node", 10, seconds=0.2),
        FaultInjection("exit", 16),
    )
    assert one.ended and wrong(made, one, "two") == {} and one.supervisor["restarts"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["blocking", "overlapped", "deepvm", "dcp-async"])
def test_killed_anywhere_no_result_is_wrong(strategy: str, made: Made) -> None:
    """Ten kills in a run, each so long after a random step that it lands anywhere in one: 100 of
    them if thorough.
    """
    struck, options = (
        0,
        {"steps": 240, "checkpoint_every": 6},
    )  # steps take a few ms, and the last kill must come in time
    for seed in range(20):
        strikes = list(
            find_fault("kill").strikes("kill", FaultSchedule(count=10, seed=seed), 240, 2)
        )
        one = made("two", strategy, *strikes, **options)
        found = wrong(made, one, "two", **options)
        assert one.ended and found == {}, (seed, found)
        struck += sum(len(attempt["causes"]) for attempt in one.supervisor["attempts"])
        if struck >= (100 if THOROUGH else 5):
            return
    pytest.fail(f"{struck} kills have struck")
