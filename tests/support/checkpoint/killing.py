"""The harness of the kills: a training is killed somewhere, and what must hold then is checked by
new processes.

The invariant: every version that was acknowledged can be restored, bit for bit as it was when its
hash was logged; the job goes on from one that is no older, and ends with the very parameters of a
run that nobody interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deepvm.checkpoint.network.endpoint import Address

STEPS = 14
WAIT_S = 25.0

SNAPSHOT = ["snapshot.before-copy", "snapshot.after-copy"]
SENDER = ["sender.before-reserve", "sender.mid-chunk", "sender.before-commit"]
NODE = ["node.before-credit", "node.mid-chunk", "node.before-ack", "node.after-ack"]
READER = ["node.mid-send"]
JOINT = ["shared-file.before-part", "shared-file.before-commit"]


class Broken(AssertionError):
    """The invariant does not hold."""


@dataclass
class Child:
    """A process that was forked. ``log``: what it told."""

    pid: int
    log: Path
    errors: Path

    def lines(self, first: str) -> list[list[str]]:
        try:
            text = self.log.read_text()
        except FileNotFoundError:
            return []
        return [words for line in text.splitlines() if (words := line.split())[0] == first]

    def await_line(self, first: str, times: int = 1) -> list[str]:
        deadline = time.monotonic() + WAIT_S
        while len(found := self.lines(first)) < times:
            if time.monotonic() > deadline or not alive(self.pid):
                raise Broken(f"no {first}: {self.errors.read_text()[-2000:]}")
            time.sleep(0.002)
        return found[times - 1]

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Nursery:
    """Forks processes from one that has imported torch."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("trainee.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ended: dict[int, int] = {}
        self._living: list[Child] = []

    def start(self, work: str, **order: Any) -> Child:
        self._count += 1
        log, errors = (self._folder / f"{self._count}.{kind}" for kind in ("log", "errors"))
        assert self._process.stdin is not None
        text = json.dumps({"work": work, "log": str(log), "errors": str(errors), **order})
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()
        while "started" not in (facts := self._read()):
            self._ended[facts["ended"]] = facts["status"]
        self._ended.pop(facts["started"], None)  # numbers of processes come again
        self._living.append(Child(facts["started"], log, errors))
        return self._living[-1]

    def _read(self) -> dict[str, int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery died"
        return dict(json.loads(line))

    def wait(self, child: Child) -> int:
        """Its exit code, or less than none when it was killed."""
        while child.pid not in self._ended:
            facts = self._read()
            self._ended[facts["ended"]] = facts["status"]
        if child in self._living:
            self._living.remove(child)
        return self._ended[child.pid]

    def ended(self, child: Child) -> bool:
        """Whether it is gone, without waiting."""
        try:
            state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state in "ZX"

    def kill(self, but: Child | None = None) -> None:
        """End all that still live."""
        for child in [c for c in self._living if c is not but]:
            child.kill()
            self.wait(child)

    def close(self) -> None:
        self.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._process.stdout.close()


@dataclass
class Case:
    """One training that is killed.

    Attributes:
        tiers: ``file``, ``tcp`` or ``both``. keep: versions that a folder keeps. trainer_at,
        node_at: where each is killed. after_s: the trainer is killed then, wherever it is.
        node_after_s: the node. world: ranks. change: mutations of the trainer; resume_change: of
            the next run.
        node_change: of the node alone. spared: the trainer lives on when the node dies, which comes
            back at once.
        reader_at: where the node dies while the next run restores; the run after that must find
            all.
    """

    tiers: str = "file"
    keep: int = 1000
    trainer_at: str = ""
    node_at: str = ""
    after_s: float = -1.0
    node_after_s: float = -1.0
    world: int = 1
    change: tuple[str, ...] = ()
    resume_change: tuple[str, ...] = ()
    node_change: tuple[str, ...] = ()
    spared: bool = False
    reader_at: str = ""
    step_s: float = 0.0


@dataclass
class Arena:
    """Where cases run.

    Attributes:
        kills: how many processes were killed, by place. promised: versions that were acknowledged
            before.
        truth: for each number of ranks the digests of a run that nobody interrupts, by version.
    """

    folder: Path
    nursery: Nursery
    kills: Counter[str] = field(default_factory=Counter)
    promised: int = 0
    truth: dict[int, dict[int, str]] = field(default_factory=dict)
    _count: int = 0
    _node: Child | None = None

    def run(self, case: Case) -> bool:
        """Run a case; returns whether something was killed.

        Raises:
            Broken: the invariant does not hold.
        """
        try:
            return self._run(case)
        except Broken:
            self.nursery.kill(self._node)
            raise

    def _run(self, case: Case) -> bool:
        self._count += 1
        home = self.folder / f"case{self._count}"
        home.mkdir()
        truth = self.uninterrupted(case.world)
        order: dict[str, Any] = {
            "job": f"job{self._count}",
            "steps": STEPS,
            "keep": case.keep,
            "step_s": case.step_s,
        }
        if case.tiers != "tcp":
            order["folder"] = str(home / "versions")
        node = None
        node_order = {"persist": str(home / "node"), "keep": case.keep, "change": case.node_change}
        if case.tiers != "file":
            if case.node_at or case.node_after_s >= 0 or case.node_change or case.reader_at:
                node = self.nursery.start("serve", **node_order, kill_at=case.node_at)
                order["url"] = node.await_line("listening")[1]
            else:
                order["url"] = self._shared_node()
        trainers = self._train("train", order, case, home / "meet", case.change, case.trainer_at)
        node = self._kill(case, trainers, node, node_order, order)
        acknowledged = self._acknowledged(trainers, truth, durable_only=self._lost_memory(case))
        # Whoever restores finds it again, at the same place
        if node is not None and self.nursery.ended(node):
            self.nursery.wait(node)
            node = self._restart(node_order, order)
        self.promised += len(acknowledged)
        if case.spared:
            self._check_end(trainers, truth)
        if case.reader_at and node is not None:
            node = self._interrupt_restore(case, node, node_order, order, acknowledged)
        after = self._train("resume", order, case, home / "meet2", case.resume_change, "")
        after[0].await_line("restored")
        self._check_found(after[0], acknowledged, truth, case.keep)
        codes = [self.nursery.wait(child) for child in after]
        if any(codes):
            raise Broken(f"the next run failed: {codes} {after[0].errors.read_text()[-3000:]}")
        self._check_end(after, truth)
        if node is not None:
            node.kill()
            self.nursery.wait(node)
        return any(self.nursery.wait(t) < 0 for t in trainers) or case.spared

    def uninterrupted(self, world: int) -> dict[int, str]:
        """The digest of each version of a run that nobody interrupts."""
        if world not in self.truth:
            home = self.folder / f"whole{world}"
            home.mkdir()
            order = {"job": "whole", "steps": STEPS, "keep": 1, "folder": str(home / "versions")}
            runs = self._train("train", order, Case(world=world), home / "meet", (), "")
            assert [self.nursery.wait(run) for run in runs] == [0] * world, runs[
                0
            ].errors.read_text()
            self.truth[world] = {
                int(v): text for _, v, text in runs[0].lines("step") + runs[0].lines("restored")
            }
        return self.truth[world]

    def _train(
        self,
        work: str,
        order: dict[str, Any],
        case: Case,
        meet: Path,
        change: Iterable[str],
        kill_at: str,
    ) -> list[Child]:
        return [
            self.nursery.start(
                work,
                **order,
                rank=rank,
                world=case.world,
                meet=str(meet),
                change=[*change],
                # The other ranks' labels would come by at the same time: one victim is enough.
                kill_at=kill_at if rank == (case.world - 1 if "part" in kill_at else 0) else "",
                **({"session": meet.name + order["job"]} if case.world > 1 else {}),
            )
            for rank in range(case.world)
        ]

    def _shared_node(self) -> str:
        """One node for all who do not kill it: each has a job of its own."""
        if self._node is None:
            self._node = self.nursery.start(
                "serve", persist=str(self.folder / "shared"), keep=1000, most_s=3600
            )
        return self._node.await_line("listening")[1]

    def _interrupt_restore(
        self,
        case: Case,
        node: Child,
        node_order: dict[str, Any],
        order: dict[str, Any],
        acknowledged: set[int],
    ) -> Child:
        """A run that comes while the node dies says so, or has what was acknowledged.

        It never starts anew instead.
        """
        node.kill()
        self.nursery.wait(node)
        node = self._restart(node_order, order, case.reader_at)
        run = self.nursery.start("train", **{**order, "steps": 0})
        self.nursery.wait(run)
        told = run.lines("restored")
        if told and int(told[0][1]) < max(acknowledged, default=0):
            raise Broken(
                f"it restored {told[0][1]} of {sorted(acknowledged)}, because the node died"
                " meanwhile"
            )
        if self.nursery.ended(node):
            self.kills[f"node: {case.reader_at.partition(':')[0]}"] += 1
        else:
            node.kill()
        self.nursery.wait(node)
        return self._restart(node_order, order)

    def _restart(
        self, node_order: dict[str, Any], order: dict[str, Any], kill_at: str = ""
    ) -> Child:
        port = Address.parse(order["url"]).port
        node = self.nursery.start("serve", **node_order, port=port, kill_at=kill_at)
        node.await_line("listening")
        return node

    def _kill(
        self,
        case: Case,
        trainers: list[Child],
        node: Child | None,
        node_order: dict[str, Any],
        order: dict[str, Any],
    ) -> Child | None:
        """Wait until the case's kills have happened and the trainers are gone.

        Returns the node of now.
        """
        begin = time.monotonic()
        if case.after_s >= 0 or case.node_after_s >= 0:
            trainers[0].await_line("restored")
            begin = time.monotonic()
        victims = [("trainer", case.after_s, t) for t in trainers if case.after_s >= 0]
        victims += (
            [("node", case.node_after_s, node)]
            if node is not None and case.node_after_s >= 0
            else []
        )
        for name, after_s, victim in sorted(victims, key=lambda v: v[1]):
            time.sleep(max(begin + after_s - time.monotonic(), 0))
            if not self.nursery.ended(victim):
                victim.kill()
                self.nursery.wait(victim)
                self.kills[f"{name} at any time"] += 1
        while not all(self.nursery.ended(t) for t in trainers):
            if node is not None and self.nursery.ended(node):
                self.nursery.wait(node)
                if case.node_at:
                    self.kills[f"node: {case.node_at.partition(':')[0]}"] += 1
                if not case.spared:
                    for trainer in trainers:
                        trainer.kill()
                    self.kills["trainer with the node"] += 1
                    break
                node = self._restart(node_order, order)
            if any(self.nursery.ended(t) for t in trainers):  # torchrun ends the others as well
                for trainer in trainers:
                    trainer.kill()
            time.sleep(0.002)
        codes = [self.nursery.wait(t) for t in trainers]
        killed = [code for code in codes if code < 0]
        if any(code > 0 for code in codes) and not killed:  # who loses the other rank fails
            raise Broken(
                f"a training failed: {codes}"
                f" {trainers[codes.index(max(codes))].errors.read_text()[-3000:]}"
            )
        if case.trainer_at and killed and case.after_s < 0:
            self.kills[case.trainer_at.partition(":")[0]] += 1
        return node

    @staticmethod
    def _lost_memory(case: Case) -> bool:
        return bool(case.node_at or case.reader_at) or case.node_after_s >= 0

    @staticmethod
    def _acknowledged(
        trainers: list[Child], truth: dict[int, str], *, durable_only: bool
    ) -> set[int]:
        """Versions that were promised.

        Each with the very state that this step has in a run without a kill.
        """
        found = set()
        for trainer in trainers:
            for _, version, level, text in trainer.lines("ack"):
                if trainer is trainers[0] and truth[int(version)] != text:
                    raise Broken(
                        f"version {version} was acknowledged with {text}, not {truth[int(version)]}"
                    )
                if level == "durable" or not durable_only:
                    found.add(int(version))
        return found

    @staticmethod
    def _check_found(
        child: Child, acknowledged: set[int], truth: dict[int, str], keep: int
    ) -> None:
        damaged = child.lines("damaged")
        if damaged:
            raise Broken(f"listed as complete and not: {damaged}")
        found = {int(version): text for _, version, text in child.lines("found")}
        for version, text in found.items():
            if truth[version] != text:
                raise Broken(f"version {version} holds another state")
        # What has left a folder made room for newer ones.
        promised = set(sorted(acknowledged)[-keep:])
        gone = {v for v in promised - set(found) if len([n for n in found if n > v]) < keep}
        if gone:
            raise Broken(f"acknowledged and gone: {sorted(gone)}; found {sorted(found)}")
        restored, text = child.lines("restored")[0][1:]
        if int(restored) < max(acknowledged, default=0) or text != truth[int(restored)]:
            raise Broken(f"restored {restored} {text}; acknowledged {sorted(acknowledged)}")

    @staticmethod
    def _check_end(trainers: list[Child], truth: dict[int, str]) -> None:
        for trainer in trainers[:1]:
            end = trainer.lines("end")
            if not end or end[0][1:] != [str(STEPS), truth[STEPS]]:
                raise Broken(
                    f"the run ends with {end}, not {truth[STEPS]}:"
                    f" {trainer.errors.read_text()[-2000:]}"
                )

    def close(self) -> None:
        self.nursery.close()


@contextmanager
def open_arena() -> Iterator[Arena]:
    # In memory where there is some: nothing here tells whether a disk would have kept it; see
    # test_crashes.py.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="deepvm-kills-", dir=place) as folder:
        arena = Arena(Path(folder), Nursery(Path(folder)))
        try:
            yield arena
        finally:
            arena.close()


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with open_arena() as found:
        yield found
