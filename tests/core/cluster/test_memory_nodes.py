"""Which VMs can hold checkpoints, by the figures of real ones."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from support.builders import cpu_type

from deepvm.core.cluster.memory_nodes import (
    MOST_PARTS,
    PAPER_NODES,
    PAPER_TABLE,
    PART_BYTES,
    REAL_NODES,
    SaturationTable,
    room_of_system,
)
from deepvm.core.units import GIB

# MemTotal that EC2's types lack of what AWS advertises, bytes; see KERNEL_BYTES.
MISSING = {
    "c6g.medium": (2, 218_644_480),
    "c5.large": (4, 453_677_056),
    "c6i.large": (4, 285_917_184),
    "c5n.large": (5.25, 478_851_072),
    "m5.large": (8, 585_805_824),
    "m7g.large": (8, 439_844_864),
    "m5.xlarge": (16, 909_246_464),
    "a1.2xlarge": (16, 999_677_952),
    "r6i.large": (16, 703_246_336),
    "m5.4xlarge": (64, 2_849_939_456),
    "c5.9xlarge": (72, 3_691_565_056),
    "m6g.16xlarge": (256, 10_460_397_568),
}
SYSTEM = 250_000_000
NODE = 220_000_000
TCP = Fraction(94, 1000)
"""An idle system, the most that a node was seen to need, and the share that Linux lets TCP have."""


def test_what_is_promised_is_there() -> None:
    for name in MISSING:
        gib, missing = MISSING[name]
        there = int(gib * GIB) - missing
        room = REAL_NODES.room_bytes(int(gib * GIB))
        assert room > 0.4 * gib * GIB
        assert room + SYSTEM + NODE + TCP * there <= there
        assert room <= room_of_system(there), "the node would warn of what was planned"


@given(st.integers(0, 2**46))
def test_the_paper_s_rule_is_eq_6(memory: int) -> None:
    assert PAPER_NODES.room_bytes(memory) == memory
    assert 0 <= REAL_NODES.room_bytes(memory) <= max(0, memory * 85 // 100)


@given(st.integers(0, 2**46), st.integers(0, 2**40))
def test_more_memory_has_no_less_room(memory: int, more: int) -> None:
    assert REAL_NODES.room_bytes(memory) <= REAL_NODES.room_bytes(memory + more)
    assert room_of_system(memory) <= room_of_system(memory + more)


def test_a_network_counts_with_what_it_sustains() -> None:
    node = cpu_type(network_gbps=12.5, network_baseline_gbps=0.937)
    assert (node.memory_node_gbps(REAL_NODES), node.memory_node_gbps(PAPER_NODES)) == (0.937, 12.5)
    unknown = cpu_type(network_gbps=12.5)
    assert (unknown.memory_node_gbps(REAL_NODES), unknown.memory_node_gbps(PAPER_NODES)) == (
        12.5,
        12.5,
    )
    assert (
        cpu_type(network_gbps=None, network_baseline_gbps=5.0).memory_node_gbps(REAL_NODES) == 5.0
    )
    assert (
        cpu_type(network_gbps=None, network_baseline_gbps=5.0).memory_node_gbps(PAPER_NODES) is None
    )


def test_below_the_first_row_n_sat_falls_in_proportion() -> None:
    for gbps, real in [(0.032, 1), (0.07, 1), (0.128, 1), (0.2, 2), (0.256, 2), (0.299, 2)]:
        assert (REAL_NODES.n_sat(PAPER_TABLE, gbps), PAPER_NODES.n_sat(PAPER_TABLE, gbps)) == (
            real,
            3,
        )


@given(st.floats(0.001, 1000), st.floats(0.001, 1000), st.integers(1, 40))
def test_n_sat_never_falls_with_bandwidth(one: float, other: float, first: int) -> None:
    """What lets the planner look up each type alone (DeepVM eq. 7)."""
    table = SaturationTable((0.7, 5.0), (first, first + 3))
    low, high = sorted((one, other))
    assert 1 <= REAL_NODES.n_sat(table, low) <= REAL_NODES.n_sat(table, high)
    assert REAL_NODES.n_sat(table, high) <= PAPER_NODES.n_sat(table, high)
    if low >= 0.7:
        assert REAL_NODES.n_sat(table, low) == int(table.lookup(low))


class TestShared:
    @given(st.integers(0, 2**38), st.integers(1, 10**12), st.integers(1, 4))
    def test_the_fewest_nodes_by_trying(self, memory: int, size: int, buffers: int) -> None:
        """Equal parts and 16 MB beside each, as the largest of them is held by every node."""
        room = REAL_NODES.room_bytes(memory)
        enough = [
            m
            for m in range(2, MOST_PARTS + 1)
            if m * (room - buffers * PART_BYTES) >= buffers * size
        ]
        alone = room >= buffers * size
        assert REAL_NODES.least_nodes(memory, size, buffers) == (
            1 if alone else min(enough, default=None)
        )
        assert PAPER_NODES.least_nodes(memory, size, buffers) == (
            1 if memory >= buffers * size else None
        )
        for m in [] if alone else enough[:1]:
            largest = -(-size // m)
            assert buffers * (largest + PART_BYTES) <= room + buffers, (
                "a byte for rounding is within the 16 MB"
            )

    @given(st.integers(0, 2**38), st.integers(0, 2**30), st.integers(1, 10**12), st.integers(1, 4))
    def test_more_memory_never_needs_more_nodes(
        self, memory: int, more: int, size: int, buffers: int
    ) -> None:
        """What lets the planner drop a type that another beats in everything."""
        for rule in (REAL_NODES, PAPER_NODES):
            fewer = (
                rule.share_bytes(memory, size, buffers),
                rule.share_bytes(memory + more, size, buffers),
            )
            assert fewer[0] <= fewer[1]
            counts = (
                rule.least_nodes(memory, size, buffers),
                rule.least_nodes(memory + more, size, buffers),
            )
            assert counts[0] is None or (counts[1] is not None and counts[1] <= counts[0])

    @given(st.integers(2**31, 2**38), st.integers(1, 4))
    def test_the_largest_checkpoint_is_the_largest(self, memory: int, buffers: int) -> None:
        for rule in (REAL_NODES, PAPER_NODES):
            most = rule.largest_checkpoint(memory, buffers)
            assert most == 0 or rule.least_nodes(memory, most, buffers) is not None
            assert rule.least_nodes(memory, most + 1, buffers) is None

    def test_only_real_nodes_share(self) -> None:
        assert (REAL_NODES.most_nodes, PAPER_NODES.most_nodes) == (MOST_PARTS, None)
