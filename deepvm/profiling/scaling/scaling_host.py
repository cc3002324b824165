"""The hosts' programs; ``work``: ``probe``, ``run`` (torchrun), ``train`` (its process)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.host_info import cores
from deepvm.io.threads import start_thread
from deepvm.profiling.hosts.machine import address_toward, boot_id, describe, own_addresses
from deepvm.profiling.hosts.watchdog import MOST_REASON, agent, emit, reason_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deepvm.profiling.workload.train_step import Ranks, Training

MODULE = "deepvm.profiling.scaling.scaling_host"
# Below Linux's ports for outgoing connections: a free one stays free until torchrun needs it
PORTS = range(20000, 30000)
_CONNECT_S = 4.0
_LONGEST_HELLO = 256


def _probe(order: JsonObject, lines: SimpleQueue[str]) -> None:
    """Report what this host has, after building the model once to find failures early."""
    from deepvm import __version__

    _built(order["workload"])
    token = order["token"]
    listener = _listen()
    start_thread(_answer, listener, f"{token} {order['rank']}")
    emit(
        "ready",
        port=listener.getsockname()[1],
        addresses=[a for a in own_addresses().values() if not a.startswith("127.")],
        boot=boot_id(),
        deepvm=__version__,
        machine=describe(),
    )
    peers = json.loads(lines.get())
    with ThreadPoolExecutor(max(min(len(peers), 64), 1)) as pool:
        emit("reached", peers=list(pool.map(lambda peer: _reach(peer, token), peers)))
    lines.get()  # until the watchdog ends this process: the others may still want to reach it


def _listen() -> socket.socket:
    for port in random.sample(PORTS, 50):
        with contextlib.suppress(OSError):
            # With SO_REUSEADDR: connections that are over do not keep torchrun from the port
            return socket.create_server(("", port), backlog=64)
    raise OSError(f"none of 50 ports between {PORTS[0]} and {PORTS[-1]} is free")


def _answer(listener: socket.socket, hello: str) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(hello.encode())


def _reach(peer: JsonDict, token: str) -> JsonDict:
    why = "no address is known"
    for address in peer["addresses"]:
        try:
            with socket.create_connection(
                (address, peer["port"]), timeout=_CONNECT_S
            ) as connection:
                hello = connection.recv(_LONGEST_HELLO).decode(errors="replace")
        except OSError as error:
            why = f"{address}: {error.strerror or error}"
            continue
        # Addresses of container bridges, for example, are the same on every host
        if hello == f"{token} {peer['rank']}":
            return {"rank": peer["rank"], "address": address, "why": ""}
        why = f"{address}: another program answers there"
    return {"rank": peer["rank"], "address": "", "why": why[:MOST_REASON]}


def _run(order: JsonObject, lines: SimpleQueue[str]) -> None:
    card = ""
    with contextlib.suppress(OSError):
        own = address_toward(order["toward"])
        card = next((name for name, a in own_addresses().items() if a == own), "")
    for backend in ("GLOO", "NCCL"):
        # Both would else choose by the host's name, which often stands for 127.0.0.1, or by the
        # order of the cards
        if card:
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", card)
    # What processes that are killed leave goes with this one's folder
    os.environ["TMPDIR"] = tempfile.gettempdir()
    processes = order["workload"]["processes"]
    _share_cores(processes)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    address, _, port = order["master"].rpartition(":")
    words = (
        f"--nnodes {order['nodes']} --node-rank {order['rank']} --nproc-per-node {processes}"
        f" --master-addr {address} --master-port {port}"
        f" --rdzv-conf timeout={round(order['patience_s'])} --max-restarts 0 -m {MODULE}"
    ).split()
    try:
        torchrun([*words, json.dumps({**order, "work": "train"})])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        if first.exitcode < 0:  # who ends otherwise has said why
            name = signal.Signals(-first.exitcode).name
            reason = (
                f"its process {first.local_rank} was killed by signal {-first.exitcode} ({name})"
            )
            emit("failed", reason=reason)
        raise SystemExit(1) from None
    except Exception as error:  # the other hosts' torchrun is not there, or went away
        if "EADDRINUSE" in str(error):
            raise
        emit("lost", reason=reason_of(error))
        signal.pause()  # see _train: a rank that lost the others is not the one that left


def _share_cores(processes: int) -> None:
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))


def _train(order: JsonObject, lines: SimpleQueue[str]) -> None:
    try:
        _measure(order["workload"], order["patience_s"])
    except Exception as error:
        if _of_the_network(error):
            emit("lost", reason=reason_of(error))
            # Anyone who ends first would be taken for the one who failed
            lines.get()  # nothing comes: the watchdog ends this process
        traceback.print_exc()  # the last lines of a host that failed are shown
        raise


def _measure(workload: JsonObject, patience_s: float) -> None:
    """Time windows of DDP steps (DeepVM V-A); every process has the same batch (weak scaling)."""
    import torch

    from deepvm.profiling.workload.train_step import Ranks

    emit("arrived")
    device = torch.device("cpu")
    if workload["device"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device, None, patience_s)

    def tell(event: str, **facts: Any) -> None:
        if ranks.rank == 0:
            emit(event, **facts)

    ranks.slowest(0.0)  # all are there
    tell("joined")
    torch.manual_seed(0)
    training = _training(workload, device, ranks)
    steps = workload["steps"]
    training.run(workload["warmup"])
    for number in range(workload["windows"]):
        tell("window", number=number, seconds=training.run(steps) / steps)
    ranks.slowest(0.0)
    tell("done")
    ranks.slowest(0.0)
    ranks.close()


def _training(workload: JsonObject, device: torch.device, ranks: Ranks) -> Training:
    from deepvm.profiling.workload.models import CLASSES
    from deepvm.profiling.workload.spec import Workload
    from deepvm.profiling.workload.train_step import Training, synthetic

    resolution = workload["resolution"] or 0
    dtype = workload.get("dtype", "float32")
    own = Workload(workload["model"], resolution, workload["batch"], dtype)
    model = _built(workload).train()
    shard = None
    if _is_text(workload):
        from deepvm.profiling.workload import language

        assert isinstance(model, language.Language)
        preset = language.preset(own.model, workload["sequence"])
        batches = language.synthetic_text(own.batch, preset, device)
        if workload["method"] == "fsdp":
            shard = partial(language.shard, model, device=device, world=ranks.world)
        else:
            language.fill(model, device)
    else:
        batches = synthetic(own.batch, own.resolution, CLASSES, device)
    return Training(model, own, batches, device, ranks, shard)


def _built(workload: JsonObject) -> nn.Module:
    if _is_text(workload):
        from deepvm.profiling.workload import language

        text = language.preset(workload["model"], workload["sequence"])
        return language.on_meta(text, checkpointing=workload["activation_checkpointing"])
    from deepvm.profiling.workload.models import build

    return build(workload["model"])


def _is_text(workload: JsonObject) -> bool:
    return workload.get("method") is not None


def _of_the_network(error: Exception) -> bool:
    """Whether a process lost contact with another one; gloo has no exception class for that."""
    import torch.distributed as dist

    text = str(error).lower()
    return (
        isinstance(error, dist.DistError) or "gloo" in text or "connection closed by peer" in text
    )


if __name__ == "__main__":
    works = {"probe": _probe, "run": _run, "train": _train}
    agent(lambda order, lines: works[order["work"]](order, lines))
