"""Processes to be killed: training runs and memory nodes, forked from one that has imported torch
and waits for orders.

Run as a program it reads one JSON object a line (see :func:`child`), forks a process for each,
answers with its pid, and says how each ended. A process tells what it does in a log of its own,
unbuffered: what stands there had happened when it was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer loads it, which takes longer than all the rest

from deepvm.checkpoint import Checkpointer, checkpointer, restore
from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.format import checksums
from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.network.protocol import Kind
from deepvm.checkpoint.node import flusher
from deepvm.checkpoint.node.connection import Connection
from deepvm.checkpoint.node.flusher import Flusher
from deepvm.checkpoint.node.server import Node, NodeSettings
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.snapshot import host_buffer, snapshotter
from deepvm.checkpoint.snapshot.host_buffer import Slot
from deepvm.checkpoint.tiers import replicated, tcp
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.checkpoint.training.state import TrainingState
from deepvm.errors import CheckpointError
from deepvm.io import failpoints
from support.checkpoint.slow_copies import slow_copy, stop_noticing

# Folders may be in memory, for speed: here no machine is lost.
durable_write.Medium.volatile = False  # type: ignore[method-assign,assignment]
TOKEN = b"open sesame, and then some"
MOST_S = 30.0
"""A process that lives longer ends itself: whoever forked it is gone or has forgotten it."""


class Log:
    """One line for each thing that happened, in the file as soon as it did."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def digest(tree: Any) -> str:
    """Of all bits of a state: names, numbers and tensors."""
    found = hashlib.sha256()

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for name in value:
                found.update(repr(name).encode())
                visit(value[name])
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        else:
            found.update(repr(value).encode())

    visit(tree)
    return found.hexdigest()[:16]


class Training:
    """A small model with everything that has a state; the same numbers in every process."""

    def __init__(self, order: dict[str, Any]) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(32, 96),
            torch.nn.BatchNorm1d(96),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(96, 32),
        )
        rank = order.get("rank", 0)
        torch.manual_seed(rank)
        random.seed(rank)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=50)
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            extra={"scheduler": self.scheduler},
            tiers=tiers(order),
            job=order["job"],
            every=1,
        )

    def step(self) -> None:
        x = torch.randn(8, 32) * random.random()
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        if torch.distributed.is_initialized():
            for parameter in self.model.parameters():
                torch.distributed.all_reduce(parameter.grad)
        self.optimizer.step()
        self.scheduler.step()

    def digest(self) -> str:
        return digest(
            [self.model.state_dict(), self.optimizer.state_dict(), self.scheduler.state_dict()]
        )


def digest_of_file(path: Path) -> str:
    tree = torch.load(path, weights_only=True)
    return digest([tree["model"], tree["optimizer"], tree["extra"]["scheduler"]])


def tiers(order: dict[str, Any]) -> list[Tier]:
    made: list[Tier] = []
    # Half of the jobs send their bytes, the nodes of the others read the trainer's memory
    if zlib.crc32(order["job"].encode()) % 2:
        tcp.location_of = lambda image: None
    session = order.get("session") or f"{os.getpid()}-{time.monotonic_ns()}"
    if order.get("url"):
        made.append(TcpTier(order["url"], session, TOKEN, wire_bytes=8192, limit_s=5.0))
    if order.get("urls"):
        nodes = [
            TcpTier(url, session, TOKEN, wire_bytes=8192, limit_s=5.0) for url in order["urls"]
        ]
        made.append(ReplicatedTier(nodes, 2, retry_s=0.02))
    if order.get("folder"):
        made.append(FileTier(Path(order["folder"]), keep=order["keep"], session=session))
    return made


def train(order: dict[str, Any], log: Log) -> None:
    """Go on from the newest version to the last step.

    A version after each, every other one awaited.
    """
    snapshotter._SMALL_BYTES = 0  # as a large model: it is copied in the background
    training = Training(order)
    saver = training.saver
    log("restored", saver.restore_latest(), training.digest())
    now = ""
    for step in saver.steps(order["steps"]):
        if now:
            newest_is_awaited(saver, log, now)
        if order.get("step_s"):
            time.sleep(order["step_s"])
        training.step()
        now = training.digest()
        log("step", step + 1, now)
    if now:
        newest_is_awaited(saver, log, now)
    last_save(training)
    saver.close()
    log("end", saver.version, training.digest())


def newest_is_awaited(saver: Checkpointer, log: Log, now: str) -> None:
    """Log what becomes of the version of the last boundary, and wait for every other one."""
    handle = saver.handles[-1]
    for level, future in (("remote", handle.remote_done), ("durable", handle.durable)):
        future.add_done_callback(partial(acknowledged, log, level, now))
    if saver.version % 2 and not handle.skipped:
        done(handle.remote_done)


def acknowledged(log: Log, level: str, now: str, future: Future[int]) -> None:
    if future.exception() is None:
        log("ack", future.result(), level, now)


def done(future: Future[int]) -> None:
    """Wait; a version that no tier took is no end of the training."""
    try:
        future.result(10)
    except (CheckpointError, TimeoutError):
        return


def last_save(training: Training) -> None:
    """A node that was killed comes back, as an anchor VM does: until then no tier may take the last
    version.
    """
    deadline = time.monotonic() + 15
    while True:
        try:
            training.saver.save(block=True)
            return
        except CheckpointError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def look(order: dict[str, Any], log: Log) -> None:
    """Say which versions a new process can restore, and which are listed and cannot be."""
    for tier in tiers(order):
        with tempfile.TemporaryDirectory() as folder:
            for manifest in tier.versions(order["job"]):
                try:
                    log(
                        "found",
                        manifest.version,
                        digest_of_file(tier.fetch(manifest, Path(folder))),
                    )
                except Exception as error:
                    log("damaged", manifest.version, tier.url, error)
        tier.close()


def resume(order: dict[str, Any], log: Log) -> None:
    look(order, log)
    train(order, log)


def serve(order: dict[str, Any], log: Log) -> None:
    """A memory node until it is killed."""
    flusher._FIRST_RETRY_S = 0.05
    # Also a small version is written while it comes
    flusher.LEAST_BYTES, checksums.STEP_BYTES = 0, 16384
    node = Node(
        NodeSettings(
            Address("127.0.0.1", order.get("port", 0)),
            TOKEN,
            64 * 2**20,
            Path(order["persist"]).as_uri() if order["persist"] else "",
            keep=order["keep"],
        )
    )
    log("listening", node.start().url)
    time.sleep(order.get("most_s", MOST_S))


# --- mutations: each breaks one rule that the harness is to see -----------------------------------


def slow_copies() -> None:
    """As those of a large model: the next step comes while they run."""
    Slot.copy = slow_copy(0.001)  # type: ignore[method-assign]


def no_gate() -> None:
    checkpointer.Checkpointer._before_step = checkpointer.Checkpointer._before_forward  # type: ignore[method-assign]
    stop_noticing()  # else what it mixes is noticed, and not sent


def folder_acknowledges_first() -> None:
    put = FileTier.put

    def early(self: FileTier, shard: Any, told: Callable[[Level], None]) -> None:
        told(Level.DURABLE)
        put(self, shard, told)

    FileTier.put = early  # type: ignore[method-assign]


def sender_acknowledges_first() -> None:
    put = TcpTier.put

    def early(self: TcpTier, shard: Any, told: Callable[[Level], None]) -> None:
        told(Level.REMOTE)
        put(self, shard, told)

    TcpTier.put = early  # type: ignore[method-assign]


def node_says_durable_before_it_writes() -> None:
    write = Flusher._write

    def early(self: Flusher, version: Any) -> bool:
        self._memory.flushed(version)
        time.sleep(0.02)  # the trainer hears of it
        return write(self, version)

    Flusher._write = early  # type: ignore[method-assign]


def node_drops_what_is_not_flushed() -> None:
    """A slot is used again before a slow disk has its version."""
    take, write = VersionRegistry._slot, Flusher._write

    def hasty(self: VersionRegistry, *wanted: Any) -> Any:
        for job in self.jobs.values():
            for version in [v for v in job.complete.values() if not v.used and not job.keeps(v)]:
                self._drop(version)
        return take(self, *wanted)

    def slow(self: Flusher, version: Any) -> bool:
        time.sleep(0.1)
        return write(self, version)

    VersionRegistry._slot, Flusher._write = hasty, slow  # type: ignore[method-assign]


def slow_node() -> None:
    """As one at the end of a worse network: the other one has each version before it."""
    reserve = Connection._reserve

    def late(self: Connection, frame: Any) -> None:
        time.sleep(0.1)
        reserve(self, frame)

    Connection._ANSWERS = {**Connection._ANSWERS, Kind.RESERVE: ("sender", late)}  # type: ignore[misc]


def one_copy_is_enough() -> None:
    begin = replicated._Copies.__init__
    replicated._Copies.__init__ = lambda self, shard, told, needed, *more: begin(
        self, shard, told, 1, *more
    )  # type: ignore


def reads_the_first_node_alone() -> None:
    ask = ReplicatedTier._ask
    ReplicatedTier._ask = lambda self, question: ask(self, question)[:1]  # type: ignore


def restores_the_oldest() -> None:
    candidates = restore._candidates

    def turned(*arguments: Any) -> Any:
        found = candidates(*arguments)
        return found[::-1] if isinstance(found, list) else found

    restore._candidates = turned


def forgets_the_optimizer() -> None:
    take_back = TrainingState.restore

    def half(self: TrainingState, tree: Any, *ranks: int) -> int:
        return take_back(self, {**tree, "optimizer": self.optimizer.state_dict()}, *ranks)

    TrainingState.restore = half  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        slow_copies,
        no_gate,
        folder_acknowledges_first,
        sender_acknowledges_first,
        node_says_durable_before_it_writes,
        node_drops_what_is_not_flushed,
        slow_node,
        one_copy_is_enough,
        reads_the_first_node_alone,
        restores_the_oldest,
        forgets_the_optimizer,
    )
}


# --- the process that forks -----------------------------------------------------------------------

WORK = {"train": train, "resume": resume, "serve": serve}


def child(order: dict[str, Any]) -> None:
    """Do what is ordered.

    Keys: ``work`` (see ``WORK``), ``log``, ``errors`` (a file each), ``kill_at`` (as in
    DEEPVM_CHECKPOINT_KILL_AT), ``change`` (mutations), ``rank``, ``world`` and ``meet`` (several
    ranks), and what ``work`` needs.
    """
    errors = os.open(order["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    threading.Timer(order.get("most_s", MOST_S), lambda: os._exit(9)).start()
    label, _, count = order.get("kill_at", "").partition(":")
    failpoints._label, failpoints._left = label, int(count or 1)
    # Small pieces: a small model goes through everything that a large one does.
    host_buffer.GROUP_BYTES, durable_write.PIECE = 16384, 32768
    for name in order.get("change", ()):
        MUTATIONS[name]()
    torch.set_num_threads(1)
    if order.get("world", 1) > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{order['meet']}",
            rank=order["rank"],
            world_size=order["world"],
        )
    WORK[order["work"]](order, Log(order["log"]))


def main() -> None:
    """Fork a process for each line, until there are no more; say who started and how each ended."""
    waiting = b""
    living = 0
    while True:
        ready, _, _ = select.select([0], [], [], 0.003 if living else None)
        if ready:
            data = os.read(0, 2**16)
            if not data:
                return
            waiting += data
        while b"\n" in waiting:
            line, _, waiting = waiting.partition(b"\n")
            pid = os.fork()
            if not pid:
                try:
                    child(json.loads(line))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                    code = 1
                os._exit(code)
            living += 1
            say(started=pid)
        while living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            living -= 1
            say(ended=pid, status=os.waitstatus_to_exitcode(status))


def say(**facts: int) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    main()
