"""A memory node with one or more trainers and states of several sizes, against hardware limits."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from deepvm.core.json_types import JsonObject
from deepvm.core.progress import Say
from deepvm.core.units import format_bytes, refuse_outside
from deepvm.documents.build import document_of
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.host_info import available_memory
from deepvm.profiling.checkpoint.node_peers import filled
from deepvm.profiling.checkpoint.node_process import MemoryNode, machine_of
from deepvm.profiling.hosts.coordinator import Coordinator, Message
from deepvm.profiling.hosts.launcher import Host
from deepvm.records import dataclass

MOST_PROCESSES = 64
WARM_UPS = 2  # Rounds that do not count: a node takes memory for its first versions
_FLOWS = (1, 2)
_SPARE_BYTES = 2**30
_HEADSTART_S = 0.05
_PER_TRAINER_S = 0.01
_ANSWER_S = 600.0
_LIMIT_S = 86_400.0
PEERS = "deepvm.profiling.checkpoint.node_peers"
_DIRECT_BYTES = 2**30
_DIRECT_BLOCK = 8 * 2**20


@dataclass(frozen=True)
class NodeRow:
    """Trainers that send states of one size at once: total bytes/s, medians of rounds."""

    trainers: int
    ranks: int  # processes of each trainer, which send a share each
    bytes: int  # of a trainer's state
    seconds: float | None = None  # until the last version is verified
    bytes_s: float | None = None  # of the node
    plain_1_bytes_s: float | None = None  # of TCP with one connection each
    plain_2_bytes_s: float | None = None
    ratio: float | None = None  # of the node's to TCP's with two
    fairness: float | None = None  # time of the first trainer over that of the last
    problem: str = ""  # why it was not measured


@dataclass(frozen=True)
class NodeBench:
    """The result; ``limits``: bytes/s of memory copies and of direct writes to the folder."""

    reps: int
    machine: JsonObject
    limits: Mapping[str, float | None]
    rows: Sequence[NodeRow]

    def document(self) -> dict[str, object]:
        return document_of("profiling.NodeBench", self)


def run_node_bench(
    trainers: Sequence[int],
    sizes: Sequence[int],
    reps: int = 5,
    *,
    ranks: int = 1,
    folder: Path | None = None,
    say: Say = lambda line: None,
) -> NodeBench:
    """Measure a node for each number of trainers, of ``ranks`` processes, and each size.

    In each of ``reps`` rounds all trainers send at once, to the node and then over plain TCP.
    Raises RequestError, CheckpointError.
    """
    for count in trainers:
        refuse_outside("trainers", count, 1, MOST_PROCESSES, what="whole numbers")
        refuse_outside("ranks", ranks, 1, MOST_PROCESSES // count)
    refuse_outside("reps", reps, 1)
    if folder is not None and not folder.is_dir():
        raise RequestError("dir", str(folder), "a folder that exists")
    rows = []
    begun = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory(prefix="deepvm-bench-", dir=folder) as name:
        work = Path(name)
        limits = {
            "memory_copy_bytes_s": _copy_speed(reps),
            "direct_write_bytes_s": _direct_speed(work, reps),
        }
        for size in sizes:
            for count in trainers:
                # The trainers' states, and of each two versions in the node.
                needed = 3 * count * size + _SPARE_BYTES
                there = available_memory()
                if there is not None and needed > there:
                    problem = (
                        f"needs {format_bytes(needed)} of memory, of which {format_bytes(there)}"
                        " are free"
                    )
                    say(f"{count} x {format_bytes(size)}: left out: {problem}")
                    rows.append(NodeRow(count, ranks, size, problem=problem))
                    continue
                rows.append(_measured(count, ranks, size, reps, work, say))
        machine = machine_of(work, begun)
    return NodeBench(reps, machine, limits, rows)


def _measured(count: int, ranks: int, size: int, reps: int, work: Path, say: Say) -> NodeRow:
    total = count * size
    rounds: list[tuple[list[float], dict[int, float]]] = []
    words = [sys.executable, "-m", PEERS, json.dumps({"limit_s": _LIMIT_S})]
    trainers = [(n, rank) for n in range(count) for rank in range(ranks)]
    names = ["receiver", *(f"trainer {n}, rank {rank}" for n, rank in trainers)]
    with (
        tempfile.TemporaryDirectory(dir=work) as folder,
        MemoryNode(Path(folder), 2 * total + 2**28) as node,
        Coordinator([(Host(name), words) for name in names]) as peers,
    ):
        peers.send(0, {"role": "receive"})
        (receiver,) = _answers(peers, [0])
        setting = {
            "role": "send",
            "size": size,
            "node": node.url,
            "token": node.secret.hex(),
            "plain_port": receiver["port"],
            "world": ranks,
        }
        places = range(1, len(names))
        for at, (n, rank) in zip(places, trainers, strict=True):
            peers.send(at, {**setting, "job": f"bench-{n}", "rank": rank})
        _answers(peers, places)
        for rep in range(1 - WARM_UPS, reps + 1):
            plain_s = {flows: max(_round(peers, places, "plain", flows)) for flows in _FLOWS}
            times = _round(peers, places, "node", rep + WARM_UPS)
            mark = f"{rep}/{reps}" if rep > 0 else "warm-up"
            speeds = [f"TCP x {n} {total / s / 1e9:5.2f} GB/s" for n, s in plain_s.items()]
            say(
                f"{mark:>8}  {count} x {format_bytes(size)}  node"
                f" {total / max(times) / 1e9:5.2f} GB/s, {', '.join(speeds)}"
            )
            if rep > 0:
                rounds.append((times, plain_s))
    node_s = [times for times, _ in rounds]
    slowest_s = median(map(max, node_s))
    one, two = (total / median(plain_s[flows] for _, plain_s in rounds) for flows in _FLOWS)
    speed = total / slowest_s
    # A trainer is done when its last rank is.
    trainers_s = [
        [max(times[at : at + ranks]) for at in range(0, len(times), ranks)] for times in node_s
    ]
    fairness = median(min(times) / max(times) for times in trainers_s)
    return NodeRow(count, ranks, size, slowest_s, speed, one, two, speed / two, fairness)


def _round(peers: Coordinator, places: Sequence[int], what: str, argument: int) -> list[float]:
    at = time.monotonic() + _HEADSTART_S + _PER_TRAINER_S * len(places)
    for place in places:
        peers.send(place, {"what": what, "argument": argument, "at": at})
    return [float(answer["seconds"]) for answer in _answers(peers, places)]


def _answers(peers: Coordinator, places: Sequence[int]) -> list[Message]:
    answers, failed = peers.collect(places, _ANSWER_S)
    for reason in failed.values():
        raise CheckpointError(f"a trainer of the benchmark failed: {reason}")
    return [answers[place] for place in places]


def _copy_speed(reps: int) -> float:
    source = filled(2**28)
    target = filled(2**28)
    return len(source) / _seconds(lambda: target.__setitem__(slice(None), source), reps)


def _direct_speed(folder: Path, reps: int) -> float | None:
    block = filled(_DIRECT_BLOCK)
    path = folder / "direct"

    def write() -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        try:
            for _ in range(_DIRECT_BYTES // _DIRECT_BLOCK):
                os.write(file, block)
            os.fdatasync(file)
        finally:
            os.close(file)

    try:
        return _DIRECT_BYTES / _seconds(write, reps)
    except OSError:
        return None
    finally:
        path.unlink(missing_ok=True)


def _seconds(work: Callable[[], object], reps: int) -> float:
    times = []
    for _ in range(reps + 1):  # the first takes the memory or the blocks
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return median(times[1:])
