"""Pools of machines as a table."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.core.units import format_seconds
from deepvm.jobs.history.pools import PoolHistory
from deepvm.reports.tables import Column, print_table


def print_pools(pools: Sequence[PoolHistory]) -> None:
    """The pools as a table."""
    columns = [
        Column("type"),
        Column("zone"),
        Column("market"),
        Column("machines", "right"),
        Column("preempted", "right"),
        Column("mean life", "right"),
        Column("80 % interval", "right"),
        Column("without notice", "right"),
        Column("80 % interval", "right"),
        Column("notice", "right"),
        Column("rebalance", "right", drop=1),
        Column("allocation", "right"),
        Column("10 to 90 %", "right"),
    ]
    rows = []
    for p in pools:
        low, high = p.mttp_interval_s
        upper = "-" if high is None else format_seconds(high)
        least, most = (f"{100 * share:.0f}" for share in p.missed_interval)
        fast, usual, slow = (format_seconds(seconds) for seconds in p.allocations_s)
        rows.append(
            [
                p.instance_type,
                p.zone,
                p.market,
                str(p.machines),
                str(p.preemptions),
                "-" if p.mttp_s is None else format_seconds(p.mttp_s),
                f"{format_seconds(low)} to {upper}",
                f"{p.missed} of {p.preemptions}",
                f"{least} to {most} %",
                "-" if p.leads_s is None else format_seconds(p.leads_s, digits=2),
                str(p.rebalances),
                usual,
                f"{fast} to {slow}",
            ]
        )
    print_table(columns, rows, also="-o csv")
