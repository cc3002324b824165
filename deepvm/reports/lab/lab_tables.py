"""Tables of the lab on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.lab.audit.gates import GATES
from deepvm.lab.checked import Checked
from deepvm.lab.listing import Entry
from deepvm.lab.results import Estimate, Variant
from deepvm.reports.lab.columns import format_number, format_runs
from deepvm.reports.lab.summary import WITHOUT_FAILURES, LabSummary
from deepvm.reports.tables import Column, print_lines, print_table

_RUN = (
    Column("suite"),
    Column("variant", wrap=False),
    Column("runs", "right", drop=6),
    Column("steps/s", "right", drop=1),
    Column("steps/s 95 %", "right", drop=5),
    Column("restarts", "right", drop=7),
    Column("saved", "right", drop=8),
    Column("skipped", "right", drop=9),
    Column("drain s", "right", drop=10),
    Column("stall s", "right", drop=3),
    Column("s/recovery", "right", drop=4),
    Column("over blocking", "right"),
    Column("ratio 95 %", "right", drop=2),
    Column("audit"),
)


def print_checked(checked: Checked) -> None:
    """Each gate, and what is wrong."""
    print_table(
        [Column("gate"), Column("passed", "right"), Column("failed", "right")],
        [[name, *map(str, checked.of_gate(name))] for name in GATES],
    )
    print_lines([checked.verdict])
    if checked.failures:
        print_lines([""])
        print_table([Column("run"), Column("gate"), Column("reason")], checked.failures)


def print_run(summary: LabSummary) -> None:
    """What each variant has cost in each suite, and the paired ratios."""
    rows = []
    for suite in summary.suites:
        name = f"{suite.dataset} {suite.model} {suite.failure}"
        for variant in suite.variants.values():
            rows.append([name, *_cells(variant)])
            name = ""
    print_table(_RUN, rows, also="-o csv")
    calm = [name for name in WITHOUT_FAILURES if any(name in s.variants for s in summary.suites)]
    if calm:
        print_lines([f"without failures: {', '.join(calm)}"])
    print_lines([summary.checked.verdict])


def _cells(variant: Variant) -> list[str]:
    ratio = variant.over_blocking
    goodput = variant.estimate("goodput")
    recovery_s = variant.mean("recovery_s") if variant.mean("restarts") else None
    return [
        variant.name,
        format_runs(variant),
        format_number(variant.mean("goodput"), ".2f"),
        _ends(goodput, 2),
        format_number(variant.mean("restarts"), "g"),
        format_number(variant.mean("checkpoints"), ".4g"),
        format_number(variant.mean("skipped"), ".4g"),
        format_number(variant.mean("drain_s"), ".3f"),
        format_number(variant.mean("stall_s"), ".3f"),
        format_number(recovery_s, ".2f"),
        _ratio(ratio),
        _ends(ratio, 3),
        variant.verdict,
    ]


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None:
        return f"{ratio.mean:.3f} (n = {ratio.n})"
    return f"{ratio.mean:.3f}"


def _ends(estimate: Estimate | None, digits: int) -> str:
    if estimate is None or estimate.low is None:
        return ""
    return f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f}"


def print_listing(entries: Sequence[Entry]) -> None:
    """What a matrix file can name."""
    rows = []
    last = ""
    for entry in entries:
        kind = entry.kind if entry.kind != last else ""
        rows.append([kind, entry.name, entry.what])
        last = entry.kind
    print_table([Column("kind", drop=1), Column("name"), Column("what")], rows, also="-o csv")
