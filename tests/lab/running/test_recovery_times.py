"""The parts of a recovery add up: nothing between a failure and the next step that counts is left
out.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from deepvm.lab.faults.fault import FaultInjection
from deepvm.lab.launchers.forkserver import Forkserver
from deepvm.lab.records import SUPERVISOR, Events, Lines, events_of, steps_of
from deepvm.lab.registry import STRATEGIES, strike_document
from deepvm.lab.running.launcher import Attempt, Plan
from deepvm.lab.running.supervisor import RankLauncher

CONFIG: dict[str, Any] = {
    "steps": 6,
    "controls": [],
    "strategy": None,
    "world": 1,
    "worlds": [[0, 1]],
    "strikes": [strike_document(FaultInjection("exit", 4))],
}
LOADS_S, RESTORES_S, STEP_S = 3.0, 0.5, 0.25


class Ended(Attempt):
    """An attempt that has ended already."""

    def __init__(self, code: int) -> None:
        self._code = code

    def exits(self) -> Sequence[int | None]:
        return [self._code]

    def workers(self) -> Sequence[int]:
        return [0]

    def kill_all(self) -> None:
        pass


class Scripted(RankLauncher):
    """Attempts of one rank that meets at once, then loads data for 3 s, restores for 0.5 s, and
    steps each 0.25 s.
    """

    begins: ClassVar[dict[int, int]] = {0: 0, 1: 2}

    def start(self, order: Path, world: int, port: int) -> Attempt:
        number = json.loads(order.read_bytes())["attempt"]
        begins = self.begins[number]
        folder, now = order.parent, time.time()
        events = Events(folder, 0, number)
        events.note("joined")
        events.note("restored", step=begins, seconds=RESTORES_S)
        lines = Lines(folder / steps_of(0))
        restored = now + LOADS_S + RESTORES_S
        for place, step in enumerate(range(begins, 4 if not number else 6), 1):
            row = {
                "attempt": number,
                "global_step": step,
                "seconds": STEP_S,
                "time": restored + place * STEP_S,
            }
            lines.add(row)
        lines.close()
        if not number:
            events.note("strike", key="exit-4-0")
        rows = [json.loads(line) for line in (folder / events_of(0)).read_text().splitlines()]
        for row in rows:  # when it would have restored
            if row["event"] == "restored" and row["attempt"] == number:
                row["time"] = restored
        (folder / events_of(0)).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Ended(137 if not number else 0)

    def close(self) -> None:
        pass


def test_loading_data_and_model_is_part_of_a_restart(tmp_path: Path) -> None:
    assert Scripted().run(Plan(tmp_path, CONFIG))
    first, second = json.loads((tmp_path / SUPERVISOR).read_text())["attempts"]
    assert second["restart_s"] == pytest.approx(LOADS_S, abs=0.5)
    assert second["restore_s"] == RESTORES_S
    assert second["replay_s"] == pytest.approx(2 * STEP_S, abs=0.01)  # steps 2 and 3
    restored_s = second["began"] + LOADS_S + RESTORES_S
    assert first["detected"] + second["restart_s"] + second["restore_s"] == pytest.approx(
        restored_s, abs=0.5
    )


class DiesOnce(Scripted):
    """Behind the failure an attempt ends, half a second after its start, before it has restored."""

    begins: ClassVar[dict[int, int]] = {0: 0, 2: 2}

    def start(self, order: Path, world: int, port: int) -> Attempt:
        number = json.loads(order.read_bytes())["attempt"]
        if number == 1:
            Events(order.parent, 0, 1).note("joined")
            time.sleep(0.5)
            return Ended(1)
        return super().start(order, world, port)


def test_an_attempt_that_never_restores_is_part_of_the_restart(tmp_path: Path) -> None:
    assert DiesOnce().run(Plan(tmp_path, CONFIG))
    first, second, third = json.loads((tmp_path / SUPERVISOR).read_text())["attempts"]
    assert second["state"] == "failed" and second["detected"] - first["detected"] >= 0.5
    # All of it is in the next one
    assert not {"detect_s", "restart_s", "restore_s", "replay_s"} & set(second)
    assert first["detected"] + third["restart_s"] == pytest.approx(
        third["began"] + LOADS_S, abs=0.3
    )
    assert third["restart_s"] >= LOADS_S + 0.5
    assert (third["restore_s"], third["replay_s"]) == (
        RESTORES_S,
        pytest.approx(2 * STEP_S, abs=0.01),
    )


@pytest.mark.slow
def test_no_run_is_measured_with_the_loading_of_torch() -> None:
    launcher = Forkserver()
    launcher.ready()
    began = time.monotonic()
    launcher.ready()
    child = multiprocessing.get_context("forkserver").Process(target=print)
    child.start()
    child.join()
    assert time.monotonic() - began < 1 and child.exitcode == 0


@pytest.mark.slow
def test_no_strategy_is_measured_with_its_imports() -> None:
    launcher = Forkserver()
    launcher.ready()
    names = sorted({one.partition(":")[0] for one in STRATEGIES.values()})
    code = f"import sys; sys.exit(not set({names}) <= set(sys.modules))"
    child = multiprocessing.get_context("forkserver").Process(target=exec, args=(code,))
    child.start()
    child.join()
    assert child.exitcode == 0
