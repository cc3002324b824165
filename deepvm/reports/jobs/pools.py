"""Pools of machines and single machines of the history, as tables and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.core.units import format_seconds
from deepvm.jobs.history.pools import PoolHistory
from deepvm.reports.tables import Column, print_table


def pools_document(pools: Sequence[PoolHistory]) -> dict[str, Any]:
    """The pools as a document."""
    return {
        "schema_version": "deepvm.pools/1",
        "pools": [
            {
                "type": p.instance_type,
                "zone": p.zone,
                "market": p.market,
                "machines": p.machines,
                "preemptions": p.preemptions,
                "missed_notices": p.missed,
                "missed_low": p.missed_interval[0],
                "missed_high": p.missed_interval[1],
                "lead_s": p.leads_s,
                "rebalances": p.rebalances,
                "mttp_s": p.mttp_s,
                "mttp_low_s": p.mttp_interval_s[0],
                "mttp_high_s": p.mttp_interval_s[1],
                "allocation_s": p.allocation_s,
                **dict(
                    zip(
                        ("allocation_p10_s", "allocation_p50_s", "allocation_p90_s"),
                        p.allocations_s,
                        strict=True,
                    )
                ),
            }
            for p in pools
        ],
    }


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


def machines_document(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Machines as a document."""
    # The names of columns are no plain texts, which YAML insists on.
    rows = [{str(name): value for name, value in machine.items()} for machine in machines]
    return {"schema_version": "deepvm.history/1", "machines": rows}
