"""Which VMs can hold checkpoints, and how many senders a memory node takes.

Memory: eq. 6 as DeepVM prints it, each node alone; or with what a real VM keeps for itself, and
with nodes that share each checkpoint, as the runtime does (``tcp://a,b``). Network: n_sat (DeepVM
III-C2, Table V).
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.errors import RequestError
from deepvm.records import dataclass

KERNEL_BYTES = 300_000_000
# Memory that firmware and kernel keep. MemTotal of EC2's types, as the Karpenter project measured
# it (aws/karpenter-provider-aws, generated table of memory overhead, 2023), lies below what AWS
# advertises by at most this, VT1 aside: 0.22 GB of 2 GiB (c6g.medium), 0.45 of 4 (c5.large), 0.59
# of 8 (m5.large), 2.85 of 64 (m5.4xlarge).
KERNEL_PERCENT = 5

# An idle Ubuntu, Debian or Amazon Linux, and an unattended upgrade now and then
SYSTEM_BYTES = 300_000_000

# What 'deepvm memory-node serve' needs besides its versions. Measured on 2026-11-23 (Python 3.11,
# x86_64): 25 MiB when idle; 29 MiB with 17 senders of 300 MiB and a folder; 44 MiB with 17 readers
# of it at once; with s3:// 54 MiB when idle and 210 MiB with these senders, most of it parts on
# their way into the bucket.
NODE_BYTES = 300_000_000

# Received data that was not read yet. Linux lets all TCP together have 9.4 % of the memory
# (tcp_mem) and cannot reclaim it; 9 senders of 1000 MiB filled 210 MiB of it on 2026-11-23, 17 of
# 300 MiB 73 MiB.
SOCKET_PERCENT = 10


MOST_PARTS = 64  # Memory nodes that one checkpoint is split over, at most

# What a part of a checkpoint has besides its bytes. The parts are equal but for one byte. Each has
# the layout of the whole checkpoint, a digest of each rank and 3 kB around them, and starts at a
# page. Measured on 2026-11-25: 67 kB with 900 tensors of one process, 0.17 MB of 8, 0.97 MB of 64;
# computed for 840 GB in 2200 tensors: 3.4 MB of 64 processes, 13 MB of 256.
PART_BYTES = 16_000_000


def room_of_system(memory_bytes: int) -> int:
    """Bytes of a running VM for checkpoints, given its MemTotal.

    Without :data:`KERNEL_PERCENT`: MemTotal is what firmware and kernel have left already.
    """
    return max(0, memory_bytes * (100 - SOCKET_PERCENT) // 100 - SYSTEM_BYTES - NODE_BYTES)


@dataclass(frozen=True)
class SaturationTable:
    """n_sat by bandwidth: the number of senders at which one more sender stops helping (eq. 14).

    ``network_gbps`` are strictly increasing bandwidths in Gbit/s, ``n_sat`` whole numbers >= 1 that
    never decrease. A bandwidth between two rows counts as the lower one, which was measured; below
    the first row as the first.
    """

    network_gbps: tuple[float, ...]
    n_sat: tuple[int, ...]

    def __post_init__(self) -> None:
        gbps = self.network_gbps
        n_sat = self.n_sat
        if not gbps or len(gbps) != len(n_sat):
            allowed = "one n_sat for each bandwidth, at least one row"
            raise RequestError("n_sat", (gbps, n_sat), allowed)
        if not all(0 < g < float("inf") for g in gbps) or list(gbps) != sorted({*gbps}):
            allowed = "positive bandwidths in Gbit/s, strictly increasing"
            raise RequestError("network_gbps", gbps, allowed)
        whole = all(1 <= n < float("inf") and n == int(n) for n in n_sat)
        if not whole or list(n_sat) != sorted(n_sat):
            allowed = "whole numbers >= 1 that never decrease with bandwidth"
            raise RequestError("n_sat", n_sat, allowed)
        object.__setattr__(self, "network_gbps", tuple(float(g) for g in gbps))
        object.__setattr__(self, "n_sat", tuple(int(n) for n in n_sat))

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[float, int]]) -> "SaturationTable":
        ordered = sorted(rows)
        return cls(tuple(g for g, _ in ordered), tuple(n for _, n in ordered))

    def lookup(self, network_gbps: float | FloatArray) -> IntArray:
        """n_sat of bandwidths in Gbit/s, same shape; for a pair of VMs the smaller one counts."""
        row = np.searchsorted(self.network_gbps, network_gbps, side="right") - 1
        return np.asarray(self.n_sat, dtype=np.int64)[np.maximum(row, 0)]


# DeepVM Table V, measured by its authors on AWS in 2023
PAPER_TABLE = SaturationTable(
    (0.3, 1.7, 5.0, 10.0, 12.5, 15.0, 25.0, 30.0), (3, 12, 16, 20, 24, 24, 28, 32)
)


@dataclass(frozen=True)
class MemoryNodeRule:
    """What a VM needs to hold checkpoints."""

    name: str
    reserved_bytes: int = 0  # that no checkpoint can have
    reserved_percent: int = 0  # that no checkpoint can have
    least_vcpus: int = 1  # it receives, verifies and writes at the same time
    # Use the sustained bandwidth where known, not a peak of some minutes; n_sat falls below a table
    sustained: bool = False
    current: bool = False  # a previous generation must be asked for
    # Nodes hold a checkpoint together, in up to MOST_PARTS equal parts; else each all of it (eq. 6)
    shared: bool = False

    @property
    def most_nodes(self) -> int | None:
        if self.shared:
            return MOST_PARTS
        return None

    def room_bytes(self, memory_bytes: int) -> int:
        return max(0, memory_bytes * (100 - self.reserved_percent) // 100 - self.reserved_bytes)

    def share_bytes(self, memory_bytes: int, checkpoint_bytes: int, buffers: int) -> int:
        """A VM's share of the capacity: m nodes hold the checkpoints if m x share >= f x s.

        A VM that can hold all checkpoints adds all of its memory (eq. 6). Else it holds ``buffers``
        parts, less :data:`PART_BYTES` for each; or nothing, where nodes do not share.
        """
        room = self.room_bytes(memory_bytes)
        if room >= checkpoint_bytes * buffers:
            return room
        if self.shared:
            return max(0, room - buffers * PART_BYTES)
        return 0

    def least_nodes(self, memory_bytes: int, checkpoint_bytes: int, buffers: int) -> int | None:
        """The fewest VMs that hold ``buffers`` checkpoints; None if no allowed number does."""
        share = self.share_bytes(memory_bytes, checkpoint_bytes, buffers)
        if not share:
            if checkpoint_bytes * buffers:
                return None
            return 1
        count = max(1, -(-checkpoint_bytes * buffers // share))
        if self.most_nodes is None or count <= self.most_nodes:
            return count
        return None

    def largest_checkpoint(self, memory_bytes: int, buffers: int) -> int:
        """The largest checkpoint, bytes, of which VMs with this memory hold so many."""
        room = self.room_bytes(memory_bytes)
        if not self.shared:
            return room // buffers
        return max(room, MOST_PARTS * max(0, room - buffers * PART_BYTES)) // buffers

    def n_sat(self, table: SaturationTable, network_gbps: float) -> int:
        """How many senders saturate a memory node with this bandwidth (eq. 14), at least 1."""
        least = table.network_gbps[0]
        if self.sustained and network_gbps < least:
            # Below the first row nothing is measured. A table that rises less than its bandwidth,
            # as Table V does, lies nowhere below the line from 0 to it.
            return max(1, int(Fraction(network_gbps) * table.n_sat[0] / Fraction(least)))
        return int(table.lookup(network_gbps))


PAPER_NODES = MemoryNodeRule("paper")  # DeepVM's own: MEM(w) >= f s and nothing else

# For rented VMs: checkpoints may take 2.75 of 4 GiB, 6.4 of 8, 13.7 of 16, 57.5 of 64 (in GB)
REAL_NODES = MemoryNodeRule(
    "real",
    reserved_bytes=KERNEL_BYTES + SYSTEM_BYTES + NODE_BYTES,
    reserved_percent=KERNEL_PERCENT + SOCKET_PERCENT,
    least_vcpus=2,
    sustained=True,
    current=True,
    shared=True,
)

RULES: Mapping[str, MemoryNodeRule] = {rule.name: rule for rule in (REAL_NODES, PAPER_NODES)}
