#!/usr/bin/env python3
r"""Measure your VMs on AWS (eFLOPS, speed-up, saturation) and copy back one JSON file.

    .venv/bin/python scripts/profile_on_aws.py --trainers hosts.txt --receiver ubuntu@10.0.0.9 \
        --trainer-type g4dn.xlarge --receiver-type c4.xlarge --out home.json --dry-run

Run it without --dry-run to start. It checks that all hosts answer, copies this clone to them (what
is committed), installs it there in ~/deepvm-profile, runs 'deepvm profile all' from here, and
writes the answer to --out. Rerun it to resume: what is copied, installed or measured (the folder
home.json.parts) is not done twice. Without a terminal on which it could ask it starts only with
--yes. All after -- goes to 'deepvm profile all', for example: -- --steps 50 --resolution 224.

Before:
  AMI         trainers: Deep Learning Base AMI (Ubuntu), or Ubuntu 22.04 or newer with NVIDIA's
              driver, and 20 GB of room on the disk; receiver: Ubuntu 22.04 or newer. Python 3.10 or
              newer; python3-venv is installed by apt where it is missing, which needs sudo without
              a password, as Ubuntu's AMIs have it.
  quotas      vCPUs of "All G and VT Spot Instance Requests" (or "Running On-Demand G and VT
              instances") for the trainers, 4 for each g4dn.xlarge; of "Standard" for the receiver.
              'deepvm doctor' shows what you have.
  network     one subnet, so that bandwidth is that of the VMs; a security group that lets in port
              22 from the machine on which this runs, and all TCP from itself, that is between
              trainers and receiver.
  start       'deepvm recommend -o json > plan.json; deepvm export plan.json --to ec2-fleet' (or
              terraform, skypilot) writes what starts them. One line of hosts.txt for each trainer,
              such as: ubuntu@10.0.0.11
  here        any machine that reaches all hosts by ssh without a password (a key in ssh-agent, or
              --ssh); private addresses need a machine in the network, such as the receiver. With
              --transport mpi this one must be in their network, with deepvm[mpi].
Afterwards:
  'deepvm tables import home.json' where you plan; then end the VMs the way you started them
  ('terraform destroy', 'sky down', 'aws ec2 delete-fleets --terminate-instances'): this script
  never does, and they cost money until then.

Exit codes: 0 done, 1 a host or a part failed (what was measured is in --out), 2 wrong usage, 4 a
file cannot be read or written, 130 interrupted, 143 ended by SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]

try:
    from profile_on_aws_cost import estimate
    from profile_on_aws_shells import Runner, Step, say

    from deepvm import __version__
    from deepvm.catalog.measured.tables import load_tables, own_folder, read_tables
    from deepvm.cli.main import main as deepvm
    from deepvm.core.units import counted, parse_bytes
    from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError
    from deepvm.io.atomic_write import write_bytes
    from deepvm.profiling.hosts.launcher import Host, parse_hosts, read_hosts
    from deepvm.services.profile.saving import USELESS_SPREAD, every_type, note_unknown_types
except ImportError as missing:
    sys.exit(
        f"Error: {sys.executable} has no deepvm ({missing}); 'make recommend' in {ROOT} installs"
        f" it, then: {ROOT / '.venv/bin/python'} {__file__} ..."
    )

SSH = (
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o"
    " ServerAliveCountMax=4 -o " + "StrictHostKeyChecking=accept-new"
)
HOME = "deepvm-profile"
"""The folder on the hosts, in the home of whoever logs in there."""
CHECK_S, COPY_S, INSTALL_S, MEASURE_S = 30.0, 300.0, 1800.0, 86400.0
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

INSTALL = ROOT / "scripts" / "profile_on_host.sh"
# For any POSIX shell. $1 is appended; nothing of the user's is inside.
COPY = (
    'set -eu; umask 077; mkdir -p ~/deepvm-profile; cd ~/deepvm-profile; if [ "$(cat copied'
    ' 2>/dev/null)" = "$1" ]; then cat >/dev/null; exit 0; fi; rm -rf source.new; mkdir source.new;'
    " tar -xf - -C source.new; [ -f source.new/pyproject.toml ]; rm -rf source copied; mv"
    ' source.new source; printf %s "$1" >copied'
)
ACCEPT = (
    "import importlib.util, sys, deepvm; sys.exit(0 if deepvm.__version__ == sys.argv[1] and"
    " all(map(importlib.util.find_spec, sys.argv[2:])) else 'deepvm ' + deepvm.__version__ + ' in '"
    " + sys.executable + '; needed: ' + ' '.join(sys.argv[1:]))"
)


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The options; ends the program with exit code 2 where they are wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--trainers", required=True, metavar="FILE", help="the VMs that train: one host a line"
    )
    parser.add_argument(
        "--receiver", required=True, metavar="HOST", help="the memory node: all push to it"
    )
    parser.add_argument("--trainer-type", required=True, metavar="TYPE", help="such as g4dn.xlarge")
    parser.add_argument("--receiver-type", required=True, metavar="TYPE", help="such as c4.xlarge")
    parser.add_argument("--out", required=True, metavar="FILE", help="the JSON to copy back")
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="what is trained; may be repeated (resnet50)",
    )
    parser.add_argument(
        "--sizes", default="", metavar="N,N,...", help="numbers of VMs (1, 2, 4, ... and all)"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each size (3)")
    parser.add_argument(
        "--transport", choices=("tcp", "mpi"), default="tcp", help="of the pushes (tcp)"
    )
    parser.add_argument(
        "--checkpoint-size", default="300MB", metavar="SIZE", help="what is pushed (300MB)"
    )
    parser.add_argument(
        "--ssh", default=SSH, metavar="COMMAND", help="with options, such as 'ssh -i key.pem'"
    )
    parser.add_argument(
        "--python",
        default="",
        metavar="PATH",
        help="on all hosts, has deepvm: nothing is installed",
    )
    parser.add_argument(
        "--torch-index", default="", metavar="URL", help="of torch on GPUs, for an older driver"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print every command, contact nobody"
    )
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
            raise RequestError(
                "out", order.out, "the name of a file that ends in .json, in a folder that exists"
            )
        self.parts = self.out.with_name(f"{self.out.name}.parts")
        try:
            self.ssh = shlex.split(order.ssh)
        except ValueError as error:
            raise RequestError("ssh", order.ssh, f"balanced quotes ({error})") from None
        if not self.ssh or shutil.which(self.ssh[0]) is None:
            raise RequestError(
                "ssh", order.ssh, "a program of this machine, such as 'ssh -i key.pem'"
            )
        self.python = order.python or f"~/{HOME}/venv/bin/python"

    def _sizes(self, text: str) -> tuple[int, ...]:
        from deepvm.profiling.scaling.measure_scaling import Task
        from deepvm.services.profile.campaign import sizes_of

        return Task("resnet50", sizes=sizes_of(text)).sizes_for(len(self.trainers))

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All of them, the receiver last."""
        return (*self.trainers, self.receiver)

    def steps(self) -> list[Step]:
        """What comes before the measurement."""
        names = [h.name for h in self.hosts]
        check = Step(
            "checking that all hosts answer",
            {f"{self._ssh('exit 0')} </dev/null": names},
            CHECK_S,
            "is the VM started, its port 22 open for this machine, the key known here (ssh-agent,"
            " or --ssh)?",
        )
        if self.order.python:
            return [check, self._accept()]
        stamp = digest()
        copy = (
            f"{shlex.join(source())} | {self._ssh(shlex.join(['sh', '-c', COPY, 'deepvm', stamp]))}"
        )
        install = {}
        for extras, those in self._kinds({True: "train", False: ""}, "mpi"):
            words = ["sh", "-s", "--", stamp, f"[{','.join(extras)}]" if extras else "", CPU_INDEX]
            line = self._ssh(shlex.join([*words, self.order.torch_index]))
            install[f"{line} <{shlex.quote(str(INSTALL))}"] = those
        again = "rerun the same command to resume"
        return [
            check,
            Step("copying this clone", {copy: names}, COPY_S, f"see what it says; {again}"),
            Step(
                "installing deepvm (some minutes on fresh VMs)",
                install,
                INSTALL_S,
                f"see what it says; {again}",
            ),
        ]

    def _kinds(self, training: Mapping[bool, str], mpi: str) -> list[tuple[list[str], list[str]]]:
        """What hosts need by what they do, and their names: who only receives needs no torch."""
        found = []
        for trains, hosts in ((True, self.trainers), (False, (self.receiver,))):
            needed = [training[trains], mpi * (self.order.transport == "mpi")]
            found.append(([n for n in needed if n], [h.name for h in hosts]))
        return found

    def _accept(self) -> Step:
        python = self.order.python
        quoted = f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)
        lines = {}
        for needed, those in self._kinds({True: "torch", False: ""}, "mpi4py"):
            remote = f"{quoted} -c {shlex.quote(ACCEPT)} {' '.join([__version__, *needed])}"
            lines[f"{self._ssh(remote)} </dev/null"] = those
        title = f"looking for deepvm {__version__} in {python}"
        return Step(title, lines, CHECK_S * 2, "without --python this script installs it")

    def _ssh(self, remote: str) -> str:
        return f'{shlex.join(self.ssh)} "$host" {shlex.quote(remote)}'

    def words(self) -> list[str]:
        """What ``deepvm`` is given to measure."""
        order = self.order
        words = ["profile", "all", "--hosts-file", order.trainers]
        words += ["--receiver", order.receiver, "--instance-type", order.trainer_type]
        words += [
            "--receiver-type",
            order.receiver_type,
            "--launcher",
            shlex.join([*self.ssh, "{host}"]),
        ]
        words += ["--python", self.python, *(w for m in order.model for w in ("--model", m))]
        words += ["--sizes", ",".join(map(str, self.sizes)), "--repeats", str(order.repeats)]
        words += ["--transport", order.transport, "--checkpoint-size", order.checkpoint_size]
        return [*words, "--out", str(self.parts), *order.more, "-o", "json"]

    def measure(self) -> str:
        """The line that measures; its standard output is the document."""
        words = [sys.executable, "-m", "deepvm.cli.main", *self.words()]
        return f"{shlex.join(words)} > {shlex.quote(str(self.answer))}"

    def refusal(self) -> str:
        """Why ``deepvm profile all`` would not start, or "": hosts are installed before."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                deepvm([*self.words(), "--dry-run"])
            except SystemExit as end:
                return said.getvalue() if end.code else ""
        return ""

    @property
    def answer(self) -> Path:
        """Where the document is until it is whole."""
        return self.out.with_name(f".{self.out.name}.new")


def source() -> list[str]:
    """The command that writes this clone as a tar: what is committed, or without git all of it."""
    if shutil.which("git") and (ROOT / ".git").exists():
        return ["git", "-C", str(ROOT), "archive", "--format=tar", "HEAD"]
    names = [
        n
        for n in ("deepvm", "data", "pyproject.toml", "README.md", "LICENSE")
        if (ROOT / n).exists()
    ]
    return ["tar", "-C", str(ROOT), "--exclude=__pycache__", "-cf", "-", *names]


def digest() -> str:
    """Names what :func:`source` writes: hosts that have it are not sent it again."""
    command = source()
    if command[0] == "git":
        done = subprocess.run(
            [*command[:3], "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise DataError(f"{ROOT}: git does not know what is committed: {done.stderr.strip()}")
        return done.stdout.strip()
    whole = hashlib.sha256()
    for name in command[command.index("-") + 1 :]:
        top = ROOT / name
        files = (
            [top]
            if top.is_file()
            else [p for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        )
        for file in sorted(files):
            whole.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return whole.hexdigest()


def uncommitted() -> bool:
    """Whether the hosts get something else than what is here."""
    words = [
        "git",
        "-C",
        str(ROOT),
        "status",
        "--porcelain",
        "--",
        "deepvm",
        "data",
        "pyproject.toml",
    ]
    return source()[0] == "git" and bool(
        subprocess.run(words, capture_output=True, timeout=60).stdout
    )


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
    say(
        f"{job.out}: {counted(len(found), 'measurement')}. 'deepvm tables import"
        f" {shlex.quote(job.order.out)}' will:"
    )
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
    if why := job.refusal():
        say(why.rstrip())
        return 2
    note_unknown_types([order.trainer_type, order.receiver_type], every_type(), say)
    say(
        estimate(
            (order.trainer_type, len(job.trainers)),
            order.receiver_type,
            models=len(order.model),
            runs=len(job.sizes) * order.repeats,
            repeats=order.repeats,
            checkpoint_bytes=job.pushed,
        )
    )
    if not order.python and uncommitted():
        say(f"Note: {ROOT} has changes that are not committed; the hosts get what is committed")
    if order.transport == "mpi" and not order.dry_run:
        try:
            import mpi4py  # noqa: F401
        except ImportError:
            raise RequestError(
                "transport", "mpi", "tcp, or: pip install '.[mpi]' on this machine too"
            ) from None
    if order.dry_run:
        for step in job.steps():
            print(step.script())
        print(f"# measuring, from here\n{job.measure()}")
        if not order.python:
            say(f"{INSTALL} is what the hosts run to install; the rest is in the lines.")
        return 0
    if not order.yes:
        if not sys.stdin.isatty():
            raise RequestError(
                "yes",
                False,
                "this option: no terminal is here that could be asked, and VMs cost money",
            )
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
        say(f"Error: {error.about('--' + error.option.replace('_', '-'))}")
        return error.exit_code
    except DeepVMError as error:
        say(f"Error: {error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
