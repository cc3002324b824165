"""Whether the training stands where its last step left it, while its model is evaluated."""

from __future__ import annotations

import threading
from typing import Any

import torch

from deepvm.checkpoint.training.parameter_samples import (
    Samples,
    differ,
    parameters_of,
    sampled,
    spread,
)

_PARAMETERS = 4
"""Parameters compared at most: averages that are swapped in change all."""


class EvalModeTracker:
    """Remembers parameter values at each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing is known before a step."""
        self._optimizer = optimizer
        self._parameters: list[Any] = []
        self._left: Samples | None = None
        self._thread: threading.Thread | None = None

    def stepped(self) -> None:
        """A step has ended."""
        if not self._parameters:
            # Others would be copied whole to be read
            plain = [p for p in parameters_of(self._optimizer) if p.is_contiguous()]
            self._parameters = spread(plain, _PARAMETERS)
        self._left = sampled(self._parameters)
        self._thread = threading.current_thread()

    def forget(self) -> None:
        """The next step has started: a training pass, or a change on purpose."""
        self._left = None

    def stands(self) -> bool:
        """Whether nothing has changed since the last step. For the training thread only."""
        if not self._left or self._thread is not threading.current_thread():
            return False
        now = sampled(self._parameters)
        return now is not None and not differ(self._left, now)
