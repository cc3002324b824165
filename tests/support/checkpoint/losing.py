"""The harness of lost machines: memory nodes that keep each version twice, of which one is lost
with all it had.

The invariant is that of killing.py, and holds for versions that no disk has: what was acknowledged
can be restored.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.checkpoint.network.endpoint import Address
from support.checkpoint.killing import STEPS, Arena, Broken, Case, Child


@dataclass
class Loss:
    """One training, one of whose nodes is lost.

    Attributes:
        at: where the first node is killed. after_s: or when. reader_at: where it is killed once
            more, while the next run restores from it.
        nodes: how many. world: ranks. disks: whether nodes have one; it is lost too.
        returns: it comes back at once, empty. trainers: they are killed with it. slow: the other
        nodes are. change, resume_change: mutations of the trainers, and of the next run.
    """

    at: str = ""
    after_s: float = -1.0
    reader_at: str = ""
    nodes: int = 2
    world: int = 1
    disks: bool = False
    returns: bool = True
    trainers: bool = False
    slow: bool = False
    change: tuple[str, ...] = ()
    resume_change: tuple[str, ...] = ()


def lose(arena: Arena, loss: Loss) -> bool:
    """Run a case; returns whether a node was lost. Raises Broken."""
    try:
        return _lose(arena, loss)
    except Broken:
        arena.nursery.kill()
        raise


def _lose(arena: Arena, loss: Loss) -> bool:
    arena._count += 1
    home = arena.folder / f"case{arena._count}"
    home.mkdir()
    nursery, truth = arena.nursery, arena.uninterrupted(loss.world)
    nodes = [
        _serve(arena, loss, home, number, loss.at if not number else "")
        for number in range(loss.nodes)
    ]
    urls = [node.await_line("listening")[1] for node in nodes]
    order: dict[str, Any] = {
        "job": f"job{arena._count}",
        "steps": STEPS,
        "keep": 1000,
        "urls": urls,
        "step_s": 0.005,
    }
    # Slower steps than the node, or versions are skipped and the training is over before it is
    # killed.
    pace = {"step_s": 0.15} if loss.slow else {}
    case = Case(world=loss.world)
    trainers = arena._train("train", {**order, **pace}, case, home / "meet", loss.change, "")
    if loss.after_s >= 0:
        trainers[0].await_line("restored")
        time.sleep(loss.after_s)
        nodes[0].kill()
    lost = False
    while not all(nursery.ended(t) for t in trainers):
        if not lost and nursery.ended(nodes[0]):
            lost = True
            if loss.trainers:
                # A trainer that believes the first node alone has time to say so
                time.sleep(0.03 if loss.slow else 0)
                for trainer in trainers:
                    trainer.kill()
            nodes[0] = _lost(arena, loss, home, nodes[0], urls[0])
        time.sleep(0.002)
    codes = [nursery.wait(t) for t in trainers]
    if any(code > 0 for code in codes):
        raise Broken(
            f"a training failed: {codes}"
            f" {trainers[codes.index(max(codes))].errors.read_text()[-3000:]}"
        )
    acknowledged = arena._acknowledged(trainers, truth, durable_only=False)
    arena.promised += len(acknowledged)
    if not any(codes):
        arena._check_end(trainers, truth)
    if loss.reader_at:  # it has everything, and dies while it gives it
        record = home / "node0" / f"{order['job']}-{STEPS:012d}.pt.json"
        deadline = time.monotonic() + 10
        while not record.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        nodes[0].kill()
        nursery.wait(nodes[0])
        nodes[0] = _serve(arena, loss, home, 0, loss.reader_at, Address.parse(urls[0]).port)
        nodes[0].await_line("listening")  # else the others are read
    # Old versions are on the first one's disk alone: who reads them as well would miss them
    # rightly.
    work = "train" if loss.reader_at else "resume"
    after = arena._train(work, order, case, home / "meet2", loss.resume_change, "")
    restored, text = after[0].await_line("restored")[1:]
    if loss.reader_at and (int(restored) < max(acknowledged) or text != truth[int(restored)]):
        raise Broken(f"restored {restored} {text}; acknowledged {sorted(acknowledged)}")
    if not loss.reader_at:
        # A memory without a disk keeps the newest
        arena._check_found(after[0], acknowledged, truth, 1)
    codes = [nursery.wait(child) for child in after]
    if any(codes):
        raise Broken(f"the next run failed: {codes} {after[0].errors.read_text()[-3000:]}")
    arena._check_end(after, truth)
    if loss.reader_at and nursery.ended(nodes[0]):
        arena.kills[f"node: {loss.reader_at.partition(':')[0]}"] += 1
        lost = True
    for node in nodes:
        node.kill()
        nursery.wait(node)
    return lost


def _serve(
    arena: Arena, loss: Loss, home: Path, number: int, kill_at: str = "", port: int = 0
) -> Child:
    persist = str(home / f"node{number}") if loss.disks or (loss.reader_at and not number) else ""
    change = ["slow_node"] if loss.slow and number else []
    return arena.nursery.start(
        "serve", persist=persist, keep=1000, kill_at=kill_at, port=port, change=change
    )


def _lost(arena: Arena, loss: Loss, home: Path, node: Child, url: str) -> Child:
    """The machine is gone, with its disk.

    Perhaps another one takes its place, which knows nothing.
    """
    arena.nursery.wait(node)
    arena.kills[f"node: {loss.at.partition(':')[0] or 'at any time'}"] += 1
    shutil.rmtree(home / "node0", ignore_errors=True)
    if not loss.returns:
        return node
    again = _serve(arena, loss, home, 0, port=Address.parse(url).port)
    again.await_line("listening")
    return again
