"""A measured speed-up curve as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from deepvm.profiling.scaling.scaling_document import Curve


def print_curve(curve: Curve) -> None:
    """Times and speed-ups of each size, the failed runs with their reasons, and where it was measured."""
    items = []
    measured = {p.n: p for p in curve.points}
    for n in curve.plan["sizes"]:
        good = [r for r in curve.runs if r.n == n and r.failed is None]
        step = speed = shown = share = "-"
        if point := measured.get(n):
            step_s = point.seconds * n
            images = n * curve.workload["processes"] * curve.workload["batch"]
            step, speed = f"{step_s:.4g}", f"{images / step_s:.5g}"
            if point.speedup is not None:
                shown, share = f"{point.speedup:.3f}", f"{point.speedup / n:.0%}"
        items.append(
            {
                Column("VMs", "right"): str(n),
                Column("runs", "right", drop=4): f"{len(good)}/{curve.plan['repeats']}",
                Column("step s", "right", drop=3): step,
                Column("images/s", "right", drop=2): speed,
                Column("speed-up", "right"): shown,
                Column("of linear", "right", drop=1): share,
            }
        )
    print_items(items, also="-o json")
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
