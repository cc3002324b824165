#!/usr/bin/env python3
"""How fast jobs recover from lost and new machines, compared with torchrun's elastic agents.

    python scripts/bench_recovery.py             # about a quarter of an hour; `make bench-recovery`
    python scripts/bench_recovery.py --quick     # two minutes, one repeat and no torchrun
    python scripts/bench_recovery.py --only notice --cloud netns --repeats 50

Everything is real: ``deepvm run`` with local machines, and as root with machines that have a
network of their own; torchrun with its store in a third process; the same training under both, in
turn. Prints medians, the time in which nine of ten were done, the worst, and how often each figure
kept its limit; with ``--check`` the exit status is 1 when one was not kept often enough. Figures
mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recovery_parts import agent_step_s, folder_takeover_s, lone_step_s, node_takeover_s
from recovery_runs import STEP_S, TUNED, Late, Run, Torchrun

from deepvm.io.host_info import cores, processor
from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.clouds.netns import NetnsCloud
from deepvm.reports.terminal import Column, print_rows

SILENT_S = 4.0
"""Without a heartbeat for so long a local machine is suspect (``deepvm/jobs/submission.py``)."""
GRACE_S = 5.0
CLOUDS = ("local", "netns")
PARTS = ("notice", "loss", "silent", "start", "request", "step", "takeover", "torchrun")


@dataclass
class Figure:
    """One line of the table: what was measured, in seconds, each beside its own limit.

    Attributes:
        allowed: the limit as text. share: of the samples that must keep it, half by default: others
            use this machine.
        note: what became of samples that are none.
    """

    name: str
    allowed: str = ""
    share: float = 0.5
    samples: list[tuple[float, float | None]] = field(default_factory=list)
    note: str = ""

    def add(self, seconds: float, limit_s: float | None = None) -> None:
        """One more sample."""
        self.samples.append((seconds, limit_s))

    @property
    def kept(self) -> tuple[int, int]:
        """How many samples kept their limits, and how many have one."""
        limited = [(s, limit) for s, limit in self.samples if limit is not None]
        return sum(s <= limit for s, limit in limited), len(limited)

    @property
    def verdict(self) -> str:
        """``ok``, ``SHORT``, or nothing without a limit."""
        kept, limited = self.kept
        if not limited:
            return "SHORT" if self.allowed else ""
        return "ok" if kept >= self.share * limited else "SHORT"

    def document(self) -> dict[str, Any]:
        """The line as JSON."""
        seconds = [s for s, _ in self.samples]
        limits = [limit for _, limit in self.samples if limit is not None]
        return {
            "name": self.name,
            "median_s": statistics.median(seconds) if seconds else None,
            "best_s": min(seconds, default=None),
            "p90_s": sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1] if seconds else None,
            "worst_s": max(seconds, default=None),
            "limit": self.allowed,
            "median_limit_s": statistics.median(limits) if limits else None,
            "kept": list(self.kept),
            "verdict": self.verdict,
            "note": self.note,
            "samples_s": seconds,
        }


class Bench:
    """The figures measured so far."""

    def __init__(self, folder: Path, repeats: int) -> None:
        """None yet."""
        self.folder, self.repeats = folder, repeats
        self.figures: dict[str, Figure] = {}
        self._runs = 0

    def figure(self, name: str, allowed: str = "", share: float = 0.5) -> Figure:
        """The figure of a name."""
        return self.figures.setdefault(name, Figure(name, allowed, share))

    def place(self) -> Path:
        """A new folder."""
        self._runs += 1
        return self.folder / str(self._runs)

    @contextlib.contextmanager
    def job(self, count: Any, cloud: str = "local", train: str = "", **more: Any) -> Iterator[Run]:
        """A job, ended afterwards; one that is late says so and ends its part only."""
        run = Run(self.place(), count, cloud, train, **more)
        try:
            yield run
        except Late as late:
            run.said.seek(0)
            said = run.said.read()[-500:].decode("utf-8", "replace")
            print(f"bench_recovery: {late}; the job says: {said}", file=sys.stderr)
        finally:
            run.end()


# --- notices --------------------------------------------------------------------------------------


def measure_notices(bench: Bench, cloud: str) -> None:
    """From a notice in the metadata service, and in the agent, to a safe checkpoint."""
    for count in (1, 2):
        ranks = "one rank" if count == 1 else "two ranks"
        name = f"{cloud}, {ranks}: notice heard -> version confirmed"
        heard = bench.figure(name, "step + 1.5 x save + 0.3 s", 1.0)
        published = bench.figure(
            f"{cloud}, {ranks}: notice published -> version confirmed", "the same + 1 s", 1.0
        )
        freed = bench.figure(f"{cloud}, {ranks}: notice published -> next machine's first step")
        with bench.job(count, cloud) as run:
            for _ in range(bench.repeats):
                run.whole(count)
                began_s, member = time.time(), run.members()[-1]
                assert isinstance(run.cloud, LocalCloud)
                run.cloud.preempt(run.name, member, GRACE_S)
                noticed = run.event("noticed", began_s, id=member)
                safe = run.event("safe", began_s, reason="emergency")
                step_s = run.notes.step_s(run.notes.all()[-1])
                limit_s = step_s + 1.5 * (safe.facts["took_s"] + safe.facts["stall_s"]) + 0.3
                heard.add(safe.at_s - noticed.at_s, limit_s)
                published.add(safe.at_s - began_s, limit_s + 1.0)
                freed.add(run.notes.first_step(count, safe.at_s).at_s - began_s)


# --- losses ---------------------------------------------------------------------------------------


def lose(
    bench: Bench, run: Run, count: int, name: str, deadline_s: float, end: Callable[[str], None]
) -> None:
    """One loss and the return of a machine, both as the survivors see it."""
    plus = f"{deadline_s:g} s + " if deadline_s else ""
    lost = bench.figure(f"{name}: loss -> first step of the smaller world", f"{plus}1 s + restore")
    stood = bench.figure("return of a machine: the others stand still", "0.5 s + restore")
    returned = bench.figure(f"{name}: loss -> first step of the whole world")
    run.whole(count)
    began_s = time.time()
    end(run.members()[-1])
    small = run.notes.first_step(count - 1, began_s)
    lost.add(small.at_s - began_s, deadline_s + 1.0 + run.notes.restore_s(small.process))
    whole = run.notes.first_step(count, small.at_s)
    gap_s = whole.at_s - run.notes.before(whole).at_s
    stood.add(gap_s, 0.5 + run.notes.restore_s(whole.process))
    returned.add(whole.at_s - began_s)


@contextlib.contextmanager
def losses(bench: Bench, count: int) -> Iterator[Callable[[], None]]:
    """Losses of machines whose connections break, one at each call."""
    with bench.job({"min": count - 1, "max": count}) as run:
        cloud = run.cloud
        assert isinstance(cloud, LocalCloud)
        name = f"deepvm, {count} -> {count - 1} machines, connection broken"
        yield lambda: lose(bench, run, count, name, 0.0, lambda m: cloud.preempt(run.name, m, None))


def measure_silence(bench: Bench) -> None:
    """Losses of machines whose network is cut."""
    with bench.job({"min": 1, "max": 2}, "netns") as run:
        cloud = run.cloud
        assert isinstance(cloud, NetnsCloud)
        for _ in range(bench.repeats):
            lose(
                bench,
                run,
                2,
                "deepvm, 2 -> 1 machines, silent",
                SILENT_S,
                lambda m: cloud.cut(run.name, m),
            )


def lose_of_torchrun(bench: Bench, conf: str, name: str, return_s: float) -> None:
    """The same with torchrun's agents: one ends, and another is started in its place."""
    lost = bench.figure(f"torchrun {name}, 2 -> 1 nodes: loss -> first step of the smaller world")
    returned = bench.figure(f"torchrun {name}: new node -> first step of the whole world")
    run = Torchrun(bench.place(), conf)
    try:
        run.notes.first_step(2, run.began_s)
        time.sleep(3.0)
        began_s = time.time()
        run.kill(1)
        small = run.notes.first_step(1, began_s)
        lost.add(small.at_s - began_s)
        time.sleep(1.0)
        began_s = time.time()
        run.nodes[1] = run.start()
        try:
            returned.add(run.notes.first_step(2, began_s, return_s).at_s - began_s)
        except Late:
            gone = run.nodes[0].poll() is not None or run.nodes[1].poll() is not None
            last_s = run.notes.all()[-1].at_s
            state = "an agent has failed" if gone else "both agents wait"
            state = state if time.time() - last_s > 5 else "the survivor trains alone"
            returned.note = f"never within {return_s:.0f} s: {state}"
    except Late as late:
        lost.note = str(late)
    finally:
        run.end()


# --- starts, requests, steps ----------------------------------------------------------------------


def measure_starts(bench: Bench) -> None:
    """From the formation of a generation after a loss to its first step, warm and cold."""
    warm = bench.figure("start of a generation with warm trainers")
    cold = bench.figure("start of a generation with cold trainers")
    train = f"python train.py 1000000 {STEP_S}"
    for figure, command in ((warm, train), (cold, f"exec {train};")):
        with bench.job({"min": 1, "max": 2}, train=command) as run:
            for _ in range(bench.repeats):
                if figure is warm:
                    run.whole(2)
                began_s = time.time()
                run.notes.first_step(2, began_s)
                assert isinstance(run.cloud, LocalCloud)
                victim = run.members()[-1]
                run.cloud.preempt(run.name, victim, None)
                small = run.notes.first_step(1, began_s)
                # It is missed, or found in the cloud's list first.
                figure.add(small.at_s - run.event("machine", began_s, id=victim).at_s)
                run.notes.first_step(2, small.at_s)


REQUESTS = """
import os, sys, time
import torch.distributed as dist
import deepvm.training as dt

dist.init_process_group("gloo")
notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
rank, saves = dist.get_rank(), 0
while saves < int(sys.argv[1]):
    dt.enter_step()
    dist.barrier()
    time.sleep(0.01)
    began = time.perf_counter()
    dt.exit_step()
    took_s = time.perf_counter() - began
    if not rank and took_s > 0.0005:
        os.write(notes, f"{time.time()} {os.getpid()} 3 0 asked {took_s}\\n".encode())
    saves += dt.check_save()
    dist.barrier()
"""


def measure_requests(bench: Bench, requests: int) -> None:
    """How long rank 0 waits until the agents of three machines know of a save."""
    figure = bench.figure("a save request across 3 ranks", "10 ms")
    with bench.job(
        3, train=f"python train.py {requests}", save_policy="static:5", script=REQUESTS
    ) as run:
        run.document()
        for note in run.notes.all():
            if note.restore_s is not None:
                figure.add(note.restore_s, 0.010)


def measure_steps(bench: Bench) -> None:
    """What ``deepvm.training`` adds to a step."""
    for name, limit_s, measure in (
        ("deepvm.training, a step without an agent", 2e-6, lone_step_s),
        ("deepvm.training, a step with an agent", 20e-6, agent_step_s),
    ):
        figure = bench.figure(name, f"{limit_s * 1e6:g} us")
        for _ in range(max(bench.repeats, 5)):
            figure.add(measure(bench.place()), limit_s)


def measure_takeovers(bench: Bench) -> None:
    """How long a newer generation waits for its own name, which an older one still holds."""
    for name, measure in (("folder", folder_takeover_s), ("memory node", node_takeover_s)):
        figure = bench.figure(f"takeover by a newer generation, {name}", "0.2 s")
        for _ in range(bench.repeats):
            figure.add(measure(bench.place()), 0.2)


# --- all of it ------------------------------------------------------------------------------------


def say(what: str) -> None:
    """What is measured now, for those who wait."""
    print(f"{datetime.now():%H:%M:%S} {what}", file=sys.stderr, flush=True)


def measure(bench: Bench, parts: Sequence[str], return_s: float, clouds: Sequence[str]) -> None:
    """What was requested; ours and torchrun's losses in turn; ``clouds``: for notices."""
    nets = "netns" if os.geteuid() == 0 and shutil.which("ip") else ""
    if "step" in parts:
        say("steps of deepvm.training")
        measure_steps(bench)
    if "takeover" in parts:
        say("takeovers")
        measure_takeovers(bench)
    if "request" in parts:
        say("save requests")
        measure_requests(bench, 20 * bench.repeats)
    if "notice" in parts:
        for cloud in (c for c in clouds if c in ("local", nets)):
            say(f"notices on {cloud} machines")
            measure_notices(bench, cloud)
    if "loss" in parts:
        say("losses of one of three machines")
        with losses(bench, 3) as more:
            for _ in range(bench.repeats):
                more()
    for repeat in range(bench.repeats):
        if "loss" in parts or "torchrun" in parts:
            say(f"losses of one of two machines, {repeat + 1} of {bench.repeats}")
        if "loss" in parts:
            with losses(bench, 2) as more:
                more()
        if "torchrun" in parts:
            lose_of_torchrun(bench, TUNED, "tuned", return_s)
            if repeat < 2:  # it takes a minute
                lose_of_torchrun(bench, "", "by default", return_s)
    if "silent" in parts and nets:
        say("silent losses")
        measure_silence(bench)
    if "start" in parts:
        say("starts of generations")
        measure_starts(bench)


def about() -> dict[str, str]:
    """Where and when the figures were measured."""
    where = f"{processor()}, {cores()} cores, load {os.getloadavg()[0]:.1f}"
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{where}, {platform.system()} {platform.release()}",
        "versions": (
            f"Python {platform.python_version()}, deepvm {version('deepvm')}, torch"
            f" {version('torch')}"
        ),
    }


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def print_figures(rows: Sequence[dict[str, Any]]) -> None:
    """The table."""
    head = [
        Column("what"),
        *(Column(h, "right") for h in ("median", "90 %", "worst", "limit", "kept")),
        Column(""),
    ]
    cells = []
    for row in rows:
        limit = row["limit"]
        if row["median_limit_s"] is not None and "+" in limit:
            limit += f": {_shown(row['median_limit_s'])}"
        kept = "{} of {}".format(*row["kept"]) if row["kept"][1] else ""
        note = row["verdict"] or row["note"]
        times = [_shown(row[key]) for key in ("median_s", "p90_s", "worst_s")]
        cells.append([row["name"], *times, limit, kept, note])
    print_rows(head, cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="of each loss and notice (default 5)"
    )
    parser.add_argument("--quick", action="store_true", help="one repeat, without torchrun")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="a part; may be given several times"
    )
    parser.add_argument(
        "--cloud", choices=CLOUDS, help="where notices are measured (default: on both)"
    )
    parser.add_argument(
        "--return-limit",
        type=float,
        default=30.0,
        help="seconds for torchrun's new node (default 30)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a limit is not kept")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    if asked.repeats < 1:
        parser.error("--repeats: allowed: a whole number >= 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # no machine is left
    parts = asked.only or [p for p in PARTS if p != "torchrun" or not asked.quick]
    where = about()
    with tempfile.TemporaryDirectory(prefix="bench-recovery-") as folder:
        bench = Bench(Path(folder), 1 if asked.quick else asked.repeats)
        failed = False
        try:
            measure(bench, parts, asked.return_limit, [asked.cloud] if asked.cloud else CLOUDS)
        except Exception:  # what was measured until then took a quarter of an hour
            failed = True
            traceback.print_exc()
    rows = [figure.document() for figure in bench.figures.values()]
    if asked.output == "json":
        print(json.dumps({**where, "figures": rows}, indent=1))
    else:
        for name, text in where.items():
            print(f"{name + ':':10}{text}")
        print_figures(rows)
    return int(
        failed or asked.check and (not rows or any(row["verdict"] == "SHORT" for row in rows))
    )


if __name__ == "__main__":
    sys.exit(main())
