"""Whether the training stands where its last step left it, while its model is evaluated."""

from __future__ import annotations

import logging
import threading

import torch

from deepvm.checkpoint.format.sharded import local
from deepvm.checkpoint.training.hooks import without_autograd

_PARAMETERS, _ELEMENTS = 4, 64
"""Parameters compared at most, and elements of each: swapped-in averages change all."""

log = logging.getLogger("deepvm.checkpoint")


class EvalModeTracker:
    """Remembers parameter values at each step: version counters miss changes by ``.data``."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing is known before a step."""
        self._optimizer = optimizer
        self._views: list[torch.Tensor] = []
        self._places: list[int] = []
        self._parameters: list[torch.Tensor] = []
        self._left: torch.Tensor | None = None
        self._thread: threading.Thread | None = None

    def stepped(self) -> None:
        """A step has ended."""
        if not self._views or self._places != [p.data_ptr() for p in self._parameters]:
            self._choose()
        self._left = self._now()
        self._thread = threading.current_thread()

    def forget(self) -> None:
        """The next step has started: a training pass, or a change on purpose."""
        self._left = None

    def stands(self) -> bool:
        """Whether nothing has changed since the last step. For the training thread only."""
        left = self._left
        if left is None or self._thread is not threading.current_thread():
            return False
        if self._places != [p.data_ptr() for p in self._parameters]:
            return False
        now = self._now()
        with without_autograd():
            return now is not None and torch.equal(left.view(torch.uint8), now.view(torch.uint8))

    def _choose(self) -> None:
        """Parameters spread over the model, whose memory is read as it is."""
        found = [
            local(p)
            for group in self._optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        ]
        found = [p for p in found if p.layout is torch.strided and p.is_contiguous() and p.numel()]
        found = [p for p in found if p.device == found[0].device and p.dtype == found[0].dtype]
        self._parameters = found[:: max(1, len(found) // _PARAMETERS)][:_PARAMETERS]
        self._places = [p.data_ptr() for p in self._parameters]
        with without_autograd():
            flat = [p.detach().view(-1) for p in self._parameters]
            self._views = [f[len(f) // 2 :][:_ELEMENTS] for f in flat]

    def _now(self) -> torch.Tensor | None:
        try:
            with without_autograd():
                return torch.cat(self._views) if self._views else None
        except Exception as error:  # tensors that are none
            log.debug("parameters cannot be compared: %s", error)
            return None
