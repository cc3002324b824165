"""The agent process of a machine of ``deepvm run``, and the agent of an anchor."""

import json
import logging
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from deepvm.core.json_types import JsonDict
from deepvm.io.atomic_write import write_private
from deepvm.io.failpoints import point
from deepvm.io.threads import start_thread
from deepvm.jobs.agent.agent import Agent
from deepvm.jobs.agent.controller_client import ControllerClient, ControllerUnreachable
from deepvm.jobs.agent.notices import notice_source
from deepvm.jobs.agent.preparation import ORPHAN_SAVE_S, AgentEnvironment
from deepvm.jobs.loggers import agent_log as log
from deepvm.jobs.wire import NEAR_BEAT_S, WireError

_RETRY_S = 0.1


class AnchorAgent:
    """Runs a memory node while the controller needs it, and for a while without one."""

    def __init__(self, around: AgentEnvironment) -> None:
        self._around = around
        self._client = ControllerClient(around.controller, around.machine, around.secret)
        self._node: subprocess.Popen[str] | None = None
        self._port = 0

    def run(self) -> None:
        around = self._around
        around.folder.mkdir(parents=True, exist_ok=True)
        orphan_after_s = around.orphan_after_s
        heard_s = time.monotonic()
        beat: JsonDict = {"generation": 0, "step": 0, "scheduled": 0}
        beat |= {"address": around.address, "wait_s": around.beat_s}
        try:
            # When its node has ended the controller sees that the machine has
            while self._node is None or self._node.poll() is None:
                try:
                    if self._node is None:
                        spec = self._client.ask("/job", {})
                        orphan_after_s = float(spec["orphan_after_s"])
                        self._start(self._client.shown(spec["sealed_token"]), spec["anchor_memory"])
                    serving = {"port": self._port, "warm": self._port > 0}
                    seen = "serving" if self._port else ""
                    answer = self._client.ask("/beat", {**beat, **serving, "seen": seen}, 15.0)
                except (ControllerUnreachable, WireError) as error:
                    log.debug("the controller does not answer: %s", error)
                    # Trainers save first, and what they send here must not break off
                    save_s = min(orphan_after_s, ORPHAN_SAVE_S)
                    if time.monotonic() - heard_s >= orphan_after_s + save_s:
                        return
                    time.sleep(_RETRY_S)
                    continue
                heard_s = time.monotonic()
                if answer.get("shutdown"):
                    return
                time.sleep(0.0 if self._port else _RETRY_S)
        finally:
            if self._node is not None:
                self._node.terminate()

    def _start(self, token: str, memory: str) -> None:
        file = self._around.folder / "token"
        write_private(file, token)
        words = ["memory-node", "serve", "--token-file", str(file), "--memory", memory]
        words += ["--listen", f"{self._around.address}:0", "--drain-timeout", "1"]
        point("anchor.before-node")
        self._node = subprocess.Popen(
            [sys.executable, "-m", "deepvm.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        start_thread(self._read)

    def _read(self) -> None:
        assert self._node is not None and self._node.stdout is not None
        for line in self._node.stdout:
            if line.startswith("listening on "):
                point("anchor.after-node")
                self._port = int(line.rpartition(":")[2])


def main() -> None:
    """Run it to the machine's end."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    file = Path(sys.argv[1])
    metadata = sys.argv[2]
    settings = json.loads(file.read_bytes())

    def controller() -> str:
        known = settings.get("controller_file")
        with suppress(OSError):
            if known:
                return Path(known).read_text().strip()
        return str(settings["controller"])

    around = AgentEnvironment(
        machine=settings["machine"],
        secret=bytes.fromhex(settings["secret"]),
        folder=file.parent / "agent",
        controller=controller,
        address=settings.get("address", "127.0.0.1"),
        interface=settings.get("interface", "lo"),
        beat_s=float(settings.get("beat_s", NEAR_BEAT_S)),
        orphan_after_s=float(settings.get("orphan_after_s", 1800.0)),
    )
    if settings.get("role") == "anchor":
        AnchorAgent(around).run()
    else:
        Agent(around, notice_source(metadata)).run()


if __name__ == "__main__":
    main()
