"""Preparation of a machine before its first trainers, with progress for heartbeats."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import DataError
from deepvm.io.agent_board import AGENT
from deepvm.io.agent_link import EPOCH, SAVE_EVERY
from deepvm.io.atomic_write import write_private
from deepvm.io.failpoints import point
from deepvm.jobs.agent.controller_client import ControllerClient, ControllerUnreachable, Reporter
from deepvm.jobs.agent.liveness import ControllerLiveness
from deepvm.jobs.agent.process_group import exit_code
from deepvm.jobs.agent.trainers import Environ, Process, lines_of
from deepvm.jobs.loggers import agent_log as log
from deepvm.jobs.storage.data import have_data
from deepvm.jobs.storage.job_code import unpack
from deepvm.jobs.wire import WireError
from deepvm.records import dataclass

ORPHAN_SAVE_S = 300.0  # For so long trainers may save before a machine ends without a controller
_LAST_LINES = 40
_TOLD_S = 300.0
_RETRY_S = 0.1
PARTS = ("code_s", "setup_s", "data_s")


Doing = Callable[[str], None]


@dataclass(frozen=True)
class AgentEnvironment:
    """What a machine tells its agent."""

    machine: str
    secret: bytes
    folder: Path
    controller: Callable[[], str]  # Its URL now
    address: str  # Of this machine, for the others
    interface: str = ""  # Of collectives; empty: any
    beat_s: float = 5.0  # The longest time between heartbeats
    # Without a controller for so long the machine ends; the job's own value counts once it is known
    orphan_after_s: float = 1800.0


class OrphanedError(Exception):
    """There was no sign of the controller for too long."""


@dataclass(eq=False)
class Preparation:
    """Fetches the job, its code and its data, and runs its setup."""

    around: AgentEnvironment
    client: ControllerClient
    reporter: Reporter
    liveness: ControllerLiveness

    def __post_init__(self) -> None:
        self._token = self.around.folder / "token"
        self._setup: Process | None = None
        self._took_s: dict[str, float] = {}
        self.loads_s = 0.0  # Since when trainers load
        # Whether trainers could start once, and the controller learns how long it took
        self.over = False
        self.doing = "fetches the code"  # How far it is
        # Without a controller for so long the machine ends
        self.orphan_after_s = self.around.orphan_after_s

    def job(self) -> JsonDict:
        """What the job's machines must know; its token is in a file. Raises OrphanedError."""
        spec: JsonDict = self._insist(lambda: self.client.ask("/job", {}))
        self.orphan_after_s = float(spec["orphan_after_s"])
        write_private(self._token, self.client.shown(spec["sealed_token"]))
        return spec

    def environ(self, spec: JsonObject) -> dict[str, str]:
        """The variables of everything that the job runs here, without the job's own."""
        folder = self.around.folder
        # Those of another agent, below which this process may have been started
        found = {k: v for k, v in os.environ.items() if k not in (AGENT, EPOCH)}
        found |= {"PYTHONUNBUFFERED": "1", AGENT: str(folder), "DEEPVM_JOB": spec["name"]}
        found |= {"DEEPVM_TOKEN_FILE": str(self._token), "DEEPVM_DATA": str(folder / "data")}
        found |= {"DEEPVM_KEEP": str(spec["keep"])}
        if spec["save_every_steps"]:
            found[SAVE_EVERY] = str(spec["save_every_steps"])
        return found

    def have_code(self, spec: JsonObject) -> Path:
        folder = self.around.folder
        code = folder / "code"
        code.mkdir(exist_ok=True)
        if spec["has_code"]:
            archive = folder / "code.tar.gz"
            point("agent.before-code")
            with self._timed("code_s"):
                self._insist(lambda: self.client.fetch("/code", archive))
                try:
                    unpack(archive, code)
                except DataError as error:
                    self.give_up("unusable", why=f"code: {error}")
            archive.unlink()
            point("agent.after-code")
        return code

    def set_up(self, command: str, code: Path, environ: Environ, printed: Doing) -> None:
        done = self.around.folder / "setup-done"
        if not command or done.exists():
            return
        point("agent.before-setup")
        try:
            with self._timed("setup_s"):
                failed, last = self.run_setup(command, code, environ, printed)
        except OSError as error:
            self.give_up("unusable", why=f"setup: {error}")
        if failed:
            self.give_up("setup-failed", code=failed, lines=last)
        # Only after a success: an agent that is started again repeats a setup that was cut off.
        done.touch()
        point("agent.after-setup")

    def have_data(self, wanted: JsonObject, report: Doing) -> None:
        def both(text: str) -> None:
            report(text)
            self.doing = f"fetches {text}"

        try:
            with self._timed("data_s"):
                have_data(wanted, self.around.folder / "data", both)
        except DataError as error:
            self.give_up("unusable", why=f"data: {error}", data=True)

    def end(self) -> None:
        self.over = True
        parts = {name: round(self._took_s.get(name, 0.0), 3) for name in PARTS}
        self.reporter.add("prepared", **parts, load_s=round(time.monotonic() - self.loads_s, 3))

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self._took_s[part] = time.monotonic() - began_s

    def stop(self) -> None:
        if self._setup is not None:
            # The whole group: what the shell has started would outlive the shell.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._setup.pid, signal.SIGKILL)

    def run_setup(
        self, command: str, folder: Path, environ: Environ, printed: Doing
    ) -> tuple[int, list[str]]:
        """Returns the exit code, as a shell's, and the last lines. Raises OSError."""
        self.doing = "runs setup"
        self._setup = process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        last = list[str]()
        with process.stdout as output:
            for number, line in enumerate(lines_of(output), 1):
                text = f"setup: {line}"
                last = [*last[1 - _LAST_LINES :], text]
                printed(text)
                self.doing = f"runs setup, {number} lines so far"
        code = process.wait()
        self._setup = None
        return exit_code(code), last

    def give_up(self, report: str, **facts: Any) -> NoReturn:
        self.reporter.add(report, **facts)
        self.reporter.drain(_TOLD_S)
        raise SystemExit(f"{report}: {facts}")

    def _insist(self, ask: Callable[[], Any]) -> Any:
        while True:
            try:
                found = ask()
                self.liveness.answered()
                return found
            except (ControllerUnreachable, WireError) as error:
                log.debug("the controller does not answer: %s", error)
                if self.liveness.lasts_s >= self.orphan_after_s:
                    raise OrphanedError from None
                time.sleep(_RETRY_S)
