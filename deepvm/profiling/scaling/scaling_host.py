"""What a launcher starts on each host: ``python -m deepvm.profiling.scaling.scaling_host probe|run ...``.

``probe`` says what the host has, and which of the others it reaches. ``run`` is torchrun, under a watchdog.
Both speak to :mod:`deepvm.profiling.scaling.measure_scaling` through lines, see
:func:`deepvm.profiling.hosts.watchdog.emit`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deepvm.io.host_info import cores
from deepvm.profiling.hosts.network import boot_id, own_addresses
from deepvm.profiling.hosts.watchdog import MOST_REASON, emit, held, reason_of

WORKER = "deepvm.profiling.scaling.scaling_worker"
PORTS = range(20000, 30000)
"""Below those that Linux gives to outgoing connections: one that was free stays free until torchrun wants it."""
_CONNECT_S = 4.0
_LONGEST_HELLO = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="scaling_host")
    parser.add_argument("work", choices=("probe", "run"))
    parser.add_argument("--token", required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--master", default="127.0.0.1:29400")
    parser.add_argument("--toward", default="", help="an address of another host: its route says which card to use")
    parser.add_argument("--patience-s", type=float, default=60.0)
    order = parser.parse_args(arguments)
    with held(order.limit_s) as lines:  # in its folder is what torchrun would leave behind
        try:
            if order.work == "run":
                return _run(order)
            _report(order)
            _reach(json.loads(lines.get()), order.token)
            lines.get()  # until the watchdog ends this process: the others may still want to reach it
        except Exception as error:
            without_torch = isinstance(error, ModuleNotFoundError) and error.name == "torch"
            advice = f"{sys.executable} has no torch: install deepvm[train] for it on this host"
            emit("failed", reason=advice if without_torch else reason_of(error))
            return 1
    return 0


# --- probe ---


def _report(order: argparse.Namespace) -> None:
    """Say what this host has; the workload's model is built once, so that what cannot work is found out here."""
    import torch

    from deepvm import __version__
    from deepvm.profiling.hosts.machine import describe
    from deepvm.profiling.workload.models import build

    build(str(json.loads(order.workload)["model"]))
    listener = _listen()
    threading.Thread(target=_answer, args=(listener, f"{order.token} {order.rank}"), daemon=True).start()
    emit(
        "ready",
        port=listener.getsockname()[1],
        addresses=[a for a in own_addresses().values() if not a.startswith("127.")],
        boot=boot_id(),
        gpus=torch.cuda.device_count(),
        torch=str(torch.__version__),
        deepvm=__version__,
        machine=describe().document(),
    )


def _listen() -> socket.socket:
    for port in random.sample(PORTS, 50):
        listener = socket.socket()
        # Else the port stays taken for a minute by connections that are over, when torchrun wants it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen(64)
        except OSError:
            listener.close()
            continue
        return listener
    raise OSError(f"none of 50 ports between {PORTS[0]} and {PORTS[-1]} is free")


def _answer(listener: socket.socket, hello: str) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(hello.encode())


def _reach(peers: Sequence[dict[str, Any]], token: str) -> None:
    """Connect to each of the others, at the first of its addresses that leads there, and tell."""
    with ThreadPoolExecutor(max(min(len(peers), 64), 1)) as pool:
        emit("reached", peers=list(pool.map(lambda p: _try(p, token), peers)))


def _try(peer: dict[str, Any], token: str) -> dict[str, Any]:
    why = "no address is known"
    for address in peer["addresses"]:
        try:
            with socket.create_connection((address, peer["port"]), timeout=_CONNECT_S) as connection:
                hello = connection.recv(_LONGEST_HELLO).decode(errors="replace")
        except OSError as error:
            why = f"{address}: {error.strerror or error}"
            continue
        # Addresses such as those of container bridges are the same on every host: was it the right one that answered?
        if hello == f"{token} {peer['rank']}":
            return {"rank": peer["rank"], "address": address, "why": ""}
        why = f"{address}: somebody else answers there"
    return {"rank": peer["rank"], "address": "", "why": why[:MOST_REASON]}


# --- run ---


def _run(order: argparse.Namespace) -> int:
    card = _card_toward(order.toward)
    for backend in ("GLOO", "NCCL"):
        # Both would else choose by the host's name, which often stands for 127.0.0.1, or by the order of the cards.
        if card:
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", card)
    _share_cores(order.processes)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    address, _, port = order.master.rpartition(":")
    shared = ["--token", order.token, "--limit-s", str(order.limit_s), "--patience-s", str(order.patience_s)]
    words = ["--nnodes", str(order.nodes), "--node-rank", str(order.rank), "--nproc-per-node", str(order.processes)]
    words += ["--master-addr", address, "--master-port", port, "--rdzv-conf", f"timeout={round(order.patience_s)}"]
    words += ["--max-restarts", "0", "-m", WORKER, *shared, "--workload", order.workload]
    try:
        torchrun(words)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        if first.exitcode < 0:  # who ends otherwise has said why
            name = signal.Signals(-first.exitcode).name
            emit("failed", reason=f"its process {first.local_rank} was killed by signal {-first.exitcode} ({name})")
        return 1
    except Exception as error:  # the other hosts' torchrun is not there, or went away
        if "EADDRINUSE" in str(error):
            raise
        emit("lost", reason=reason_of(error))
        signal.pause()  # see scaling_worker: whoever lost the others must not be taken for the one who left
    return 0


def _share_cores(processes: int) -> None:
    """Give each process its part of the cores: torchrun gives each of several only one, and they look slow."""
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))


def _card_toward(address: str) -> str:
    """The network card through which packets go there, "" when that cannot be told."""
    if not address:
        return ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.connect((address, 9))  # nothing is sent
        own = asker.getsockname()[0]
        return next((name for name, a in own_addresses().items() if a == own), "")
    return ""


if __name__ == "__main__":
    sys.exit(main())
