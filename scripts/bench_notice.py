#!/usr/bin/env python3
"""Time from a notice to a safe checkpoint, and of a takeover by a newer generation.

    python scripts/bench_notice.py           # about two minutes; `make bench-recovery`
    python scripts/bench_notice.py --quick   # small and few: figures of no value, for the tests

Ranks train a model whose state has 139 MB (ACUTE's ResNet-18 with Adam) in processes of their own,
with a memory node in another, all on this machine. A notice is written on the board as an agent
does it, at a random time of a step; measured is the time until ``remote_done`` of the version on
every rank. ``request_save(deadline=...)`` is the same without an agent. A takeover is measured
while the older generation saves: until the newer one has started, which shuts the older one out,
and knows the versions; then until its first own one, of 1 MB, is acknowledged. With ``--check`` the
exit status is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.manifest import Shard
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.errors import CheckpointError
from deepvm.io.agent_board import AGENT, BOARD, Board, Flag, SaveReason, ScheduledSave
from deepvm.io.host_info import processor
from deepvm.jobs.agent.backups import TrainerSocket
from deepvm.reports.terminal import Column, print_rows

GOALS_S = {"notice, 1 rank": 0.3, "notice, 2 ranks": 0.5, "takeover": 0.2}
STATE_BYTES = 139_000_000
TOKEN = "bench-notice-token-of-32-characters-or-more"
BUCKET = "bench"

TRAIN = """
import os, sys, threading, time
import torch
from deepvm.checkpoint import Checkpointer
size, rank, world = int(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
if world > 1:
    torch.distributed.init_process_group("gloo")
width = max(int((size / 3 / 4 / 8) ** 0.5), 8)
model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(8)])
if world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
saver = Checkpointer(model=model, optimizer=optimizer)
said, lock = set(), threading.Lock()

def tell(text):
    with lock:
        print(text, flush=True)

def listen():
    for line in sys.stdin:
        if rank == 0:
            saver.request_save(deadline=float(line))
threading.Thread(target=listen, daemon=True).start()
data, step = torch.zeros(1, width), 0
while True:
    optimizer.zero_grad()
    model(data).sum().backward()
    optimizer.step()
    step += 1
    if step == 3:
        saver.save(block=True)  # memory is allocated, the layout is known
        tell("ready")
    for handle in saver.handles:
        if handle.version > 3 and handle.version not in said:
            said.add(handle.version)
            handle.remote_done.add_done_callback(
                lambda f, h=handle: tell(f"{'failed' if f.exception() else 'safe'} {h.version} {time.time()}"))
"""  # noqa: E501


@dataclass(frozen=True)
class Row:
    """One measured quantity, seconds."""

    what: str
    median_s: float
    most_s: float
    goal_s: float | None

    @property
    def met(self) -> bool:
        """Whether the median is within the goal."""
        return self.goal_s is None or self.median_s <= self.goal_s


@contextmanager
def memory_node(folder: Path) -> Iterator[str]:
    """The URL of a memory node in a process of its own."""
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    os.environ["DEEPVM_TOKEN_FILE"] = str(token)
    words = [
        "memory-node",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "1GiB",
        "--token-file",
        str(token),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "deepvm.cli.main", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("listening on "))
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield f"tcp://{line.split()[-1]}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def bucket() -> Iterator[str]:
    """The URL of a bucket of moto's server in a process of its own."""
    import boto3

    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        keys = {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        os.environ.update({**keys, "AWS_ENDPOINT_URL_S3": endpoint})
        for _ in range(200):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/run"
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Ranks:
    """Training processes that receive notices by an agent's board, or by standard input."""

    def __init__(self, world: int, size: int, tier: str, folder: Path, *, agent: bool) -> None:
        """Start them, and wait until they train."""
        self.agent = agent
        self.board = Board.create(folder / BOARD)
        self.sockets = TrainerSocket(folder, self._answer)
        self._heard: list[tuple[float, str, int]] = []
        self._ready, self._change = 0, threading.Condition()
        env = {
            **os.environ,
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": "1",
        }
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DEEPVM_TIERS": tier}
        env |= {"DEEPVM_JOB": f"bench-{os.urandom(4).hex()}", "DEEPVM_EPOCH": "1"} | (
            {AGENT: str(folder)} if agent else {}
        )
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN, str(size)],
                env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        for process in self.processes:
            threading.Thread(target=self._read, args=(process,), daemon=True).start()
        with self._change:
            if not self._change.wait_for(lambda: self._ready == world, 120):
                raise SystemExit("the ranks do not train")

    def _answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message.get("ask") == "schedule":
            reason, limit_ms, request = message["save"]
            self.board.schedule(
                int(message["step"]), ScheduledSave(SaveReason(reason), int(limit_ms), int(request))
            )
        return {}

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, *rest = line.split()
            with self._change:
                if word == "ready":
                    self._ready += 1
                else:
                    self._heard.append((float(rest[1]), word, int(rest[0])))
                self._change.notify_all()

    def notice(self) -> float:
        """Seconds from a notice until the version is safe, as the last rank hears it."""
        world = len(self.processes)
        with self._change:
            self._heard.clear()
        begun, limit = time.time(), time.time() + 30
        if self.agent:
            number = self.board.request(SaveReason.EMERGENCY, int(limit * 1000))
        else:
            assert self.processes[0].stdin is not None
            self.processes[0].stdin.write(f"{limit}\n")
            self.processes[0].stdin.flush()
        with self._change:
            if not self._change.wait_for(lambda: len(self._heard) >= world, 60):
                raise SystemExit("the version is not safe after a minute")
            heard = list(self._heard)
        if self.agent:
            self.board.words[Flag.RESUMED] = number
        if any(word == "failed" for _, word, _ in heard):
            raise SystemExit("a version failed")
        return max(at for at, *_ in heard) - begun

    def close(self) -> None:
        """End them."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.sockets.close()
        self.board.close()


def notices(world: int, size: int, reps: int, *, agent: bool) -> list[float]:
    """The times of several notices of one training."""
    chance, found = random.Random(world), list[float]()
    with tempfile.TemporaryDirectory() as name, memory_node(Path(name)) as tier:
        ranks = Ranks(world, size, tier, Path(name), agent=agent)
        try:
            for number in range(reps + 1):
                time.sleep(0.3 + chance.random())
                took_s = ranks.notice()
                found += [took_s] if number else []
        finally:
            ranks.close()
    return found


def shard(job: str, version: int, size: int = 1_000_000) -> Shard:
    """A version of one rank, of which the bytes do not matter."""
    layout = Layout(size, ((Segment(0, size),),), ())
    return Shard(
        job, version, 0, layout, memoryview(bytearray(random.Random(version).randbytes(size)))
    )


def takeovers(url: str, reps: int) -> list[tuple[float, float]]:
    """Times from a newer generation's start to its takeover and to its first safe checkpoint."""
    found, job = list[tuple[float, float]](), f"bench-{os.urandom(4).hex()}"
    tiers: list[Tier] = [open_tier(url, "session-0")]
    tiers[0].begin(job, 1)
    for epoch in range(2, reps + 3):
        old, over, version = tiers[-1], threading.Event(), epoch * 1000

        def save(old: Tier = old, over: threading.Event = over, version: int = version) -> None:
            try:
                for number in range(500):
                    if not over.is_set():
                        old.put(shard(job, version + number), lambda level: None)
            except CheckpointError:
                return  # a newer one has begun

        thread = threading.Thread(target=save)
        thread.start()
        time.sleep(0.15)
        new, first = open_tier(url, f"session-{epoch}"), shard(job, version + 900)
        new.prove()  # makes the connection
        acknowledged = threading.Event()
        begun = time.perf_counter()
        new.begin(job, epoch)
        new.versions(job)
        over_s = time.perf_counter() - begun
        new.put(first, lambda level, told=acknowledged: told.set())  # type: ignore[misc]
        if not acknowledged.wait(30):
            raise SystemExit("the newer generation's version is not acknowledged")
        found.append((over_s, time.perf_counter() - begun))
        over.set()
        thread.join()
        tiers.append(new)
    for tier in tiers:
        tier.close()
    return found[1:]


def measure(size: int, reps: int) -> list[Row]:
    """All rows."""
    rows = []
    for world in (1, 2):
        ranks = f"{world} rank{'s' * (world > 1)}"
        for agent in (True, False):
            found = notices(world, size, reps, agent=agent)
            what = f"notice, {ranks}" + ("" if agent else ", request_save() without an agent")
            rows.append(
                Row(what, statistics.median(found), max(found), GOALS_S[f"notice, {ranks}"])
            )
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        places = {
            "a folder": Path(name, "versions").as_uri(),
            "a memory node": stack.enter_context(memory_node(Path(name))),
        }
        places["a bucket (moto)"] = stack.enter_context(bucket())
        for place, url in places.items():
            columns = zip(*takeovers(url, reps), strict=True)
            for what, goal_s, times in zip(
                ("takeover", "its first version"), (GOALS_S["takeover"], None), columns, strict=True
            ):
                rows.append(Row(f"{what}, {place}", statistics.median(times), max(times), goal_s))
    return rows


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and few: figures of no value")
    parser.add_argument(
        "--reps", type=int, default=7, help="of each quantity; the first of each is not counted"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    rows = measure(
        3_000_000 if options.quick else STATE_BYTES, 1 if options.quick else options.reps
    )
    print(f"{processor()}, {os.cpu_count()} cores; state {STATE_BYTES / 1e6:.0f} MB, seconds")
    columns = [
        Column("what"),
        *(Column(name, "right") for name in ("median", "most", "goal")),
        Column("met"),
    ]
    print_rows(
        columns,
        [
            [
                r.what,
                f"{r.median_s:.3f}",
                f"{r.most_s:.3f}",
                f"{r.goal_s or ''}",
                "yes" if r.met else "NO",
            ]
            for r in rows
        ],
    )
    if options.json:
        options.json.write_text(json.dumps([vars(r) for r in rows], indent=1))
    return int(options.check and not all(row.met for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
