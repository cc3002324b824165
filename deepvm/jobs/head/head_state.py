"""The files of a job's folder on its remote controller."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from deepvm.io.atomic_write import write_json

FILE = "head.json"
FRESH_S = 90.0
"""A head that has not written its mirror for so long is gone, or hangs; it does every 15 s."""
BEGINS_S = 900.0
"""So long it may take from the request until a head has written its first."""


@dataclass(frozen=True)
class HeadState:
    """The newest head of a job.

    Attributes:
        number: its number. asked_s: when it was asked for. here: this computer is it.
        launched, refused: the cloud's answer to that, if it is known.
        begun: its controller has written the mirror. heard_s: when it last had, as far as is known.
        read: whether the mirror could be read the last time. tag: of that mirror. nonce: of its
            controller.
        logs: the last of its logs that were fetched. emptied: the job is over, and nothing of it is
            in the bucket.
    """

    number: int
    asked_s: float
    here: bool = False
    launched: bool = False
    refused: bool = False
    begun: bool = False
    heard_s: float = 0.0
    read: bool = True
    tag: str = ""
    nonce: str = ""
    logs: str = ""
    emptied: bool = False

    @property
    def alive(self) -> bool:
        """Whether its controller lives, or can be expected to begin."""
        if self.begun:
            return time.time() - self.heard_s < FRESH_S
        return self.launched and time.time() - self.asked_s < BEGINS_S

    @classmethod
    def load(cls, folder: Path) -> HeadState | None:
        """That of a job's folder; None if its controller has no machine of its own."""
        try:
            return cls(**json.loads((folder / FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))
