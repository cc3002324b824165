"""Noticing that parameters change although no step of the optimizer is seen: a training of which nothing is saved.

Its optimizer is another one than the checkpointer was given, or it changes the parameters by hand. What tells is their
values: version counters miss fused optimizers and ``.data``, and move where weights are put aside and put back.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from deepvm.checkpoint.hooks import aside

_FIRST = 4
"""Backward passes without a step before one looks; there is a baseline at the first."""
_SAMPLE = 256
"""Elements of each parameter that are compared."""

log = logging.getLogger("deepvm.checkpoint")


class Unseen:
    """Counts backward passes without a step, which compiled models have as well, and looks after a few.

    It looks after 4, 8, 16 and so on, from twice as many as were usual between two steps: gradients are accumulated.
    In a training that steps nothing is compared.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rank: int) -> None:
        """Hook into backward.

        Args:
            optimizer: whose steps are seen.
            rank: of this process; the first one tells.
        """
        self._optimizer, self._rank = optimizer, rank
        self._usual = 0
        self._told = False
        self._before: torch.Tensor | None = None
        self.reset()
        # One parameter, the last, because those of the output take part in every backward.
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.is_leaf]
        self._hooks: list[Any] = [p.register_post_accumulate_grad_hook(self._backward) for p in trained[-1:]]

    def __str__(self) -> str:
        """What was noticed, and what to do."""
        kind = type(self._optimizer).__name__
        return (
            f"the parameters change, but step() of the {kind} that the checkpointer was given is not called; "
            "give it the optimizer that steps, not a copy of it, and make an update by hand a "
            "torch.optim.Optimizer"
        )

    @property
    def training(self) -> bool:
        """Whether there were so many backward passes that it is a training."""
        return self._backwards >= _FIRST

    def reset(self) -> None:
        """Begin anew: parameters are those of a version."""
        self._never, self._noticed = True, False
        self.forget()
        self._before = self._sample()

    def forget(self) -> None:
        """Parameters are about to become others, which is no step."""
        self._before = None
        self._backwards, self._next = 0, 1

    def stepped(self) -> None:
        """A step was seen."""
        self._usual = max(self._usual, self._backwards)
        self._before, self._never, self._noticed = None, False, False
        self._backwards, self._next = 0, max(_FIRST, 2 * self._usual)

    def look(self) -> bool:
        """Whether parameters have changed while no step was seen since the last reset; says so once."""
        if self._never:
            self._compare()
        return self._noticed

    def close(self) -> None:
        """Let go of backward."""
        for hook in self._hooks:
            hook.remove()

    def _backward(self, _: torch.Tensor) -> None:
        self._backwards += 1
        if self._backwards < self._next:
            return
        if self._backwards == 1:  # weights are often set between the start and here
            self._before = None
        self._next = max(_FIRST, 2 * self._backwards)
        self._compare()

    def _compare(self) -> None:
        now = self._sample()
        if now is None:
            return
        before, self._before = self._before, now
        if before is None or len(before) != len(now) or torch.equal(before, now):
            return
        self._noticed = True
        if not self._backwards:  # weights that are set by hand are no training
            return
        told, self._told = self._told, True
        if not told and not self._rank:
            text = f"no version is saved by itself: {self}"
            log.warning("%s", text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _sample(self) -> torch.Tensor | None:
        """Some bytes of each parameter, None where they cannot be read now."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if _is_plain(p)]
        if not parameters or (parameters[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        try:
            with aside():
                return torch.cat([_some(p) for p in parameters])
        except Exception as error:  # in a transformation, or with tensors that are none
            log.debug("parameters cannot be compared now: %s", error)
            return None


def _some(parameter: torch.Tensor) -> torch.Tensor:
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, len(flat) // _SAMPLE)].cpu().contiguous().view(torch.uint8).clone()


def _is_plain(parameter: Any) -> bool:
    return type(parameter) in (torch.nn.Parameter, torch.Tensor) and parameter.layout is torch.strided
