"""Detect a run that saves nothing: parameters change, but no optimizer step is seen.

It steps another optimizer than the checkpointer was given, or updates by hand.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from deepvm.checkpoint.training.hooks import Hook
from deepvm.checkpoint.training.parameter_samples import (
    Samples,
    differ,
    parameters_of,
    sampled,
    spread,
)
from deepvm.errors import CheckpointError

_BACKWARDS = 8
"""Backward passes without a step before parameters are read first; compared after 16, 32, ..."""
_OTHER_STEPS = 128
"""Steps of another optimizer without one of the first; the critic of a GAN often takes 100."""
_HOOKED = 24
"""Parameters that count backward passes: not every expert or head takes part in every one."""
_FORWARDS = 16
"""Forward passes without a backward: the hooked parameters may have been frozen or replaced."""

log = logging.getLogger("deepvm.checkpoint")


class MissingStepDetector:
    """Counts backward passes without a step, and compares parameters after a few of them.

    With gradient accumulation these are more than twice the usual number between steps. While the
    training steps, nothing is compared.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        others: Mapping[str, torch.optim.Optimizer],
        warns: bool,
    ) -> None:
        """Hook into backward and the steps of ``others``."""
        self._optimizer = optimizer
        self._warns = warns
        self._usual = self._usual_others = 0
        self._before: Samples | None = None
        self._hooks: list[Any] = []
        own = set(parameters_of(optimizer))
        self._other_hooks = []
        for name, other in others.items():
            shared = not own.isdisjoint(parameters_of(other))
            hook = Hook(partial(self._other_stepped, name, shared), step=True)
            self._other_hooks.append(other.register_step_post_hook(hook))
        self.reset()

    def reset(self) -> None:
        """Start again, from the parameters of a version."""
        self._never = True
        self._changed = False
        self._others = 0
        self.forget()
        self._before = sampled(parameters_of(self._optimizer))
        self._install()

    def forget(self) -> None:
        """Parameters change on purpose: count from here."""
        self._before = None
        self._counts: dict[int, int] = {}
        self._backwards = 0
        self._next = max(_BACKWARDS, 2 * self._usual)

    def stepped(self) -> None:
        """A step was seen."""
        self._usual = max(self._usual, self._backwards)
        self._usual_others = max(self._usual_others, self._others)
        self._never = self._changed = False
        self._others = 0
        self.forget()

    def forwarded(self) -> None:
        """A forward pass of the training begins."""
        self._forwards += 1
        if self._forwards > _FORWARDS:
            self._install()

    def look(self) -> bool:
        """Whether parameters changed while no step was seen since the last reset; warns."""
        if self._never:
            now = sampled(parameters_of(self._optimizer))
            if differ(self._before, now):
                self._changed = True
                if self._backwards:  # setting weights by hand is not training
                    self._warn(self._problem)
            self._before = self._before or now
        return self._changed or (self._never and self._others > 0)

    def end(self) -> None:
        """Nothing was saved although there is a schedule.

        Raises CheckpointError: there was something to save.
        """
        if self._changed and self._backwards:
            raise CheckpointError(f"no version was saved: {self._problem}")
        if self._changed:
            self._warn(self._problem)
        elif self._never and self._others:
            self._warn_of_others()

    def close(self) -> None:
        """Remove all hooks."""
        for hook in [*self._hooks, *self._other_hooks]:
            hook.remove()

    @property
    def _problem(self) -> str:
        kind = type(self._optimizer).__name__
        return (
            f"the parameters change, but step() of the {kind} that the checkpointer was given is"
            " not called; give it the optimizer that steps, not a copy of it, and wrap manual"
            " updates in a torch.optim.Optimizer"
        )

    def _install(self) -> None:
        """Hook into some of the currently trainable parameters."""
        self._forwards = 0
        for hook in self._hooks:
            hook.remove()
        chosen = [p for p in spread(parameters_of(self._optimizer), _HOOKED) if p.is_leaf]
        self._hooks = [p.register_post_accumulate_grad_hook(self._backward) for p in chosen]

    def _backward(self, parameter: torch.Tensor) -> None:
        count = self._counts[id(parameter)] = self._counts.get(id(parameter), 0) + 1
        if count <= self._backwards:  # another parameter has counted this pass
            return
        self._backwards = count
        self._forwards = 0
        if count < self._next:
            return
        self._next = 2 * count
        now = sampled(parameters_of(self._optimizer))
        if count > _BACKWARDS and differ(self._before, now):
            self._changed = True
            self._warn(self._problem)
        self._before = now or self._before

    def _other_stepped(self, name: str, shared: bool) -> None:
        """An optimizer in ``extra`` stepped; ``shared``: with some of the same parameters."""
        self._others += 1
        self._other = name
        if shared:
            self.forget()
        if self._others == max(_OTHER_STEPS, 2 * self._usual_others):
            self._warn_of_others()

    def _warn_of_others(self) -> None:
        self._warn(
            f"{self._other} steps, the optimizer given as optimizer= does not; versions follow its"
            " steps: give the one that steps last"
        )

    def _warn(self, problem: str) -> None:
        """Warn, once."""
        if self._warns:
            self._warns = False
            text = f"nothing is saved automatically: {problem}"
            log.warning("%s", text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)
