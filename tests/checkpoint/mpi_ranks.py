"""What the ranks do that the tests start with mpirun: ``mpi_ranks.py ROLE FOLDER ...``; each tells of it in a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from checkpoint.images import noise, plain_shard
from checkpoint.memory_nodes import MIB, TOKEN, Acks

from deepvm.checkpoint import points
from deepvm.checkpoint.manifest import Manifest
from deepvm.checkpoint.tiers.base import Level
from deepvm.checkpoint.tiers.open import open_tier
from deepvm.errors import CheckpointError

SIZE = 24 * MIB
VICTIM = 0


def node(folder: Path) -> Mapping[str, object]:
    """A memory node whose disk takes its time with the victim's version: it is on its way when the victim dies."""
    from deepvm.checkpoint.folder import VersionFolder
    from deepvm.checkpoint.node.server import Node, NodeSettings
    from deepvm.checkpoint.streams import carrier
    from deepvm.checkpoint.tiers.mpi import MpiPlace

    write = VersionFolder.write

    def slow(self: VersionFolder, image: memoryview, manifest: Manifest) -> Path:
        deadline = time.monotonic() + 10
        while manifest.job == "victim" and VICTIM not in carrier()._gone and time.monotonic() < deadline:
            time.sleep(0.01)
        if manifest.job == "victim":
            time.sleep(0.3)
        return write(self, image, manifest)

    VersionFolder.write = slow  # type: ignore[method-assign]
    here = Node(NodeSettings(MpiPlace.here(), TOKEN, 256 * MIB, folder / "kept"))
    here.start()
    while VICTIM not in carrier()._gone:
        time.sleep(0.01)
    found: dict[str, object] = {}
    jobs = here.shelf.jobs["victim"]
    found["acknowledged_at_death"] = 1 in jobs.complete
    found["flushed_at_death"] = jobs.complete[1].flushed
    found["dropped_bytes"] = sum(r.total for r in jobs.partial[2].received.values())
    (folder / "dead").touch()
    while not here.deserted():
        time.sleep(0.01)
    return {**found, "left": here.stop()}


def train(folder: Path, job: str, first: str, last: str, kill: str = "") -> Mapping[str, object]:
    """Save versions; killed in the middle of the last one when told to."""
    tier = open_tier("mpi://", f"run of {job}")
    for version in range(int(first), int(last) + 1):
        acks = Acks()
        if kill and version == int(last):
            points._label, points._left = "sender.mid-chunk", 12
        tier.put(plain_shard(noise(SIZE, version), version, job), acks)
        assert acks.wait(Level.REMOTE, 30)
    assert tier.settle(30)
    manifest = tier.versions(job)[0]
    path = tier.fetch(manifest, folder / "restored")
    tier.close()
    return {"version": manifest.version, "same": path.read_bytes() == noise(SIZE, manifest.version)}


def long(folder: Path, job: str) -> Mapping[str, object]:
    """Save until the other one is dead, and three versions more; then restore what both have saved."""
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
    return {
        "settled": settled,
        "after_death": after,
        "same": same,
        "victim": [m.version for m in others],
        "victim_same": others_same,
    }


def nobody(folder: Path) -> Mapping[str, object]:
    """Both are trainers, and neither a node."""
    tier = open_tier("mpi://1", "a run")
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        while not list(folder.glob("nobody-*.json")):
            time.sleep(0.05)
        sys.exit()
    try:
        tier.versions("job")
    except CheckpointError as error:
        return {"error": str(error)}
    return {"error": ""}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    found = {"node": node, "train": train, "long": long, "nobody": nobody}[name](folder, *sys.argv[3:])
    hidden = folder / f".{name}.tmp"
    hidden.write_text(json.dumps(found))
    hidden.rename(folder / f"{name}-{os.environ['OMPI_COMM_WORLD_RANK']}.json")


if __name__ == "__main__":
    main()
