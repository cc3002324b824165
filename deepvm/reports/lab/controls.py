"""The result of ``deepvm lab selftest`` on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.lab.audit.gates import GATES
from deepvm.lab.selftest import TestedControl
from deepvm.reports.tables import Column, print_lines, print_table


def print_controls(controls: Sequence[TestedControl]) -> None:
    """Gate x control: where a control has failed, and what is not as it must be."""
    header = [Column("control"), *(Column(gate) for gate in GATES), Column("")]
    rows = []
    for one in controls:
        cells = ["fails" if gate in one.failed else "" for gate in GATES]
        rows.append([one.name, *cells, "ok" if one.right else "WRONG"])
    print_table(header, rows, also="-o json")
    right = sum(one.right for one in controls)
    print_lines([f"{right} of {len(controls)} negative controls fail their own gate and no other"])
    for one in controls:
        if not one.right:
            reasons = [f"  {gate}: {reason}" for gate, reason in one.failed.items()]
            print_lines([f"{one.name} ({one.what}) must fail {one.gate} only"])
            print_lines(reasons or ["  it has passed all gates"])
