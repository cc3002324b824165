"""What the ranks do that the tests start with mpirun: ``mpi_ranks.py ROLE FOLDER ...``.

Each tells of it in a file.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import queue
import socket
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network.endpoint import endpoint_of
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError
from deepvm.io import failpoints
from support.checkpoint.images import noise, plain_shard
from support.checkpoint.memory_nodes import MIB, TOKEN, Acks, until

SIZE = 24 * MIB
VICTIM = 0
LONGEST_S = 50


def node(folder: Path) -> Mapping[str, object]:
    """A memory node whose disk takes its time with the victim's version: it is on its way when the
    victim dies.
    """
    from deepvm.checkpoint.files.version_dir import VersionFolder
    from deepvm.checkpoint.format.manifest import NewVersion
    from deepvm.checkpoint.network.endpoint import MpiEndpoint
    from deepvm.checkpoint.network.mpi_streams import carrier
    from deepvm.checkpoint.node.server import Node, NodeSettings

    write = VersionFolder.write

    def slow(self: VersionFolder, new: NewVersion) -> None:
        deadline = time.monotonic() + 10
        while new.job == "victim" and VICTIM not in carrier()._gone and time.monotonic() < deadline:
            time.sleep(0.01)
        if new.job == "victim":
            time.sleep(0.3)
        write(self, new)

    VersionFolder.write = slow  # type: ignore[method-assign]
    here = Node(NodeSettings(MpiEndpoint.here(), TOKEN, 256 * MIB, (folder / "kept").as_uri()))
    here.start()
    while VICTIM not in carrier()._gone:
        time.sleep(0.01)
    found: dict[str, object] = {}
    jobs = here.registry.jobs["victim"]
    found["acknowledged_at_death"] = 1 in jobs.complete
    found["flushed_at_death"] = jobs.complete[1].flushed
    found["dropped_bytes"] = sum(
        end - start for ranges in jobs.partial[2].received.values() for start, end in ranges
    )
    (folder / "dead").touch()
    while not here.deserted():
        time.sleep(0.01)
    return {**found, "left": here.stop()}


def train(
    folder: Path, url: str, job: str, first: str, last: str, kill: str = ""
) -> Mapping[str, object]:
    """Save versions.

    Killed in the middle of the last one when told to: at the twelfth of 24 messages.
    """
    session = f"run of {job}"
    tier = (
        TcpTier(endpoint_of(url, "tiers"), session, TOKEN, wire_bytes=MIB)
        if kill
        else open_tier(url, session)
    )
    for version in range(int(first), int(last) + 1):
        acks = Acks()
        if kill and version == int(last):
            failpoints._label, failpoints._left = "sender.mid-chunk", 12
        tier.put(plain_shard(noise(SIZE, version), version, job), acks)
        assert acks.wait(Level.REMOTE, 30)
    assert tier.settle(30)
    manifest = tier.versions(job)[0]
    path = tier.fetch(manifest, folder / "restored")
    tier.close()
    return {"version": manifest.version, "same": path.read_bytes() == noise(SIZE, manifest.version)}


def long(folder: Path, job: str) -> Mapping[str, object]:
    """Save until the other one is dead, and three versions more.

    Then restore what both have saved.
    """
    tier, version, after = open_tier("mpi://", f"run of {job}"), 0, 0
    deadline = time.monotonic() + 30
    while after < 3 and time.monotonic() < deadline:
        version += 1
        acks, dead = Acks(), (folder / "dead").exists()
        tier.put(plain_shard(noise(MIB, version), version, job), acks)
        assert acks.wait(Level.REMOTE, 30)
        after += dead
        time.sleep(0.05)
    settled = tier.settle(30)
    newest, others = tier.versions(job)[0], tier.versions("victim")
    same = tier.fetch(newest, folder / "restored").read_bytes() == noise(MIB, version)
    others_same = tier.fetch(others[0], folder / "restored").read_bytes() == noise(SIZE, 1)
    tier.close()
    try:
        open_tier(f"mpi://{VICTIM}", "a run").versions("job")
        refused = ""
    except CheckpointError as error:
        refused = str(error)
    return {
        "to_the_dead": refused,
        "settled": settled,
        "after_death": after,
        "same": same,
        "victim": [m.version for m in others],
        "victim_same": others_same,
    }


def streams(folder: Path) -> Mapping[str, object]:
    """Both ranks; the second one echoes."""
    from deepvm.checkpoint.network import mpi_streams
    from deepvm.checkpoint.network.mpi_streams import carrier

    here = carrier()
    if here.rank:
        return _echo(folder)
    found: dict[str, object] = {}
    mpi_streams._START_S = 0.1
    try:
        open_tier("mpi://1", "a run").versions("job")
    except CheckpointError as error:
        found["nobody"] = str(error)
    (folder / "go").touch()
    assert until((folder / "serving").exists)
    data = bytes(noise(5 * MIB + 12345))
    sent, echoes = [], []
    socks = [here.connect(1) for _ in range(3)]
    for number, sock in enumerate(socks):  # several at once, of odd sizes
        part = data[number : (number + 1) * 1_777_777]
        thread = threading.Thread(
            target=lambda sock=sock, part=part: (sock.sendall(part), sock.shutdown(socket.SHUT_WR))
        )
        thread.start()
        back = b"".join(iter(lambda sock=sock: sock.recv(2**17), b""))
        thread.join()
        sent.append(zlib.crc32(part))
        echoes.append(zlib.crc32(back))
    found |= {"sent": sent, "echoes": echoes}
    found["heard_after_end"] = "all of it" if len(back) == len(part) else len(back)
    deaf = here.connect(1)  # to which it does not listen: it closes at the first byte
    count = 0
    with contextlib.suppress(OSError):
        while count < 64 * MIB:
            deaf.sendall(b"!" * 2**16)
            count += 2**16
    found["broken_after_bytes"] = count
    for sock in (*socks, deaf):
        sock.close()
    until(lambda: not here._streams)
    (folder / "end").touch()
    assert until((folder / "left").exists)
    return {
        **found,
        "left_here": len(here._streams),
        "left_there": int((folder / "left").read_text()),
    }


def _echo(folder: Path) -> Mapping[str, object]:
    from deepvm.checkpoint.network.mpi_streams import carrier

    here = carrier()
    assert until((folder / "go").exists)
    door = here.serve()
    (folder / "serving").touch()
    threads = []

    def answer(sock: socket.socket) -> None:
        data = sock.recv(2**16)
        if data[:1] != b"!" or data.count(b"!") < len(data):
            data += b"".join(iter(lambda: sock.recv(2**16), b""))
            sock.sendall(data)
        sock.close()

    while not (folder / "end").exists():
        with contextlib.suppress(queue.Empty):
            found = door.get(timeout=0.05)
            assert found is not None
            threads.append(threading.Thread(target=answer, args=(found[0],)))
            threads[-1].start()
    for thread in threads:
        thread.join()
    until(lambda: not here._streams)
    hidden = folder / "left.tmp"
    hidden.write_text(str(len(here._streams)))
    hidden.rename(folder / "left")
    sys.exit()


def distributed(folder: Path, job: str, last: str, port: str) -> Mapping[str, object]:
    """train_ranks.py as mpirun starts it: all but the last rank are torch's."""
    environ = os.environ
    environ |= {
        "RANK": environ["OMPI_COMM_WORLD_RANK"],
        "WORLD_SIZE": str(int(environ["OMPI_COMM_WORLD_SIZE"]) - 1),
    }
    environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "DEEPVM_JOB": job,
        "OMP_NUM_THREADS": "1",
    }
    from support.checkpoint import train_ranks

    sys.argv = ["train_ranks.py", "mpi://", last, "3", str(folder / f"out-{job}-{last}")]
    train_ranks.main()
    return {}


def main() -> None:
    # Before the test ends it: where it stood is all there is to know
    faulthandler.dump_traceback_later(LONGEST_S)
    name, folder = sys.argv[1], Path(sys.argv[2])
    roles = {"node": node, "train": train, "long": long, "streams": streams, "torch": distributed}
    found = roles[name](folder, *sys.argv[3:])
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    hidden = folder / f".{name}-{rank}.tmp"
    hidden.write_text(json.dumps(found))
    hidden.rename(folder / f"{name}-{rank}.json")
    # As train_ranks.py leaves, but not without ending MPI, or mpirun may wait for ever
    if name == "torch":
        from mpi4py import MPI

        atexit._run_exitfuncs()
        MPI.Finalize()
        os._exit(0)


if __name__ == "__main__":
    main()
