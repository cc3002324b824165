"""An agent's board and socket without the rest: what trainers see of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepvm.io.agent_board import BOARD, Board
from deepvm.jobs.agent.backups import TrainerSocket


class BareAgent:
    """Remembers what it hears, and answers what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.board = Board.create(folder / BOARD)
        self.heard: list[Mapping[str, Any]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.socket = TrainerSocket(folder, self.answer)

    def answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self.heard.append(message)
        return self.answers.get(str(message.get("ask")), {})

    def told(self, kind: str) -> list[Mapping[str, Any]]:
        return [m for m in self.heard if m.get("tell") == kind]

    def close(self) -> None:
        self.socket.close()
        self.board.close()
