"""How much of a core a controller takes with many agents, and how long they wait for an answer.

    python scripts/bench_controller.py             # a minute; `make bench-recovery`
    python scripts/bench_controller.py --agents 100 --seconds 5

The controller is the real one, with its history on the disk; agents are real messages of one
process, each with a heartbeat every 5 s and long polls in between. Prints the share of a core, and
percentiles of the time of an answer; with ``--check`` the exit status is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from deepvm.jobs.cloud import Listing, Start
from deepvm.jobs.controller.controller import ControlledJob, Controller
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.wire import HEADER, Sender, new_secret, secret_of

BEAT_S = 5.0
MOST_OF_A_CORE, MOST_P99_MS = 0.3, 100.0
"""Goals, for 1000 agents."""


class InstantCloud:
    """Makes a machine for each request at once."""

    can_preempt = near = False

    def __init__(self) -> None:
        """None yet."""
        self._alive: dict[str, float] = {}

    def host(self, job: str) -> str:
        """This machine."""
        return "127.0.0.1"

    def finish(self, job: str) -> None:
        """Nothing is shared."""

    def request(self, record: MachineRecord, start: Start) -> float:
        """Now."""
        return self._alive.setdefault(record.id, time.time())

    def listing(self, job: str) -> Listing:
        """All of them."""
        return Listing(dict(self._alive))

    def release(self, job: str, machine: str) -> None:
        """Forget it."""
        self._alive.pop(machine, None)

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        """Never."""


def control(folder: Path, secret: str, agents: int) -> None:
    """Be the controller, until killed."""
    world = JobState(
        JobLimits(agents, agents), time.time(), pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),)
    )
    history = History.open({PLACE: str(folder / "history.db")})
    history.add_job("bench", time.time(), folder, {}, world)
    spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
    job = ControlledJob("bench", folder, secret, spec, list_s=10.0)
    asyncio.run(Controller(job, world, InstantCloud(), history).run())


class Agent:
    """The messages of one agent."""

    def __init__(self, number: int, secret: str, port: int) -> None:
        """Connect with the first message."""
        self.sender = Sender(f"m{number}", secret_of(secret, f"m{number}"))
        self.port, self.seen, self.generation = port, "", 0

    async def beat(self, wait_s: float) -> float:
        """A heartbeat; returns how long the answer took."""
        if not self.sender.nonce:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            self.sender.nonce = (await self._ask(b"GET /nonce HTTP/1.1\r\nHost: x\r\n\r\n"))[
                0
            ].decode()
        message: dict[str, Any] = {
            "generation": self.generation,
            "step": 1,
            "step_ns": 10**8,
            "warm": True,
        }
        message |= {
            "address": "127.0.0.1",
            "port": 1,
            "seen": self.seen,
            "scheduled": 0,
            "wait_s": wait_s,
        }
        body, signature = self.sender.sealed(message)
        head = (
            f"POST /beat HTTP/1.1\r\nHost: x\r\n{HEADER}: {signature}\r\nContent-Length:"
            f" {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        data, headers = await self._ask(head.encode() + body)
        took_s = time.perf_counter() - began
        answer = self.sender.opened(data, headers[HEADER.lower()])
        if not answer.get("same"):
            self.seen, self.generation = answer["digest"], answer["generation"]
        return took_s

    async def _ask(self, data: bytes) -> tuple[bytes, dict[str, str]]:
        self.writer.write(data)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)
        }
        assert " 200 " in lines[0], lines[0]
        return await self.reader.readexactly(int(headers["content-length"])), headers


async def load(agents: int, secret: str, port: int, seconds: float, process: int) -> bool:
    """Let agents beat, and print what that took; whether the goals are met."""
    all_agents, times = [Agent(n + 1, secret, port) for n in range(agents)], list[float]()
    stop = asyncio.Event()

    async def live(agent: Agent) -> None:
        await asyncio.sleep(random.uniform(0, BEAT_S))
        while not stop.is_set():
            if random.random() < 0.1:
                times.append(await agent.beat(0.0))  # answered at once
            await agent.beat(BEAT_S)  # a long poll

    tasks = [asyncio.create_task(live(agent)) for agent in all_agents]
    await asyncio.sleep(4 * BEAT_S)  # all are members of a generation
    formed = sum(agent.generation > 0 for agent in all_agents)
    times.clear()
    cpu, began = _cpu_s(process), time.perf_counter()
    await asyncio.sleep(seconds)
    busy = (_cpu_s(process) - cpu) / (time.perf_counter() - began)
    found = sorted(times)
    stop.set()
    p50, p99 = (1000 * found[int(share * (len(found) - 1))] for share in (0.5, 0.99))
    print(
        f"{agents} agents, {formed} in a generation: {busy:.1%} of a core (goal:"
        f" {MOST_OF_A_CORE:.0%})"
    )
    print(f"an answer takes {p50:.1f} ms, p99 {p99:.1f} ms (goal: {MOST_P99_MS:g} ms)")
    for task in tasks:
        task.cancel()
    return busy <= MOST_OF_A_CORE and p99 <= MOST_P99_MS


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    asked, secret = parser.parse_args(), new_secret()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = multiprocessing.get_context("spawn").Process(
            target=control, args=(folder, secret, asked.agents), daemon=True
        )
        process.start()
        while not (folder / "controller").exists():
            time.sleep(0.05)
        port = int((folder / "controller").read_text().rpartition(":")[2])
        assert process.pid is not None
        met = asyncio.run(load(asked.agents, secret, port, asked.seconds, process.pid))
        process.kill()
        process.join()
    return int(asked.check and not met)


if __name__ == "__main__":
    raise SystemExit(main())
