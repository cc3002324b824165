"""The script that is audited, and its attempts: start one, kill it somewhere, read its log."""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from deepvm.core.grouping import grouped
from deepvm.core.json_types import JsonDict
from deepvm.core.json_types import JsonObject as Row
from deepvm.core.spelling import listed
from deepvm.errors import DataError, RequestError
from deepvm.io.processes import follow_parent, last_lines
from deepvm.lab.certify import probe
from deepvm.lab.certify.probe import digest
from deepvm.lab.records import read_lines
from deepvm.records import asdict, dataclass, field

# Where a script is to write: in its arguments, or in its environment
OUT, DIR = "{out}", "DEEPVM_AUDIT_DIR"
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache"
)
_MOST_BYTES = 256 * 10**6
_CHECKPOINTS = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".distcp"})
_SITE = """import importlib.util, os
spec = importlib.util.spec_from_file_location("deepvm_audit_probe", {probe!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.install(os.path.dirname(os.path.abspath(__file__)))
"""


@dataclass(frozen=True)
class Subject:
    """A script with its arguments."""

    script: Path
    arguments: Sequence[str] = ()
    resume_arguments: Sequence[str] = ()  # added in all attempts but the first
    processes: int = 0  # that torchrun starts; 0: no torchrun
    final: str = ""  # file of final parameters, below a run; empty: what optimizers hold counts
    timeout_s: float = 3600.0  # of one attempt

    def __post_init__(self) -> None:
        if not self.script.is_file():
            problem = "there is none of this name"
            if self.script.is_dir():
                problem = "this is a folder"
            raise RequestError("SCRIPT", str(self.script), f"a Python file; {problem}")

    @property
    def in_place(self) -> bool:
        """Whether the script gets an output folder, so that it may run in the current one."""
        if any(OUT in one for one in (*self.arguments, *self.resume_arguments)):
            return True
        return DIR in self.script.read_text(encoding="utf-8", errors="replace")

    def prepare(self, run: Path) -> None:
        """Make the folder of a run. Raises RequestError: it cannot be, or the final file exists."""
        self._make(run)
        final = self.final_file(run)
        inside = (run / "out").resolve()
        if not self.final or not os.path.lexists(final):
            return
        if not final.parent.resolve().is_relative_to(inside):
            raise RequestError(
                "final",
                self.final,
                "a file that is not there before the script starts: below {out}",
            )
        final.unlink()  # of another training: who does not write it must not pass with it

    def _make(self, run: Path) -> None:
        (run / "hook").mkdir(parents=True)
        (run / "hook" / "sitecustomize.py").write_text(
            _SITE.format(probe=str(Path(probe.__file__).resolve()))
        )
        if self.in_place:
            (run / "out").mkdir()
            return
        here = Path.cwd()
        # Stops at the first file that is too much: the folder may be anything
        if any(total > _MOST_BYTES for total in itertools.accumulate(_sizes(here))):
            raise RequestError(
                "SCRIPT",
                str(self.script),
                "a script with an output folder: {out} in its arguments, or DEEPVM_AUDIT_DIR; else"
                f" each run gets a copy of the current folder, of at most {_MOST_BYTES // 10**6}"
                " MB",
            )

        def left_out(folder: str, names: list[str]) -> set[str]:
            inside = {name for name in names if run.is_relative_to(Path(folder, name).resolve())}
            return {*_LEFT_OUT(folder, names), *inside}

        shutil.copytree(here, run / "out", symlinks=True, ignore=left_out)

    def earlier_checkpoints(self, run: Path) -> list[Path]:
        files = (
            path
            for path in (run / "out").rglob("*")
            if path.suffix in _CHECKPOINTS and path.is_file()
        )
        return sorted(path.relative_to(run / "out") for path in files)

    def command(self, run: Path, *, resumes: bool) -> list[str]:
        words = [*self.arguments, *(self.resume_arguments if resumes else ())]
        script = [
            str(self._script_in(run)),
            *(word.replace(OUT, str(run / "out")) for word in words),
        ]
        if not self.processes:
            return [sys.executable, *script]
        options = f"--standalone --max-restarts=0 --nproc-per-node={self.processes}"
        return [sys.executable, "-m", "torch.distributed.run", *options.split(), *script]

    def _script_in(self, run: Path) -> Path:
        script = self.script.resolve()
        here = Path.cwd().resolve()
        if not self.in_place and script.is_relative_to(here):
            return run / "out" / script.relative_to(here)
        return script

    def folder(self, run: Path) -> Path:
        if self.in_place:
            return Path.cwd()
        return run / "out"

    def environment(self, run: Path, logs: Path, kill: str) -> Mapping[str, str]:
        path = os.pathsep.join(filter(None, (str(run / "hook"), os.environ.get("PYTHONPATH", ""))))
        variables = {**os.environ, "PYTHONPATH": path, DIR: str(run / "out"), probe.LOG: str(logs)}
        if kill:
            return {**variables, probe.KILL: kill}
        return variables

    def final_file(self, run: Path) -> Path:
        return run / "out" / self.final.replace(OUT, str(run / "out"))


def _sizes(folder: Path) -> Iterator[int]:
    for parent, folders, files in os.walk(folder):
        ignored = _LEFT_OUT(parent, folders)
        folders[:] = [name for name in folders if name not in ignored]
        for name in files:
            yield Path(parent, name).lstat().st_size


def digest_of_file(path: Path, folder: Path) -> str:
    """Hex SHA-256 of names and values of all tensors in a file of a run. Raises DataError."""
    if not path.is_file():
        raise DataError(
            f"{path.name}: the script has not written this file of final parameters; in {folder},"
            f" the folder of its run, {_shown(folder)}"
        )
    named = sorted(_tensors("", _load(path)), key=lambda pair: pair[0])
    if not named:
        raise DataError(f"{path.name}: there are no tensors in this file")
    names = hashlib.sha256("\n".join(name for name, _ in named).encode()).hexdigest()
    return hashlib.sha256(f"{names} {digest(tensor for _, tensor in named)}".encode()).hexdigest()


def _shown(folder: Path) -> str:
    files = sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: -path.stat().st_mtime,
    )
    if not files:
        return "there is no file: tell the script to write there, with {out} or DEEPVM_AUDIT_DIR"
    return f"there are {listed([str(path.relative_to(folder)) for path in files])}"


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{path.name}: not a file of safetensors: {error}") from None
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zipfile and torch each have their own
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path.name}: not a file of torch.save() with tensors alone: {reason}"
        ) from None


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "untyped_storage"):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors(f"{name}/{key}", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _tensors(f"{name}/{index}", inner)


_NAME = re.compile(r"(steps|samples)-(\d+)-(\d+)\.jsonl")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 1 << 16
_POLL_S = 0.001
_IDLE_POLL_S = 0.01
_TAIL_LINES = 15
State = Literal["ended", "failed", "killed", "hung"]


def no_room(folder: Path) -> DataError:
    """The error of a full disk."""
    return DataError(
        f"{folder}: no space left for the files of the audit, so the script cannot be judged;"
        " make space there, or name a folder on another disk: --out DIR (without it, TMPDIR says"
        " where)"
    )


def check_room(folder: Path) -> None:
    """Raise DataError if nothing can be written to a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            if file.write(bytes(_LEAST_BYTES)) != _LEAST_BYTES:
                raise no_room(folder)
    except OSError as error:
        if error.errno in _FULL:
            raise no_room(folder) from None
        raise


@contextlib.contextmanager
def own_files(folder: Path) -> Iterator[None]:
    """What is done here writes into a folder. Raises DataError: it is full."""
    try:
        yield
    except shutil.Error:  # of a copied folder: it has no error number
        check_room(folder)
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise no_room(folder) from None
        raise


@dataclass(frozen=True)
class AttemptLog:
    """Lines of one attempt, by rank, in order of time."""

    starts: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    steps: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    samples: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    writes: Sequence[Row] = ()
    errors: Sequence[str] = ()

    @classmethod
    def read(cls, folder: Path) -> "AttemptLog":
        rows: list[tuple[int, JsonDict]] = []
        for path in folder.glob("*.jsonl"):
            if name := _NAME.fullmatch(path.name):
                rows += [(int(name[2]), row) for row in read_lines(path)]
        rows.sort(key=lambda pair: (pair[0], float(pair[1]["time"])))  # of several processes

        def of(kind: str) -> dict[int, list[Row]]:
            return grouped((rank, row) for rank, row in rows if row["kind"] == kind)

        errors = [row["why"] for _, row in rows if row["kind"] == "error"]
        return cls(of("start"), of("step"), of("samples"), of("write").get(0, ()), errors)

    @property
    def progress(self) -> Sequence[Row]:
        return self.steps.get(0) or self.samples.get(0) or ()


@dataclass(frozen=True)
class Attempt:
    """What an attempt has been."""

    number: int
    state: State  # ``killed``: by us
    code: int  # its exit code
    wall_s: float
    logged: AttemptLog
    last_lines: str = ""
    torn_file: str = ""  # in whose write it was killed
    left: int = 0  # processes that could not be killed


@dataclass(frozen=True)
class KillPoint:
    """When to kill in an attempt: after steps and a delay, or in a write after so many steps."""

    after: int  # steps of the attempt
    delay_s: float
    limit: int  # steps at which it is killed at the latest
    skip: int = 0  # of a kill in a write: how many to let pass


@dataclass(frozen=True)
class Trigger:
    """When an attempt is to be killed: after a step or logged samples, or in a write."""

    kind: Literal["step", "samples", "write"]
    # Given the first line of the attempt, which tells where it continues
    point: Callable[[Row], KillPoint] = lambda first: KillPoint(1, 0.0, 1)


def run_attempt(
    subject: Subject, run: Path, number: int, trigger: Trigger | None, limit_s: float
) -> Attempt:
    """Run the script until it ends or is killed; leaves no process. Raises DataError, OSError."""
    logs = run / f"log-{number}"
    logs.mkdir()
    (logs / probe.COMPLETE).touch()
    parent = os.getpid()
    began = time.monotonic()
    with (run / f"output-{number}.txt").open("wb") as output:
        process = subprocess.Popen(
            subject.command(run, resumes=number > 0),
            cwd=subject.folder(run),
            env=subject.environment(run, logs, trigger.kind if trigger is not None else ""),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: follow_parent(parent, signal.SIGKILL),
        )
    state: State = "hung"
    try:
        state = _watch(process, logs, trigger, began + limit_s)
    finally:
        left = kill_all(process, logs)
    code = process.wait()
    if state == "killed" and code != -signal.SIGKILL:  # it has ended by itself before
        state = "ended" if code == 0 else "failed"
    text = ""
    if state in ("failed", "hung"):
        check_room(run.parent)
        text = "\n".join(last_lines(run / f"output-{number}.txt", _TAIL_LINES))
    torn = ""
    if state == "killed":
        torn = json.loads((logs / probe.KILLED).read_text())["file"]
    torn = torn.removeprefix(f"{run / 'out'}{os.sep}")
    return Attempt(
        number, state, code, time.monotonic() - began, AttemptLog.read(logs), text, torn, left
    )


def _watch(
    process: subprocess.Popen[bytes], logs: Path, trigger: Trigger | None, until_s: float
) -> State:
    """Watch until it has ended or killed itself; answer where to do that when it asks."""
    asked = trigger is not None
    while True:
        code = process.poll()
        if not (logs / probe.COMPLETE).exists():
            check_room(logs.parent.parent)
            raise no_room(logs.parent.parent)  # by now something has been removed
        if (logs / probe.KILLED).exists():
            return "killed"
        if code is not None:
            if code:
                return "failed"
            return "ended"
        if asked and trigger is not None and (logs / probe.FIRST).exists():
            point = trigger.point(json.loads((logs / probe.FIRST).read_text()))
            probe.write_whole(str(logs / probe.POINT), asdict(point))
            asked = False
        if time.monotonic() > until_s:
            return "hung"
        time.sleep(_POLL_S if asked else _IDLE_POLL_S)


def kill_all(process: subprocess.Popen[bytes], logs: Path) -> int:
    """Kill all processes of an attempt with SIGKILL; how many still live."""
    left = probe.kill_processes(str(logs))
    process.kill()
    process.wait()
    return left


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Kill all processes whose logs are below a folder when this process ends, even by SIGKILL."""
    # Not by PR_SET_PDEATHSIG, which acts when the thread ends that has started a process
    command = [sys.executable, "-I", "-S", str(Path(probe.__file__).resolve()), str(folder)]
    guard = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C, and a kill of this process group, are not for it
    )
    assert guard.stdin is not None
    try:
        yield
    finally:
        guard.stdin.close()
        guard.wait()
