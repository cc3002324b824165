"""Which VMs can hold checkpoints: eq. 6 as DeepVM prints it, or with what a real VM keeps for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from deepvm.core.cluster.saturation import SaturationTable

KERNEL_BYTES = 300_000_000
KERNEL_PERCENT = 5
"""Of a VM's memory, what its firmware and kernel keep. MemTotal of EC2's types, as the Karpenter project measured it
(aws/karpenter-provider-aws, generated table of memory overhead, 2023), lies below what AWS advertises by at most this,
VT1 aside: 0.22 GB of 2 GiB (c6g.medium), 0.45 of 4 (c5.large), 0.59 of 8 (m5.large), 2.85 of 64 (m5.4xlarge)."""

SYSTEM_BYTES = 300_000_000  # an idle Ubuntu, Debian or Amazon Linux, and an upgrade that runs by itself now and then

NODE_BYTES = 300_000_000
"""What 'deepvm memory-node serve' needs beside its versions. Measured on 2026-11-23 (Python 3.11, x86_64): 25 MiB when
idle; 29 MiB with 17 senders of 300 MiB and a folder; 44 MiB with 17 readers of it at once; with s3:// 54 MiB when idle
and 210 MiB with these senders, most of it parts on their way into the bucket."""

SOCKET_PERCENT = 10
"""What came and was not read yet. Linux lets all TCP together have 9.4 % of the memory (tcp_mem) and cannot take it
back; 9 senders of 1000 MiB filled 210 MiB of it on 2026-11-23, 17 of 300 MiB 73 MiB."""


def room_of_system(memory_bytes: int) -> int:
    """What may be checkpoints of the memory that the system of a running VM says it has (MemTotal)."""
    return max(0, memory_bytes * (100 - SOCKET_PERCENT) // 100 - SYSTEM_BYTES - NODE_BYTES)


@dataclass(frozen=True)
class MemoryNodeRule:
    """What a VM must have to hold checkpoints.

    Attributes:
        name: what catalog files call it.
        reserved_bytes, reserved_percent: memory of any VM, and share of it, that no checkpoint can have.
        least_vcpus: it receives, verifies and writes at the same time.
        sustained: whether its network counts with what it sustains, where known, not with a peak of some minutes. Below
            the first row of a table n_sat then falls in proportion; eq. 6's own reading takes the first row.
        current: whether a previous generation must be asked for.
    """

    name: str
    reserved_bytes: int = 0
    reserved_percent: int = 0
    least_vcpus: int = 1
    sustained: bool = False
    current: bool = False

    def room_bytes(self, memory_bytes: int) -> int:
        """How much of a VM's memory may be checkpoints, at least 0; f x s must fit (eq. 6)."""
        return max(0, memory_bytes * (100 - self.reserved_percent) // 100 - self.reserved_bytes)

    def n_sat(self, table: SaturationTable, network_gbps: float) -> int:
        """How many senders saturate a memory node with this bandwidth (eq. 14), at least 1."""
        least = table.network_gbps[0]
        if self.sustained and network_gbps < least:
            # Nobody has measured less than the first row, and a table that rises less than its bandwidth, as Table V
            # does, lies nowhere below the line from 0 to it.
            return max(1, int(Fraction(network_gbps) * table.n_sat[0] / Fraction(least)))
        return int(table.lookup(network_gbps))


PAPER_NODES = MemoryNodeRule("paper")  # DeepVM's own: MEM(w) >= f s and nothing else

REAL_NODES = MemoryNodeRule(
    "real",
    reserved_bytes=KERNEL_BYTES + SYSTEM_BYTES + NODE_BYTES,
    reserved_percent=KERNEL_PERCENT + SOCKET_PERCENT,
    least_vcpus=2,
    sustained=True,
    current=True,
)
"""For VMs that are rented: checkpoints may have 2.75 GB of 4 GiB, 6.4 GB of 8, 13.7 GB of 16, 57.5 GB of 64."""

RULES: Mapping[str, MemoryNodeRule] = {rule.name: rule for rule in (REAL_NODES, PAPER_NODES)}
