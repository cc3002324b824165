"""A measured speed-up curve as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepvm.reports.tables import Column, print_lines, print_table

if TYPE_CHECKING:
    from deepvm.profiling.scaling.scaling_document import Curve


def print_curve(curve: Curve) -> None:
    """Times and speed-ups of each size, the failed runs with their reasons, and where it was measured."""
    drops = {"VMs": 0, "runs": 4, "step s": 3, "images/s": 2, "speed-up": 0, "of linear": 1}
    rows = []
    measured = {p.n: p for p in curve.points}
    for n in curve.plan["sizes"]:
        good = [r for r in curve.runs if r.n == n and r.failed is None]
        runs = f"{len(good)}/{curve.plan['repeats']}"
        point = measured.get(n)
        if point is None:
            rows.append([str(n), runs, "-", "-", "-", "-"])
            continue
        step_s = point.seconds * n
        speed = n * curve.workload["processes"] * curve.workload["batch"] / step_s
        shown = "-" if point.speedup is None else f"{point.speedup:.3f}"
        share = "-" if point.speedup is None else f"{point.speedup / n:.0%}"
        rows.append([str(n), runs, f"{step_s:.4g}", f"{speed:.5g}", shown, share])
    print_table([Column(header, "right", drop) for header, drop in drops.items()], rows, also="-o json")
    work, machine = curve.workload, curve.machine
    lines = [f"failed, n = {r.n}, repeat {r.repeat}: {r.failed}" for r in curve.runs if r.failed is not None]
    lines += [f"warning: {w}" for w in curve.warnings]
    if curve.fit is not None:
        lines.append("fit: S(n) = c / (1 + exp(-a (n - b))), " + ", ".join(f"{k} = {curve.fit[k]:.4g}" for k in "abc"))
    lines.append(
        f"{work['model']}, {work['batch']} images of {work['resolution']} x {work['resolution']} for each of "
        f"{work['processes']} {work['device']} processes on a VM, {work['dtype']}, {work['optimizer']}; medians of "
        f"{work['windows']} windows of {work['steps']} steps"
    )
    where = ", ".join(machine.get("gpus", ())) or machine.get("processor", "unknown")
    lines.append(f"{where}, torch {machine.get('torch', 'unknown')}")
    print_lines(["", *lines])
