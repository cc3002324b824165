"""The script that is audited, and how one attempt of it is started."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepvm.errors import RequestError
from deepvm.lab.certify import probe

OUT, DIR = "{out}", "DEEPVM_AUDIT_DIR"
"""Where a script is to write: in its arguments, or in its environment."""
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
    """A script with its arguments.

    Attributes:
        resume_arguments: added to the arguments of all attempts but the first. processes: that
            torchrun starts; 0: no torchrun. final: the file that holds the final parameters, below
            the folder of a run; empty: what optimizers hold is compared. timeout_s: for how long
            one attempt may run.
    """

    script: Path
    arguments: Sequence[str] = ()
    resume_arguments: Sequence[str] = ()
    processes: int = 0
    final: str = ""
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        """Raises RequestError: there is no such script."""
        if not self.script.is_file():
            problem = "there is none of this name"
            if self.script.is_dir():
                problem = "this is a folder"
            raise RequestError("SCRIPT", str(self.script), f"a Python file; {problem}")

    @property
    def in_place(self) -> bool:
        """Whether the script is told where to write, so that it may run in the current folder."""
        words = (*self.arguments, *self.resume_arguments)
        if any(OUT in one for one in words):
            return True
        return DIR in self.script.read_text(encoding="utf-8", errors="replace")

    def prepare(self, run: Path) -> None:
        """Make the folder of a run.

        Raises:
            RequestError: the current folder is too large to be copied; or the file of final
                parameters is there before the script has started, and is not a copy.
        """
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
        if _too_large(here):
            allowed = (
                "a script that is told where to write: with {out} in its arguments, or by"
                " DEEPVM_AUDIT_DIR;"
            )
            allowed += (
                " else each run gets a copy of the current folder, of at most"
                f" {_MOST_BYTES // 10**6} MB"
            )
            raise RequestError("SCRIPT", str(self.script), allowed)

        def left_out(folder: str, names: list[str]) -> set[str]:
            inside = {name for name in names if run.is_relative_to(Path(folder, name).resolve())}
            return {*_LEFT_OUT(folder, names), *inside}

        shutil.copytree(here, run / "out", symlinks=True, ignore=left_out)

    def earlier_checkpoints(self, run: Path) -> list[Path]:
        """Copied files in a prepared folder that may be checkpoints of earlier trainings."""
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
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--max-restarts=0",
        ]
        return [*torchrun, f"--nproc-per-node={self.processes}", *script]

    def _script_in(self, run: Path) -> Path:
        """The script itself, or its copy, which finds what lies next to it."""
        script = self.script.resolve()
        here = Path.cwd().resolve()
        inside = not self.in_place and script.is_relative_to(here)
        if inside:
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


def _too_large(folder: Path) -> bool:
    # Stops at the first file that is too much: the folder may be anything
    return any(total > _MOST_BYTES for total in itertools.accumulate(_sizes(folder)))


def _sizes(folder: Path) -> Iterator[int]:
    for parent, folders, files in os.walk(folder):
        ignored = _LEFT_OUT(parent, folders)
        folders[:] = [name for name in folders if name not in ignored]
        for name in files:
            yield Path(parent, name).lstat().st_size
