#!/usr/bin/env python3
r"""Measure VMs on AWS with deepvm: eFLOPS, speed-up and saturation of your own machines, in one JSON to bring home.

    .venv/bin/python scripts/profile_on_aws.py --trainers hosts.txt --receiver ubuntu@10.0.0.9 \
        --trainer-type g4dn.xlarge --receiver-type c4.xlarge --out home.json --dry-run

Run it without --dry-run to start. It looks whether all hosts answer, copies this clone to them (what is committed),
installs it there in ~/deepvm-profile, runs 'deepvm profile all' from here, and writes the answer to --out. Started
again it goes on: what is copied, installed or measured (the folder home.json.parts) is not done twice. Whatever stands
behind -- goes to 'deepvm profile all', for example: -- --steps 50 --resolution 224.

Before:
  AMI         trainers: Deep Learning Base AMI (Ubuntu), or Ubuntu 22.04 or newer with NVIDIA's driver, and 20 GB of
              room on the disk; receiver: Ubuntu 22.04 or newer. Python 3.10 or newer; python3-venv is installed by apt
              where it is missing, which needs sudo without a password, as Ubuntu's AMIs have it.
  quotas      vCPUs of "All G and VT Spot Instance Requests" (or "Running On-Demand G and VT instances") for the
              trainers, 4 for each g4dn.xlarge; of "Standard" for the receiver. 'deepvm doctor' shows what you have.
  network     one subnet, so that bandwidth is that of the VMs; a security group that lets in port 22 from the machine
              on which this runs, and all TCP from itself, that is between trainers and receiver.
  start       'deepvm recommend -o json > plan.json; deepvm export plan.json --to ec2-fleet' (or terraform, skypilot)
              writes what starts them. One line of hosts.txt for each trainer, such as: ubuntu@10.0.0.11
  here        any machine that reaches all hosts by ssh without a password (a key in ssh-agent, or --ssh); private
              addresses need a machine in the network, such as the receiver. With --transport mpi this one must be in
              their network, with deepvm[mpi].
Afterwards:
  'deepvm tables import home.json' where you plan; then end the VMs the way you started them ('terraform destroy', 'sky
  down', 'aws ec2 delete-fleets --terminate-instances'): this script never does, and they cost money until then.

Exit codes: 0 done, 1 a host or a part failed (what was measured is in --out), 2 wrong usage, 4 a file cannot be read or
written, 130 interrupted, 143 ended by SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]

try:
    from deepvm import __version__
    from deepvm.catalog.files import write_bytes
    from deepvm.catalog.measured import load_tables, own_folder, read_tables
    from deepvm.catalog.store import load_catalog
    from deepvm.cli.profile_save import USELESS_SPREAD
    from deepvm.core.units import parse_bytes
    from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError
    from deepvm.profiling.hosts import Host, parse_hosts, read_hosts
except ImportError as missing:
    sys.exit(
        f"Error: {sys.executable} has no deepvm ({missing}); 'make recommend' in {ROOT} installs it, then: "
        f"{ROOT / '.venv/bin/python'} {__file__} ..."
    )

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 -o " + (
    "StrictHostKeyChecking=accept-new"
)
HOME = "deepvm-profile"
"""The folder on the hosts, in the home of whoever logs in there."""
CHECK_S, COPY_S, INSTALL_S, MEASURE_S = 30.0, 300.0, 1800.0, 86400.0
ROOM_GPU_MB, ROOM_CPU_MB, ROOM_BARE_MB = 9000, 3000, 1000
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# Assumptions of the estimate, of a g4dn.xlarge with ResNet-50 at batch 128; printed with it.
_PREPARE_S, _EFLOPS_S, _RUN_START_S, _STEP_S, _PUSH_START_S = 600, 60, 30, 0.5, 1.0
_STEPS = 10 + 5 * 20

# One line each, for any POSIX shell. $1, $2, ... are given behind; nothing of the user's stands inside.
COPY = (
    "set -eu; umask 077; mkdir -p ~/deepvm-profile; cd ~/deepvm-profile; "
    'if [ "$(cat copied 2>/dev/null)" = "$1" ]; then cat >/dev/null; exit 0; fi; '
    "rm -rf source.new; mkdir source.new; tar -xf - -C source.new; "
    '[ -f source.new/pyproject.toml ]; rm -rf source copied; mv source.new source; printf %s "$1" >copied'
)
INSTALL = (
    "set -eu; cd ~/deepvm-profile; "
    # A first start that was interrupted may still be at it, on a host that has not noticed.
    "exec 9>lock; if command -v flock >/dev/null && ! flock -w 900 9; then "
    'echo "another start of this script has been installing here for 15 minutes" >&2; exit 1; fi; '
    'want="$1 $2 $4"; if [ "$(cat installed 2>/dev/null)" = "$want" ] && venv/bin/python -c "import deepvm"; '
    "then exit 0; fi; "
    "gpu=no; if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null; then gpu=yes; fi; "
    f'case "$2:$gpu" in *train*:yes) room={ROOM_GPU_MB};; *train*:no) room={ROOM_CPU_MB};; *) room={ROOM_BARE_MB};; '
    'esac; set -- "$@" $(df -Pm . | tail -n 1); '
    # Behind the four arguments stand the words of df: device, size, used, free.
    'if [ ! -d venv ] && [ "$8" -lt "$room" ]; then '
    'echo "$room MB are needed in $PWD, $8 MB are free: give the VM a larger disk" >&2; exit 1; fi; '
    "py=; for p in python3 python3.13 python3.12 python3.11 python3.10; do if command -v $p >/dev/null && "
    '$p -c "import sys; sys.exit(sys.version_info < (3, 10))"; then py=$p; break; fi; done; '
    'if [ -z "$py" ]; then echo "no Python 3.10 or newer: take Ubuntu 22.04 or newer" >&2; exit 1; fi; '
    'if ! $py -c "import ensurepip, venv" 2>/dev/null; then '
    'if ! command -v apt-get >/dev/null; then echo "$py has no venv, and there is no apt-get" >&2; exit 1; fi; '
    'root=; if [ "$(id -u)" != 0 ]; then root="sudo -n"; fi; '
    "$root apt-get -o DPkg::Lock::Timeout=300 -q update >&2; $root env DEBIAN_FRONTEND=noninteractive apt-get "
    "-o DPkg::Lock::Timeout=300 -q -y install python3-venv >&2; fi; "
    "venv/bin/python -m pip --version >/dev/null 2>&1 || { rm -rf venv; $py -m venv venv; }; "
    'pip="venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --retries 5 --timeout 60"; '
    'case "$2:$gpu" in *train*:no) $pip --index-url "$3" torch;; *train*:yes) if [ -n "$4" ]; then '
    '$pip --index-url "$4" torch; fi;; esac; '
    '$pip "./source$2"; '
    'case "$2:$gpu" in *train*:yes) venv/bin/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())" '
    '|| { echo "torch does not see the GPU; if it is newer than the driver, --torch-index names another build" >&2; '
    'exit 1; };; esac; printf %s "$want" >installed'
)
ACCEPT = (
    "import importlib.util, sys, deepvm; "
    "sys.exit(0 if deepvm.__version__ == sys.argv[1] and all(map(importlib.util.find_spec, sys.argv[2:])) else "
    "'deepvm ' + deepvm.__version__ + ' in ' + sys.executable + '; needed: ' + ' '.join(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Step:
    """Commands, one for each host, that run at the same time; ``lines`` are for ``sh``, as they are printed."""

    title: str
    lines: Mapping[str, str]
    limit_s: float
    advice: str


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The options; ends the program with exit code 2 where they are wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--trainers", required=True, metavar="FILE", help="the VMs that train: one host a line")
    parser.add_argument("--receiver", required=True, metavar="HOST", help="the memory node: all push to it")
    parser.add_argument("--trainer-type", required=True, metavar="TYPE", help="such as g4dn.xlarge")
    parser.add_argument("--receiver-type", required=True, metavar="TYPE", help="such as c4.xlarge")
    parser.add_argument("--out", required=True, metavar="FILE", help="the JSON to bring home")
    parser.add_argument("--model", action="append", metavar="NAME", help="what is trained; may be repeated (resnet50)")
    parser.add_argument("--sizes", default="", metavar="N,N,...", help="numbers of VMs (1, 2, 4, ... and all)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each size (3)")
    parser.add_argument("--transport", choices=("tcp", "mpi"), default="tcp", help="of the pushes (tcp)")
    parser.add_argument("--checkpoint-size", default="300MB", metavar="SIZE", help="what is pushed (300MB)")
    parser.add_argument("--ssh", default=SSH, metavar="COMMAND", help="with options, such as 'ssh -i key.pem'")
    parser.add_argument("--python", default="", metavar="PATH", help="on all hosts, has deepvm: nothing is installed")
    parser.add_argument("--torch-index", default="", metavar="URL", help="of torch on GPUs, for an older driver")
    parser.add_argument("--dry-run", action="store_true", help="print every command, contact nobody")
    parser.add_argument("--yes", action="store_true", help="do not ask before it starts")
    own, more = list(words), list[str]()
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    found = parser.parse_args(own)
    found.more, found.model = more, found.model or ["resnet50"]
    return found


class Job:
    """What is to be done, as commands."""

    def __init__(self, order: argparse.Namespace) -> None:
        """Refuse what cannot be done, before anything is.

        Raises:
            RequestError: an option cannot be used. DataError: the file of hosts cannot be read.
        """
        self.order = order
        try:
            self.trainers = read_hosts(Path(order.trainers))
        except RequestError as error:
            raise RequestError("trainers", error.value, error.allowed) from None
        try:
            self.receiver, *more = parse_hosts(order.receiver)
        except RequestError as error:
            raise RequestError("receiver", error.value, error.allowed) from None
        if more:
            raise RequestError("receiver", order.receiver, "one host")
        if len(self.trainers) < 2:
            raise RequestError("trainers", order.trainers, "a file with two hosts or more")
        if self.receiver.plain in {h.plain for h in self.trainers}:
            raise RequestError("receiver", order.receiver, "a VM of its own, none of the trainers")
        self.sizes = self._sizes(order.sizes)
        if order.repeats < 1:
            raise RequestError("repeats", order.repeats, "a whole number from 1")
        self.pushed = parse_bytes(order.checkpoint_size)
        self.out = Path(order.out)
        if self.out.suffix.lower() != ".json" or not self.out.absolute().parent.is_dir():
            raise RequestError("out", order.out, "the name of a file that ends in .json, in a folder that exists")
        self.parts = self.out.with_name(f"{self.out.name}.parts")
        try:
            self.ssh = shlex.split(order.ssh)
        except ValueError as error:
            raise RequestError("ssh", order.ssh, f"balanced quotes ({error})") from None
        if not self.ssh or shutil.which(self.ssh[0]) is None:
            raise RequestError("ssh", order.ssh, "a program of this machine, such as 'ssh -i key.pem'")
        self.python = order.python or f"~/{HOME}/venv/bin/python"

    def _sizes(self, text: str) -> tuple[int, ...]:
        from deepvm.cli.profile_scaling import sizes_of
        from deepvm.profiling.scaling import Task

        return Task("resnet50", sizes=sizes_of(text)).sizes_for(len(self.trainers))

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All of them, the receiver last."""
        return (*self.trainers, self.receiver)

    def steps(self) -> list[Step]:
        """What comes before the measurement."""
        check = Step(
            "looking whether all hosts answer",
            {h.name: self._there(h, "exit 0") for h in self.hosts},
            CHECK_S,
            "is the VM started, its port 22 open for this machine, the key known here (ssh-agent, or --ssh)?",
        )
        if self.order.python:
            return [check, self._accept()]
        stamp = digest()
        send = " ".join(map(shlex.quote, source()))
        copy = {h.name: f"{send} | {self._there(h, COPY, stamp, listens=True)}" for h in self.hosts}
        extras = {h.name: self._extra(h) for h in self.hosts}
        install = {
            h.name: self._there(h, INSTALL, stamp, extras[h.name], CPU_INDEX, self.order.torch_index)
            for h in self.hosts
        }
        again = "the same command goes on where it was"
        return [
            check,
            Step("copying this clone", copy, COPY_S, f"see what it says; {again}"),
            Step("installing deepvm (some minutes on fresh VMs)", install, INSTALL_S, f"see what it says; {again}"),
        ]

    def _extra(self, host: Host) -> str:
        mpi = ["mpi"] * (self.order.transport == "mpi")
        found = ["train", *mpi] if host in self.trainers else mpi  # who only receives needs no torch
        return f"[{','.join(found)}]" if found else ""

    def _accept(self) -> Step:
        python = self.order.python
        quoted = f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)
        lines = {}
        for host in self.hosts:
            needed = ["torch"] * (host in self.trainers) + ["mpi4py"] * (self.order.transport == "mpi")
            lines[host.name] = self._ssh(host, f"{quoted} -c {shlex.quote(ACCEPT)} {' '.join([__version__, *needed])}")
        title = f"looking for deepvm {__version__} in {python}"
        return Step(title, lines, CHECK_S * 2, "without --python this script installs it")

    def _there(self, host: Host, script: str, *arguments: str, listens: bool = False) -> str:
        """A line for a shell here that runs a script in ``sh`` there, whatever the login shell is."""
        return self._ssh(host, shlex.join(["sh", "-c", script, "deepvm", *arguments]), listens=listens)

    def _ssh(self, host: Host, remote: str, *, listens: bool = False) -> str:
        return shlex.join([*self.ssh, host.name, remote]) + ("" if listens else " </dev/null")

    def measure(self) -> str:
        """The line that measures; its standard output is the document."""
        order = self.order
        words = [sys.executable, "-m", "deepvm.cli.main", "profile", "all", "--hosts-file", order.trainers]
        words += ["--receiver", order.receiver, "--instance-type", order.trainer_type]
        words += ["--receiver-type", order.receiver_type, "--launcher", shlex.join([*self.ssh, "{host}"])]
        words += ["--python", self.python, *(w for m in order.model for w in ("--model", m))]
        words += ["--sizes", ",".join(map(str, self.sizes)), "--repeats", str(order.repeats)]
        words += ["--transport", order.transport, "--checkpoint-size", order.checkpoint_size]
        words += ["--out", str(self.parts), *order.more, "-o", "json"]
        return f"{shlex.join(words)} > {shlex.quote(str(self.answer))}"

    @property
    def answer(self) -> Path:
        """Where the document is until it is whole."""
        return self.out.with_name(f".{self.out.name}.new")


def source() -> list[str]:
    """The command that writes this clone as a tar: what is committed, or without git all of it."""
    if shutil.which("git") and (ROOT / ".git").exists():
        return ["git", "-C", str(ROOT), "archive", "--format=tar", "HEAD"]
    names = [n for n in ("deepvm", "data", "pyproject.toml", "README.md", "LICENSE") if (ROOT / n).exists()]
    return ["tar", "-C", str(ROOT), "--exclude=__pycache__", "-cf", "-", *names]


def digest() -> str:
    """Names what :func:`source` writes: hosts that have it are not sent it again."""
    command = source()
    if command[0] == "git":
        done = subprocess.run([*command[:3], "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise DataError(f"{ROOT}: git does not know what is committed: {done.stderr.strip()}")
        return done.stdout.strip()
    whole = hashlib.sha256()
    for name in command[command.index("-") + 1 :]:
        top = ROOT / name
        files = [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        for file in sorted(files):
            whole.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return whole.hexdigest()


def uncommitted() -> bool:
    """Whether the hosts get something else than what stands here."""
    words = ["git", "-C", str(ROOT), "status", "--porcelain", "--", "deepvm", "data", "pyproject.toml"]
    return source()[0] == "git" and bool(subprocess.run(words, capture_output=True, timeout=60).stdout)


def estimate(job: Job) -> str:
    """Expected time and cost, with what they rest on."""
    order, n, models = job.order, len(job.trainers), len(job.order.model)
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    kinds = {order.trainer_type: n}
    kinds[order.receiver_type] = kinds.get(order.receiver_type, 0) + 1
    run_s = _RUN_START_S + _STEPS * _STEP_S
    gbps = catalog[order.receiver_type].network_gbps if order.receiver_type in catalog.by_name else None
    push_s = _PUSH_START_S + 8e-9 * job.pushed / float(gbps or 1)
    parts = {
        "to copy and install": float(_PREPARE_S),
        "eFLOPS": float(_EFLOPS_S * models),
        f"speed-up: {len(job.sizes) * order.repeats * models} runs of {run_s:.0f} s": (
            len(job.sizes) * order.repeats * models * run_s
        ),
        f"saturation: {n * order.repeats} pushes of {push_s:.1f} s": 30 + n * order.repeats * push_s,
    }
    seconds = sum(parts.values())
    lines = [f"Expected time: {seconds / 60:.0f} min ({'; '.join(f'{s / 60:.0f} min {t}' for t, s in parts.items())})"]
    unknown = [t for t in kinds if t not in catalog.by_name]
    for market, field in (("spot", "spot_usd_per_hour"), ("on demand", "on_demand_usd_per_hour")):
        fixed = {t: catalog[t].on_demand_usd_per_hour for t in kinds if t not in unknown}
        prices = {t: getattr(catalog[t], field) or fixed[t] for t in fixed}
        nameless = [*unknown, *(t for t, p in prices.items() if p is None)]
        if nameless:
            lines.append(f"Expected cost, {market}: unknown, deepvm has no price of {', '.join(nameless)}")
            continue
        hourly = sum((count * prices[t] for t, count in kinds.items()), Decimal(0))
        shown = " + ".join(
            f"{count} x {t} at ${prices[t]}"
            + " (on demand: no spot price known)" * (getattr(catalog[t], field) is None)
            for t, count in kinds.items()
        )
        lines.append(f"Expected cost, {market}: ${float(hourly) * seconds / 3600:.2f} (${hourly}/h: {shown})")
    lines.append(
        f"Assumed: {_STEP_S} s a step ({_STEPS} steps a run; resnet50, batch 128 on a T4; other models and options "
        f"behind -- differ), {_RUN_START_S} s to start a run, {gbps or 1} Gbit/s at the receiver, VMs that end with "
        "it, the prices of us-east-1 that came with deepvm; without booting, disks and traffic between zones. Slow "
        "hosts and repeats of failed runs may double it."
    )
    return "\n".join(lines)


class Runner:
    """Runs lines in shells and ends all of them, whatever happens."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._over = threading.Lock(), False

    def step(self, step: Step) -> None:
        """Run a step on all its hosts at once.

        Raises:
            MeasurementError: names every host on which it failed, and why.
        """
        say(f"{step.title}: {len(step.lines)} hosts")
        with ThreadPoolExecutor(len(step.lines)) as pool:
            waiting = {name: pool.submit(self._quiet, line, step.limit_s) for name, line in step.lines.items()}
            try:
                while not all(f.done() for f in waiting.values()):
                    time.sleep(0.05)
            except BaseException:  # a signal: the threads wait for processes that end now
                self.end()
                raise
        wrong = {name: why for name, f in waiting.items() if (why := f.result())}
        if wrong:
            reasons = "\n".join(f"  {name}: {why}" for name, why in wrong.items())
            raise MeasurementError(f"{step.title} failed on {len(wrong)} of {len(waiting)}:\n{reasons}\n{step.advice}")

    def _quiet(self, line: str, limit_s: float) -> str:
        """Run it; why it failed, "" when it did not."""
        with tempfile.TemporaryFile() as said:
            process = self._start(line, said.fileno())
            if process is None:
                return "not started"
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._kill(process)
                return f"not done within {limit_s:.0f} s"
            finally:
                self._running.discard(process)
            said.seek(max(0, said.seek(0, os.SEEK_END) - 1000))
            lines = said.read().decode(errors="replace").strip().splitlines()[-3:]
        return "" if code == 0 else " | ".join(lines) or f"exit code {code}"

    def loud(self, line: str, limit_s: float) -> int:
        """Run it with its messages on this terminal; returns its exit code."""
        process = self._start(f"exec {line}", None)  # what is ended is the program itself, not a shell around it
        assert process is not None
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"not done within {limit_s / 3600:.0f} h; the same command goes on") from None
        finally:  # it gets time to end what it has started, and to write down what it has measured
            self.end(grace_s=30.0)

    def _start(self, line: str, output: int | None) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._over:
                return None
            null = subprocess.DEVNULL
            process = subprocess.Popen(
                ["sh", "-c", line], stdin=null, stdout=output, stderr=output, start_new_session=True
            )
            self._running.add(process)
            return process

    def end(self, grace_s: float = 3.0) -> None:
        """End everything that runs."""
        with self._lock:
            self._over = True
            left = list(self._running)
        for process in left:
            self._signal(process, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._signal(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            if process.poll() is None:
                os.killpg(process.pid, number)


def deliver(job: Job) -> None:
    """Put the document in its place, and say what importing it will do.

    Raises:
        DataError: it is not whole, or cannot be written.
    """
    found = read_tables(job.answer)
    if not found:
        raise MeasurementError("nothing was measured; see above")
    write_bytes(job.out, job.answer.read_bytes())
    own = {e.name: e for e in load_tables(own_folder())}
    say(f"{job.out}: {len(found)} measurements. 'deepvm tables import {shlex.quote(job.order.out)}' will:")
    for entry in found:
        old = own.get(entry.name)
        if entry.local:
            what = "refuse (processes of one machine; all of the file, without --force-local)"
        elif entry.kind == "eflops" and float(entry.document.get("spread") or 0) > USELESS_SPREAD:
            what = "refuse (its windows differ too much)"
        elif old is not None and old.measured_at > entry.measured_at:
            what = f"keep your later one, {old.value}, instead of"
        else:
            what = "add" if old is None else f"replace {old.value} by"
        say(f"  {what}: {entry.name}, {entry.value}")
    say("Now end the VMs: they cost money until then.")


def run(job: Job) -> int:
    """All of it; returns the exit code."""
    order = job.order
    say(estimate(job))
    if not order.python and uncommitted():
        say(f"Note: {ROOT} has changes that are not committed; the hosts get what is committed")
    if order.transport == "mpi" and not order.dry_run:
        try:
            import mpi4py  # noqa: F401
        except ImportError:
            raise RequestError("transport", "mpi", "tcp, or: pip install '.[mpi]' on this machine too") from None
    if order.dry_run:
        for step in job.steps():
            for line in step.lines.values():
                print(line)
        print(job.measure())
        return 0
    if not order.yes and sys.stdin.isatty():
        say("Start? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say("Nothing was done.")
            return 0
    runner = Runner()
    for step in job.steps():
        runner.step(step)
    say("measuring; the same command goes on if this is interrupted")
    try:
        code = runner.loud(job.measure(), MEASURE_S)
        if code in (0, 1):
            deliver(job)
        return code
    finally:  # what is whole has its own name by now; the parts stay
        job.answer.unlink(missing_ok=True)


def say(text: str) -> None:
    """Tell whoever looks on."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def on_signal(number: int, _: object) -> NoReturn:
    """End as an exception does, so that nothing stays behind."""
    raise SystemExit(128 + number)


def main() -> int:
    """The program; returns its exit code."""
    order = read_arguments(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        return run(Job(order))
    except KeyboardInterrupt:
        say("Error: interrupted; the same command goes on")
        return 130
    except RequestError as error:
        say(f"Error: --{error.option.replace('_', '-')}: {error.shown} cannot be used; allowed: {error.allowed}")
        return error.exit_code
    except DeepVMError as error:
        say(f"Error: {error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
