"""The agent without a controller: beside a command that somebody else's engine starts, restarts and ends."""

from __future__ import annotations

import http.client
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from deepvm.errors import RequestError
from deepvm.io.agent_board import AGENT, BOARD, Board, SaveReason, Scheduled, Word
from deepvm.jobs.agent.backups import Backups
from deepvm.jobs.agent.notices import MetadataError, NoticeSource
from deepvm.jobs.agent.trainer_socket import TrainerSocket

_POLL_S = 1.0

log = logging.getLogger("deepvm.agent")


class LoneAgent:
    """Has the trainers of one command save when the cloud takes this machine back."""

    def __init__(self, notices: NoticeSource, tiers: Sequence[str], job: str) -> None:
        """Start nothing yet."""
        self._notices, self._tiers, self._job = notices, tiers, job
        self._over = threading.Event()
        self._lock = threading.Lock()

    def run(self, words: Sequence[str]) -> int:
        """Run a command to its end; returns its exit code. Raises RequestError: it cannot be started."""
        with tempfile.TemporaryDirectory(prefix="deepvm-agent-") as name:
            folder = Path(name)
            self._board = Board.create(folder / BOARD)
            self._board.words[Word.ALONE] = 1
            self._backups = Backups(self._tiers, self._job, folder / "backups")
            sockets = TrainerSocket(folder, self._answer)
            threading.Thread(target=self._listen, daemon=True, name="notices").start()
            try:
                return self._wait(words, folder)
            finally:
                self._over.set()
                sockets.close()

    def _wait(self, words: Sequence[str], folder: Path) -> int:
        try:
            process = subprocess.Popen(words, env={**os.environ, AGENT: str(folder)})
        except OSError as error:
            raise RequestError("COMMAND", words[0], f"a command that can be started ({error.strerror})") from None

        def pass_on(number: int, _: FrameType | None) -> None:
            process.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return 128 - code if code < 0 else code

    def _listen(self) -> None:
        told, unheard = 0.0, 0
        while not self._over.is_set():
            try:
                notice = self._notices.poll()
                unheard = 0
                if notice is not None and abs(notice.taken_s - told) > _POLL_S:
                    told = notice.taken_s
                    left_s = told - time.time()
                    log.warning("the cloud takes this machine back in %.0f s: trainers save", max(left_s, 0.0))
                    self._board.request(SaveReason.EMERGENCY, int(told * 1000))
            except (OSError, ValueError, http.client.HTTPException, MetadataError) as error:
                unheard += 1
                if unheard in (3, 300):
                    log.warning("the metadata service cannot be used: %s; preemptions come unannounced", error)
            self._over.wait(_POLL_S)

    def _answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = message.get("ask") or message.get("tell")
        if kind == "schedule":
            reason, limit_ms, request = message["save"]
            self._board.schedule(int(message["step"]), Scheduled(SaveReason(reason), int(limit_ms), int(request)))
        elif kind == "backup":
            path, step, rank = Path(message["path"]), int(message["step"]), int(message["rank"])
            return self._backups.add(path, self._base + step, rank, 0, lambda version, error: None)
        elif kind == "latest":
            found = self._backups.latest(int(message["rank"]), 0)
            self._base = 0 if found is None else found.step
            return {} if found is None else {"path": str(found.path)}
        elif kind == "saved" and message.get("error"):
            log.warning("version %s is not safe: %s", message["version"], message["error"])
        return {}

    _base = 0
