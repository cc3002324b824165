"""The answer of ``deepvm lab selftest``: which gate each negative control has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.lab.audit.gates import GATES
from deepvm.lab.selftest import CONTROLS, Tested
from deepvm.reports.tables import Column, print_lines, print_table


def tested_document(found: Sequence[Tested]) -> dict[str, Any]:
    """For programs."""
    return {
        "schema_version": "deepvm.lab-selftest/1",
        "controls": [
            {
                "name": one.name,
                "what": CONTROLS[one.name].what,
                "gate": CONTROLS[one.name].gate,
                "failed": {gate: why for gate, why in one.gates.items() if why},
                "right": one.right,
            }
            for one in found
        ],
    }


def print_tested(found: Sequence[Tested]) -> None:
    """Gate x control: where a control has failed, and what is not as it must be."""
    head = [Column("control"), *(Column(gate) for gate in GATES), Column("")]
    rows = []
    for one in found:
        cells = ["fails" if one.gates[gate] else "" for gate in GATES]
        rows.append([one.name, *cells, "ok" if one.right else "WRONG"])
    print_table(head, rows, also="-o json")
    wrong = [one for one in found if not one.right]
    print_lines(
        [
            f"{len(found) - len(wrong)} of {len(found)} negative controls fail their own gate and"
            " no other"
        ]
    )
    for one in wrong:
        expected = CONTROLS[one.name].gate
        print_lines([f"{one.name} ({CONTROLS[one.name].what}) must fail {expected} only"])
        print_lines(
            [f"  {gate}: {why}" for gate, why in one.gates.items() if why]
            or ["  it has passed all gates"]
        )
