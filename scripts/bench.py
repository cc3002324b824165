#!/usr/bin/env python3
"""How long deepvm takes: processes against the import floor, a large catalog, and growth.

    python scripts/bench.py            # about two minutes; `make bench`
    python scripts/bench.py --quick    # seconds, figures of no value: for the tests
    python scripts/bench.py --page docs/internals/explain/speed.md    # and write them there

Prints two tables and writes ``growth.png`` and ``bench.json`` under ``--out`` (build/bench). Times
are medians: of wall clock seconds for processes, which take turns, so that a busy minute of the
machine falls on all lines alike; of CPU seconds for the growth. With ``--check`` the exit status is
1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.signal import (
    ADVISOR,
    OFFERINGS,
    ON_DEMAND,
    QUOTAS,
    SPECS,
    SPOT,
    ZONES,
    Signal,
)
from deepvm.catalog.store import save_catalog
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.io.host_info import cores, processor
from deepvm.planner.recommend import solve
from deepvm.planner.request import PlanRequest
from deepvm.reports.terminal import Column, print_rows

FLOOR = "import typer, rich.table, numpy, pulp, highspy"
POLICIES = "static:10,static:33,static:100,thesis,adaptive"
SEED = 2024
SOLVERS = ("ilp", "frontier")
GROWTH_BUDGET = 1000
"""$/h in the growth: so large that the budget does not cut off additional types and sizes."""
SUPERLINEAR = 1.15
"""An exponent above this counts as superlinear: fits of such timings scatter by a tenth."""


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        runs: processes for each line of the first table. copies: of the snapshot in the warm cache.
        big: GPU and CPU types of the large catalog.
        budgets: $/h asked of it.
        grid: GPU types and max-nodes that grow together. cpu_types: the CPU types that grow, beside
            the third of the grid; the grid grows beside the middle of these. repeats: timings for
            each point.
    """

    runs: int
    copies: int
    big: tuple[int, int]
    budgets: tuple[int, ...]
    grid: tuple[tuple[int, int], ...]
    cpu_types: tuple[int, ...]
    repeats: int


FULL = Plan(
    runs=7,
    copies=10,
    big=(60, 600),
    budgets=(3, 30, 100, 300),
    grid=((8, 64), (15, 128), (30, 255), (60, 255), (60, 510), (120, 510), (120, 1020)),
    cpu_types=(75, 150, 300, 600, 1200, 2400, 4800),
    repeats=3,
)
QUICK = Plan(1, 2, (6, 30), (3, 30), ((2, 16), (4, 32)), (10, 20), 1)


@dataclass(frozen=True)
class Timing:
    """One line of the first table.

    Attributes:
        seconds: median of wall clock. fastest: of all runs. cpu: median of user and system time,
            which a busy machine changes less. ratio: seconds over the floor's.
        goal: seconds that it must not exceed, None without one.
    """

    name: str
    seconds: float
    fastest: float
    cpu: float
    ratio: float
    goal_text: str
    goal: float | None

    @property
    def met(self) -> str:
        """Whether the goal is met."""
        return "" if self.goal is None else "yes" if self.seconds <= self.goal else "NO"


@dataclass(frozen=True)
class Point:
    """``solve()`` timed once the modules are loaded.

    Attributes:
        axis: what grows, ``types x sizes`` or ``CPU types``. x: how many of it.
        seconds: median of CPU time.
    """

    axis: str
    solver: str
    x: int
    seconds: float


@dataclass(frozen=True)
class Growth:
    """The slope of log(time) over log(x).

    Attributes:
        exponent: over all points. tail: over the larger half of them, where constants no longer
            hide the growth.
    """

    axis: str
    solver: str
    exponent: float
    tail: float


def make_catalog(gpu_types: int, cpu_types: int, seed: int = SEED) -> Catalog:
    """An invented catalog shaped like a large region, with prices that scatter around value.

    The scatter matters: without it a few types would dominate all others, and there would be
    nothing to solve.
    """
    rng = random.Random(seed)
    networks = (5.0, 10.0, 12.5, 15.0, 25.0, 30.0, 50.0, 100.0)
    instances = []
    for index in range(gpu_types):
        count = rng.choice((1, 1, 1, 2, 4, 8))
        eflops = round(count * rng.uniform(80, 1500), 1)
        network = min(100.0, rng.choice(networks) * (1 if count < 4 else 2))
        on_demand = round((0.12 + eflops / rng.uniform(500, 900)) * rng.uniform(0.8, 1.3), 4)
        # Bytes over bandwidth in units of the step time: faster VMs wait longer for the same
        # network.
        ring = RingSpeedup(
            round(eflops / network / rng.uniform(15, 60), 6), round(rng.uniform(0.005, 0.12), 6)
        )
        instances.append(
            InstanceType(
                name=f"g{index}.{count}xlarge",
                vcpus=4 * count,
                memory_gib=16.0 * count,
                network_gbps=network,
                on_demand_usd_per_hour=Decimal(f"{on_demand}"),
                spot_usd_per_hour=Decimal(f"{on_demand * rng.uniform(0.25, 0.7):.4f}"),
                gpu=Gpu(rng.choice(("T4", "A10G", "L4", "V100", "A100")), count),
                eflops=eflops,
                speedups=(ring,),
                quota_family="G and VT",
            )
        )
    for index in range(cpu_types):
        vcpus = rng.choice((2, 4, 8, 16, 32, 64))
        per_vcpu = rng.choice((2, 4, 8))
        network = networks[min(len(networks) - 1, vcpus.bit_length() - 1 + rng.randint(-1, 2))]
        on_demand = round(vcpus * (0.03 + 0.004 * per_vcpu) * rng.uniform(0.75, 1.35), 4)
        instances.append(
            InstanceType(
                name=f"c{index}.{vcpus}v",
                vcpus=vcpus,
                memory_gib=float(vcpus * per_vcpu),
                network_gbps=network,
                on_demand_usd_per_hour=Decimal(f"{on_demand}"),
                spot_usd_per_hour=Decimal(f"{on_demand * rng.uniform(0.3, 0.7):.4f}"),
            )
        )
    return Catalog(
        "bench",
        tuple(instances),
        default_speedup="ring",
        description="Invented by scripts/bench.py.",
    )


def fill_cache(folder: Path, copies: int) -> int:
    """A warm cache of AWS's market: copies of the embedded snapshot, priced in six zones.

    Returns:
        How many types it has.
    """
    now, region = datetime.now(timezone.utc), "us-east-1"
    found = DEFAULT_CLOUD.snapshot(region)
    cache = Cache(folder, DEFAULT_CLOUD.account_tag(""))

    def copied(data: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name.replace(".", f"-{i}.") if i else name: v
            for name, v in data.items()
            for i in range(copies)
        }

    zones = {f"use1-az{i}": f"us-east-1{'abcdef'[i - 1]}" for i in range(1, 7)}
    specs, spot = copied(found[SPECS].data), copied(found[SPOT].data)
    quota = {
        "family": "G and VT",
        "market": "spot",
        "code": "L-3819A6DF",
        "vcpus": 256,
        "in_use": 8,
    }
    signals: dict[str, Any] = {
        SPECS: specs,
        OFFERINGS: {name: list(zones) for name in specs},
        ZONES: zones,
        ON_DEMAND: copied(found[ON_DEMAND].data),
        SPOT: {n: {z: [v[""][0], "2026-11-21T09:00:00Z"] for z in zones} for n, v in spot.items()},
        ADVISOR: copied(found[ADVISOR].data),
        QUOTAS: [quota],
    }
    for kind, data in signals.items():
        if not cache.write(Signal(kind, region, now, "bench", data), now):
            sys.exit(f"bench: {folder}: the cache cannot be written")
    return len(specs)


def deepvm_command() -> list[str]:
    """The installed command of this interpreter, or the same without it."""
    script = Path(sys.executable).with_name("deepvm")
    return (
        [str(script)]
        if script.exists()
        else [sys.executable, "-c", "from deepvm.cli.main import main; main()"]
    )


def run_once(command: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of a process; its failure ends the bench with what it said."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(
            f"bench: {' '.join(command)}\nended with exit status {done.returncode}:\n{done.stderr}"
        )
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_processes(what: Plan, catalog: Path, cached: int) -> list[Timing]:
    """The first table: whole processes, each line run in turn with all others.

    Args:
        what: how much to measure.
        catalog: the file with the large catalog.
        cached: types of AWS's market in the cache that the processes find.
    """
    deepvm = deepvm_command()
    big = f"{what.big[0]} x {what.big[1]} types"
    lines: list[tuple[str, list[str], float | None, str]] = [
        (f'import floor: python -c "{FLOOR}"', [sys.executable, "-c", FLOOR], None, ""),
        (
            "recommend --pw 3, paper",
            [*deepvm, "recommend", "--pw", "3", "--catalog", "paper"],
            1.6,
            "x floor",
        ),
        (
            "recommend --pw 3, snapshot",
            [*deepvm, "recommend", "--pw", "3", "--prices", "snapshot"],
            2.5,
            "x floor",
        ),
        (
            f"recommend --pw 3, warm cache of {cached} types",
            [*deepvm, "recommend", "--pw", "3"],
            2.5,
            "x floor",
        ),
        (
            "sweep of 101 budgets, simulated",
            [*deepvm, "sweep", "--pw", "0:10:0.1", "--catalog", "simulated", "-o", "csv"],
            3.0,
            "x floor",
        ),
        (
            "simulate, both of the thesis's jobs x 5 policies x 100 runs",
            [
                *deepvm,
                "simulate",
                "--preset",
                "gpt-117m",
                "--preset",
                "gpt-1.3b",
                "--compare",
                POLICIES,
            ],
            None,
            "",
        ),
        (
            "simulate, gpt-117m x 10 000 runs",
            [*deepvm, "simulate", "--preset", "gpt-117m", "--policy", "thesis", "--runs", "10000"],
            None,
            "",
        ),
    ]
    for solver, goal in (("ilp", 1.5), ("frontier", 0.5)):
        for budget in what.budgets:
            asked = [
                "recommend",
                "--pw",
                str(budget),
                "--catalog",
                str(catalog),
                "--solver",
                solver,
            ]
            lines.append(
                (f"recommend --pw {budget} --solver {solver}, {big}", [*deepvm, *asked], goal, "s")
            )
    for _, command, _, _ in lines[: -2 * len(what.budgets)]:
        run_once(command)  # compiles bytecode and fills the disk cache
    times: list[list[tuple[float, float]]] = [[] for _ in lines]
    for _ in range(what.runs):
        for (_, command, _, _), found in zip(lines, times, strict=True):
            found.append(run_once(command))
    wall = [statistics.median(seconds for seconds, _ in found) for found in times]
    return [
        Timing(
            name,
            seconds,
            min(found)[0],
            statistics.median(cpu for _, cpu in found),
            seconds / wall[0],
            "" if goal is None else f"<= {goal:g} {unit}",
            None if goal is None else goal * wall[0] if unit == "x floor" else goal,
        )
        for (name, _, goal, unit), seconds, found in zip(lines, wall, times, strict=True)
    ]


def time_plan(catalog: Catalog, solver: str, max_nodes: int, repeats: int) -> float:
    """Median CPU seconds of ``solve()``, the modules loaded; it runs on one thread."""
    request = PlanRequest.parse(GROWTH_BUDGET, solver=solver, max_nodes=max_nodes)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        solve(catalog, request)
        times.append(time.process_time() - start)
    return statistics.median(times)


def time_growth(what: Plan) -> list[Point]:
    """``solve()`` with more GPU types and larger clusters, and with more CPU types."""
    points: dict[tuple[str, str, int], float] = {}
    types, most = what.grid[len(what.grid) // 3]
    cpus = what.cpu_types[len(what.cpu_types) // 2]
    time_plan(make_catalog(2, 2), "ilp", 8, 1)  # loads the solver
    for solver in SOLVERS:
        for gpus, nodes in what.grid:
            seconds = time_plan(make_catalog(gpus, cpus), solver, nodes, what.repeats)
            points["GPU types x sizes", solver, gpus * nodes] = seconds
        for count in what.cpu_types:
            points["CPU types", solver, count] = time_plan(
                make_catalog(types, count), solver, most, what.repeats
            )
    return [Point(axis, solver, x, s) for (axis, solver, x), s in sorted(points.items())]


def fit(points: Sequence[Point]) -> list[Growth]:
    """Exponents of time against size, one for each axis and solver."""

    def slope(chosen: Sequence[Point]) -> float:
        return float(
            np.polyfit(np.log([p.x for p in chosen]), np.log([p.seconds for p in chosen]), 1)[0]
        )

    found = []
    for axis, solver in sorted({(p.axis, p.solver) for p in points}):
        own = sorted((p for p in points if (p.axis, p.solver) == (axis, solver)), key=lambda p: p.x)
        found.append(
            Growth(axis, solver, slope(own), slope(own[-max(2, math.ceil(len(own) / 2)) :]))
        )
    return found


def draw_growth(points: Sequence[Point], growth: Sequence[Growth], path: Path) -> None:
    """Time against size on log-log axes, both solvers, with a line of slope 1 for the eye."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = sorted({p.axis for p in points}, reverse=True)
    for frame, axis in zip(
        figure.subplots(1, len(axes), sharey=True, squeeze=False)[0], axes, strict=True
    ):
        for solver, color, marker, dashes in (
            ("ilp", "#0072B2", "o", "-"),
            ("frontier", "#D55E00", "s", "--"),
        ):
            own = sorted(
                (p for p in points if (p.axis, p.solver) == (axis, solver)), key=lambda p: p.x
            )
            slope = next(g for g in growth if (g.axis, g.solver) == (axis, solver))
            label = f"{solver}: exponent {slope.exponent:.2f}, larger half {slope.tail:.2f}"
            x, y = [p.x for p in own], [p.seconds for p in own]
            frame.loglog(x, y, color=color, marker=marker, linestyle=dashes, label=label)
            if solver == "frontier":
                # Down to the fastest point only: further down the line would set the scale of the
                # axes.
                low = max(x[0], x[-1] * min(y) / y[-1])
                frame.loglog(
                    [low, x[-1]],
                    [y[-1] * low / x[-1], y[-1]],
                    color="0.5",
                    linestyle=":",
                    label="slope 1 (linear)",
                )
        frame.set_xlabel(axis)
        frame.set_xticks(x, [f"{n:,}" for n in x], fontsize="small", rotation=30)
        frame.minorticks_off()
        frame.grid(color="0.9", linewidth=0.7)
        frame.set_axisbelow(True)
        frame.legend(loc="upper left", fontsize="small")
    figure.axes[0].set_ylim(min(p.seconds for p in points) / 2, max(p.seconds for p in points) * 12)
    figure.axes[0].set_ylabel(f"solve() at ${GROWTH_BUDGET}/h (CPU s)")
    figure.suptitle("Growth of the planning time with the catalog")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def machine() -> dict[str, str]:
    """Where and when the figures were measured."""
    packages = ("deepvm", "numpy", "pulp", "highspy", "typer", "rich", "pydantic")
    where = f"{processor()}, {cores()} cores, load {os.getloadavg()[0]:.1f}"
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{where}, {platform.system()} {platform.release()}",
        "versions": (
            f"Python {platform.python_version()}, "
            + ", ".join(f"{p} {version(p)}" for p in packages)
        ),
    }


PAGE_BLOCK = re.compile(r"(<!-- scripts/bench.py -->\n).*(<!-- end -->\n)", re.DOTALL)


def write_page(
    page: Path, about: Mapping[str, str], timings: Sequence[Timing], growth: Sequence[Growth]
) -> None:
    """Replace the figures between two comments of a page."""
    floor = timings[0]
    lines = [
        *(f"- {name}: {text}" for name, text in about.items()),
        "",
        "| command | fastest run | processor time | times the import floor |",
        "|---|---:|---:|---:|",
        *(
            f"| `{t.name}` | {t.fastest:.2f} s | {t.cpu:.2f} s | {t.cpu / floor.cpu:.1f} |"
            for t in timings
        ),
        "",
        "Growth of processor time with the size of the catalog, as an exponent: "
        + "; ".join(f"{g.solver} with {g.axis} {g.tail:.2f}" for g in growth)
        + ".",
    ]
    text, count = PAGE_BLOCK.subn(
        lambda match: match[1] + "\n".join(lines) + "\n" + match[2], page.read_text()
    )
    if count != 1:
        sys.exit(f"{page}: no block of scripts/bench.py")
    page.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny catalogs, one run: only shows that it works"
    )
    parser.add_argument("--runs", type=int, help=f"processes for each line (default {FULL.runs})")
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="folder for growth.png and bench.json"
    )
    parser.add_argument("--check", action="store_true", help="exit status 1 when a goal is missed")
    parser.add_argument("--page", type=Path, help="page whose block of figures is replaced")
    options = parser.parse_args(arguments)
    # Neither the user's credentials nor settings may change what is measured.
    for name in [n for n in os.environ if n.startswith(("AWS_", "DEEPVM_"))]:
        del os.environ[name]
    what = QUICK if options.quick else FULL
    what = what if options.runs is None else replace(what, runs=options.runs)
    if what.runs < 1:
        parser.error("--runs: allowed: a whole number >= 1")

    about = machine()
    for name, text in about.items():
        print(f"{name + ':':10}{text}")
    with tempfile.TemporaryDirectory() as folder:
        catalog = Path(folder) / "bench.json"
        save_catalog(make_catalog(*what.big), catalog)
        run_once([*deepvm_command(), "catalog", "validate", str(catalog)])
        os.environ["DEEPVM_CACHE_DIR"] = f"{folder}/cache"
        timings = time_processes(what, catalog, fill_cache(Path(folder) / "cache", what.copies))
    busy = os.getloadavg()[0]
    if busy > 1.5:
        print(
            f"note: load {busy:.1f}: others use this machine; 'fastest' and 'CPU' are nearer the"
            " truth than 'median'"
        )
    print(f"\nWhole processes, medians of {what.runs} runs:")
    print_rows(
        columns(
            "process", right=("median (s)", "fastest (s)", "CPU (s)", "x floor", "goal", "met")
        ),
        [
            [
                t.name,
                f"{t.seconds:.3f}",
                f"{t.fastest:.3f}",
                f"{t.cpu:.3f}",
                f"{t.ratio:.2f}",
                t.goal_text,
                t.met,
            ]
            for t in timings
        ],
    )
    points = time_growth(what)
    growth = fit(points)
    print(
        f"\nGrowth of solve() inside a process at ${GROWTH_BUDGET}/h, CPU time ~ size ^ exponent:"
    )
    print_rows(
        columns("size", "solver", right=("from", "to", "CPU (s)", "exponent", "larger half")),
        [
            growth_row(g, [p for p in points if (p.axis, p.solver) == (g.axis, g.solver)])
            for g in growth
        ],
    )
    for g in growth:
        verdict = "FASTER than linear" if g.tail > SUPERLINEAR else "not faster than linear"
        print(f"{g.solver} with {g.axis}: {verdict} (exponent {g.tail:.2f} over the larger half)")
    draw_growth(points, growth, options.out / "growth.png")
    document = {
        **about,
        "processes": [asdict(t) for t in timings],
        "points": [asdict(p) for p in points],
        "growth": [asdict(g) for g in growth],
    }
    (options.out / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    if options.page is not None:
        write_page(options.page, about, timings, growth)
    print(f"\nwrote {options.out / 'growth.png'} and {options.out / 'bench.json'}")
    missed = [t.name for t in timings if t.met == "NO"]
    if missed:
        print("missed: " + "; ".join(missed))
    return 1 if missed and options.check else 0


def columns(*left: str, right: Sequence[str]) -> list[Column]:
    """Columns of names, then of numbers."""
    return [*(Column(h) for h in left), *(Column(h, "right") for h in right)]


def growth_row(growth: Growth, points: Sequence[Point]) -> list[str]:
    """One line of the second table."""
    first, *_, last = sorted(points, key=lambda p: p.x)
    numbers = (
        f"{first.seconds:.4f} -> {last.seconds:.4f}",
        f"{growth.exponent:.2f}",
        f"{growth.tail:.2f}",
    )
    return [growth.axis, growth.solver, str(first.x), str(last.x), *numbers]


if __name__ == "__main__":
    sys.exit(main())
