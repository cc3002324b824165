"""The supervisor: what ends an attempt, its cause, when a run is given up.

Ranks are small scripts without torch.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.lab.made_runs import CONFIG

from deepvm.lab.faults.fault import FaultInjection
from deepvm.lab.registry import strike_document
from deepvm.lab.running.launcher import Attempt, Plan, StoppedError
from deepvm.lab.running.supervisor import RankLauncher
from deepvm.profiling.checkpoint.node_process import TOKEN

RANK = textwrap.dedent("""
    import json, os, sys, time
    folder, order, rank, attempt = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
    def line(name, **row):
        with open(f"{folder}/{name}", "a") as file:
            file.write(json.dumps({"attempt": attempt, "rank": rank, "time": time.time(), **row}) + "\\n")
    def event(name, **facts):
        line(f"worker_{rank}.jsonl", event=name, **facts)
    event("started", pid=os.getpid())
    event("joined")
    first = int(os.environ.get("FIRST", 0)) if attempt else 0
    event("restored", step=first, seconds=0.01)
    for step in range(first, order["until"]):
        BODY
        line(f"rank_{rank}.jsonl", global_step=step)
        time.sleep(0.01)
    event("ended", step=order["until"])
    """)  # noqa: E501


class Scripts(RankLauncher):
    """Ranks that run a script; ``body`` is what they do before each step."""

    def __init__(self, body: str) -> None:
        self._code, self.started = RANK.replace("BODY", body), 0
        self.killed: list[int] = []

    def start(self, order: Path, world: int, port: int) -> Attempt:
        number = self.started
        self.started += 1
        words = [sys.executable, "-c", self._code, str(order.parent), str(order)]
        with (order.parent / "workers.log").open("ab") as log:
            made = [
                subprocess.Popen([*words, str(r), str(number)], stderr=log) for r in range(world)
            ]
        return _Ranks(made, self)


class _Ranks(Attempt):
    def __init__(self, made: Sequence[subprocess.Popen[bytes]], of: Scripts) -> None:
        self._made, self._of = made, of

    def exits(self) -> Sequence[int | None]:
        return [one.poll() for one in self._made]

    def workers(self) -> Sequence[int]:
        return [one.pid for one in self._made]

    def kill_all(self) -> None:
        for one in self._made:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            one.wait()
            self._of.killed.append(one.pid)


def plan_of(folder: Path, *strikes: FaultInjection, hang_s: float = 5.0, **changes: Any) -> Plan:
    planned = [strike_document(one) for one in strikes]
    return Plan(folder, {**CONFIG, "steps": 10, "strikes": planned, **changes}, hang_s)


def supervised(
    folder: Path, body: str, *strikes: FaultInjection, **changes: Any
) -> tuple[bool, dict[str, Any], Scripts]:
    """Whether the run has ended well, what the supervisor wrote, and the launcher."""
    folder.mkdir()
    hang_s = changes.pop("hang_s", 5.0)
    launcher = Scripts(body)
    ended = launcher.run(plan_of(folder, *strikes, hang_s=hang_s, **changes))
    return ended, json.loads((folder / "supervisor.json").read_text()), launcher


def test_an_undisturbed_run_is_one_attempt(tmp_path: Path) -> None:
    ended, found, launcher = supervised(tmp_path / "run", "pass")
    assert ended and found["state"] == "completed" and found["restarts"] == 0
    (one,) = found["attempts"]
    assert (
        one["state"] == "completed"
        and one["reached_step"] == 10
        and one["causes"] == []
        and launcher.started == 1
    )
    assert not list((tmp_path / "run").glob("order-*.json")) and len(launcher.killed) == 2


def test_a_planned_exit_is_a_restart_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRST", "4")
    strikes = 'event("strike", key="exit-6-0"); os._exit(137)'
    body = f"if rank == 0 and attempt == 0 and step == 6:\n            {strikes}"
    ended, found, _ = supervised(tmp_path / "run", body, FaultInjection("exit", 6))
    first, second = found["attempts"]
    assert ended and found["restarts"] == 1
    assert (
        first["state"] == "failed" and first["causes"] == ["exit-6-0"] and first["exits"][0] == 137
    )
    assert first["reached_step"] >= 6 and first["detect_s"] >= 0
    assert second["resumed_step"] == 4 and second["state"] == "completed"
    assert (
        second["restart_s"] >= 0 and second["restore_s"] == 0.01 and second["replay_s"] is not None
    )


def test_what_was_not_planned_is_tried_once_more_and_then_given_up(tmp_path: Path) -> None:
    ended, found, launcher = supervised(
        tmp_path / "run", 'if step == 3: raise SystemExit("no space left")'
    )
    assert (
        not ended
        and found["state"] == "failed"
        and launcher.started == 2
        and found["restarts"] == 1
    )
    assert all(
        one["causes"] == [] and any("no space left" in t for t in one["last_lines"])
        for one in found["attempts"]
    )


def test_ranks_that_make_no_step_are_killed(tmp_path: Path) -> None:
    body = "if attempt == 0 and step == 3: time.sleep(1000)"
    ended, found, launcher = supervised(tmp_path / "run", body, hang_s=0.5)
    assert ended and found["hangs"] == 1
    assert found["attempts"][0]["state"] == "hung" and found["attempts"][0]["causes"] == ["hang"]
    assert len(launcher.killed) == 4


def test_a_run_that_hangs_again_is_given_up(tmp_path: Path) -> None:
    ended, found, launcher = supervised(
        tmp_path / "run", "if step == 3: time.sleep(1000)", hang_s=0.4
    )
    assert not ended and found["hangs"] == 2 and launcher.started == 2


def test_kills_from_outside_strike_on_progress(tmp_path: Path) -> None:
    ended, found, _ = supervised(
        tmp_path / "run", "time.sleep(0.05)", FaultInjection("kill", 5, rank=1)
    )
    first = found["attempts"][0]
    assert (
        ended
        and first["causes"] == ["kill-5-1"]
        and first["exits"][1] == -9
        and first["reached_step"] >= 5
    )


def test_each_world_has_an_attempt_of_its_own(tmp_path: Path) -> None:
    ended, found, _ = supervised(tmp_path / "run", "pass", worlds=[[0, 2], [4, 1], [7, 2]])
    assert ended and [(one["world"], one["until"]) for one in found["attempts"]] == [
        (2, 4),
        (1, 7),
        (2, 10),
    ]
    assert found["restarts"] == 0


def test_nothing_is_left_when_the_supervisor_is_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    launcher = Scripts("time.sleep(1)")

    class Stopped(Exception):
        pass

    class Interrupts(Scripts):
        def start(self, order: Path, world: int, port: int) -> Attempt:
            made = launcher.start(order, world, port)

            def exits() -> Sequence[int | None]:
                raise Stopped

            made.exits = exits  # type: ignore[method-assign]
            return made

    with pytest.raises(Stopped):
        Interrupts("pass").run(plan_of(folder))
    assert len(launcher.killed) == 2


def test_the_token_of_a_memory_node_does_not_outlive_its_run(tmp_path: Path) -> None:
    """Folders of runs are for others to look at."""
    folder, tokens, launcher = tmp_path / "run", list[str](), Scripts("pass")
    folder.mkdir()

    class Looks(Scripts):
        def start(self, order: Path, world: int, port: int) -> Attempt:
            tokens.append((folder / TOKEN).read_text())
            return launcher.start(order, world, port)

    assert Looks("pass").run(plan_of(folder, strategy="deepvm-tcp"))
    assert tokens and not [
        p for p in folder.rglob("*") if p.is_file() and tokens[0] in p.read_text(errors="replace")
    ]


def test_a_strike_that_comes_too_late_is_not_booked(tmp_path: Path) -> None:
    """Rank 0 has ended while the supervisor waits for the moment at which rank 1 is killed: that is
    still to come.
    """
    body = 'if (rank, attempt, step) == (0, 0, 6): event("strike", key="exit-6-0"); os._exit(137)'
    body += "\n    if (rank, attempt) == (1, 0): time.sleep(0.3)"
    strikes = [FaultInjection("kill", 2, rank=1, delay_s=1.8), FaultInjection("exit", 6)]
    _, found, _ = supervised(tmp_path / "run", body, *strikes)
    first = found["attempts"][0]
    assert set(first["struck"]) == {"exit-6-0"} and first["causes"] == ["exit-6-0"]
    assert first["exits"] == [137, -9] and first["detect_s"] < 1.5  # who waits still sees what ends


def test_random_failures_strike_at_the_latest_near_the_end(tmp_path: Path) -> None:
    """Their moment would come when training has ended."""
    body = "time.sleep(0.1)"
    ended, found, _ = supervised(
        tmp_path / "run", body, FaultInjection("kill", 2, rank=1, delay_s=60.0)
    )
    first = found["attempts"][0]
    assert ended and first["causes"] == ["kill-2-1"] and first["reached_step"] >= 9


def test_a_kill_in_a_write_counts_from_the_write(tmp_path: Path) -> None:
    """Armed at step 2, in a write at step 6."""
    dies = 'time.sleep(1); event("killed-in-write", key="kill-2-0"); os._exit(9)'
    body = 'if (rank, attempt, step) == (0, 0, 2): event("armed", key="kill-2-0")'
    body += f"\n    if (rank, attempt, step) == (0, 0, 6): {dies}"
    strike = FaultInjection("kill", 2, target="write")
    ended, found, _ = supervised(tmp_path / "run", body, strike)
    first = found["attempts"][0]
    assert ended and first["causes"] == ["kill-2-0"] and 0 <= first["detect_s"] < 0.9


def test_a_kill_that_only_waits_for_a_write_has_not_struck(tmp_path: Path) -> None:
    body = 'if rank == 0 and attempt == 0 and step == 2: event("armed", key="kill-2-0")'
    ended, found, _ = supervised(tmp_path / "run", body, FaultInjection("kill", 2, target="write"))
    assert ended and [one["struck"] for one in found["attempts"]] == [{}]


def test_a_rank_that_stands_still_for_long_is_a_hang(tmp_path: Path) -> None:
    began = time.monotonic()
    ended, found, _ = supervised(
        tmp_path / "run", "time.sleep(0.05)", FaultInjection("stop", 3, seconds=1000.0), hang_s=0.7
    )
    first, second = found["attempts"]
    assert ended and time.monotonic() - began < 30
    assert (first["state"], first["causes"]) == ("hung", ["stop-3-0"]) and second[
        "state"
    ] == "completed"
    assert first["detect_s"] >= 0.4


def test_who_interrupts_need_not_wait_for_a_rank_that_stands_still(tmp_path: Path) -> None:
    folder, stopping, launcher = tmp_path / "run", threading.Event(), Scripts("time.sleep(0.05)")
    folder.mkdir()
    strike = FaultInjection("stop", 3, seconds=1000.0)
    timer = threading.Timer(1.5, stopping.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        launcher.run(plan_of(folder, strike, hang_s=500.0), stopping)
    assert time.monotonic() - began < 30 and len(launcher.killed) == 2


def test_a_port_that_somebody_takes_is_no_failed_attempt(tmp_path: Path) -> None:
    class Taken(Scripts):
        def start(self, order: Path, world: int, port: int) -> Attempt:
            self._code = self._taken if not self.started else self._free
            self.ports = [*getattr(self, "ports", []), port]
            return super().start(order, world, port)

        _taken = (
            "import sys; sys.exit('DistNetworkError: code: -98, name: EADDRINUSE, message: address"
            " already in use')"
        )
        _free = RANK.replace("BODY", "pass").replace("int(sys.argv[4])", "0")

    folder, launcher = tmp_path / "run", Taken("pass")
    folder.mkdir()
    assert launcher.run(plan_of(folder))
    (only,) = json.loads((folder / "supervisor.json").read_text())["attempts"]
    assert only["state"] == "completed" and launcher.started == 2 and len(set(launcher.ports)) == 2
