"""Detect a run that saves nothing: parameters change, but no optimizer step is seen.

It steps another optimizer than the checkpointer was given, or updates by hand. Values are compared,
because version counters miss fused optimizers and ``.data``, and change when weights are swapped
out and back.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from deepvm.checkpoint.format.sharded import local
from deepvm.checkpoint.training.hooks import Hook, without_autograd
from deepvm.errors import CheckpointError

# Backward passes without a step before the first comparison; the first pass is the baseline
_FIRST = 8
# So many backward passes, or steps of another optimizer, are a training run when it ends unsaved
_TRAINING = 4
# Differing comparisons in a row; weights swapped back after backward, or at the step, cause only
# one
_DIFFERENT = 2
_SAMPLE = 256  # elements compared per parameter
# Hooked parameters: not every expert or head takes part in every backward
_PER_GROUP = 3
_HOOKED = 24
# Forward passes without a backward after which hooks are renewed: parameters were frozen or
# replaced
_FORWARDS = 16
# Steps of another optimizer without one of the first; the critic of a GAN often takes 100
_BESIDE = 128

log = logging.getLogger("deepvm.checkpoint")


class MissingStepDetector:
    """Counts backward passes without a step and compares parameters after a few of them.

    That is after 8, 16, 32 passes and so on, but at least twice the usual number between steps, for
    gradient accumulation. While the training steps, nothing is compared.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        others: Mapping[str, torch.optim.Optimizer],
        tells: bool,
    ) -> None:
        """Hook into backward and the steps of ``others``; ``tells``: whether to warn."""
        self._optimizer = optimizer
        self._tells = tells
        self._usual = self._usual_beside = 0
        self._warned: set[str] = set()
        self._before: torch.Tensor | None = None
        self._hooks: list[Any] = []
        self.reset()
        own = {id(p) for p in _parameters(optimizer)}
        self._beside_hooks = [
            other.register_step_post_hook(
                Hook(partial(self._stepped_beside, name, shared), step=True)
            )
            for name, other in others.items()
            for shared in [any(id(p) in own for p in _parameters(other))]
        ]

    def __str__(self) -> str:
        """The problem, and what to do."""
        kind = type(self._optimizer).__name__
        return (
            f"the parameters change, but step() of the {kind} that the checkpointer was given is"
            " not called; give it the optimizer that steps, not a copy of it, and wrap manual"
            " updates in a torch.optim.Optimizer"
        )

    def reset(self) -> None:
        """Start again, from the parameters of a version."""
        self._never = True
        self._noticed = False
        self._beside = 0
        self._beside_name = ""
        self.forget()
        self._before = self._sample()
        self._install()

    def forget(self, first: int = 1) -> None:
        """Parameters change on purpose: restart the count and compare at this backward pass."""
        self._before = None
        self._counts: dict[int, int] = {}
        self._backwards = self._forwards = self._differing = 0
        self._next = first

    def stepped(self) -> None:
        """A step was seen."""
        self._usual = max(self._usual, self._backwards)
        self._usual_beside = max(self._usual_beside, self._beside)
        self._never = False
        self._noticed = False
        self._beside = 0
        self.forget(max(_FIRST, 2 * self._usual))

    def forwarded(self) -> None:
        """A forward pass of the training begins."""
        self._forwards += 1
        if self._forwards > _FORWARDS:
            self._install()

    def look(self) -> bool:
        """Whether parameters changed while no step was seen since the last reset; warns."""
        if not self._backwards:
            self._install()
        if self._never:
            now = self._sample()
            if _differ(self._before, now):
                self._noticed = True
                if self._backwards:  # setting weights by hand is not training
                    self._tell(str(self))
            if self._before is None:
                self._before = now
        return self._noticed or (self._never and self._beside > 0)

    def end(self) -> None:
        """Nothing was saved although there is a schedule.

        Raises CheckpointError: there was something to save.
        """
        if self._noticed and self._backwards >= _TRAINING:
            raise CheckpointError(f"no version was saved: {self}")
        if self._noticed:
            self._tell(str(self))
        elif self._never and self._beside >= _TRAINING:
            self._tell(self._wrong_one())

    def close(self) -> None:
        """Remove all hooks."""
        for hook in [*self._hooks, *self._beside_hooks]:
            hook.remove()

    def _install(self) -> None:
        """Hook into some of the currently trainable parameters."""
        self._forwards = 0
        for hook in self._hooks:
            hook.remove()
        groups = [
            [p for p in g["params"] if p.requires_grad and p.is_leaf]
            for g in self._optimizer.param_groups
        ]
        chosen = _spread([p for group in groups for p in _spread(group, _PER_GROUP)], _HOOKED)
        self._counts = {id(p): self._backwards for p in chosen}
        self._hooks = [p.register_post_accumulate_grad_hook(self._backward) for p in chosen]

    def _backward(self, parameter: torch.Tensor) -> None:
        count = self._counts[id(parameter)] = self._counts.get(id(parameter), 0) + 1
        if count <= self._backwards:  # another parameter has counted this pass
            return
        self._backwards = count
        self._forwards = 0
        if count < self._next:
            return
        self._next = max(_FIRST, 2 * count)
        now = self._sample()
        if now is None:
            return
        # Weights are often set between the start and the first backward.
        self._differing = self._differing + 1 if count > 1 and _differ(self._before, now) else 0
        self._before = now
        if self._differing == _DIFFERENT:
            self._noticed = True
            self._tell(str(self))

    def _stepped_beside(self, name: str, shared: bool) -> None:
        """An optimizer in ``extra`` stepped, perhaps with the same parameters."""
        self._beside = self._beside + 1
        self._beside_name = name
        if shared:
            self.forget()
        if self._beside == max(_BESIDE, 2 * self._usual_beside):
            self._tell(self._wrong_one())

    def _wrong_one(self) -> str:
        return (
            f"{self._beside_name} steps, the optimizer given as optimizer= does not; versions"
            " follow its steps: give the one that steps last"
        )

    def _tell(self, text: str) -> None:
        """Warn, once for each problem."""
        if self._tells and text not in self._warned:
            self._warned.add(text)
            text = f"nothing is saved automatically: {text}"
            log.warning("%s", text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _sample(self) -> torch.Tensor | None:
        """Some bytes of each parameter; None if they cannot be read now."""
        kinds = (torch.nn.Parameter, torch.Tensor)
        parameters = [local(p) for p in _parameters(self._optimizer)]
        parameters = [p for p in parameters if type(p) in kinds and p.layout is torch.strided]
        if not parameters or (parameters[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        try:
            with without_autograd():
                flat = [p.detach().reshape(-1) for p in parameters]
                some = (f[:: max(1, len(f) // _SAMPLE)] for f in flat)
                return torch.cat([s.cpu().contiguous().view(torch.uint8) for s in some])
        except Exception as error:  # in a transformation, or with tensors that are none
            log.debug("parameters cannot be compared now: %s", error)
            return None


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _spread(found: list[Any], most: int) -> list[Any]:
    """The first, the last, and some between them."""
    if len(found) <= most:
        return found
    return [found[i * (len(found) - 1) // (most - 1)] for i in range(most)]


def _differ(before: torch.Tensor | None, now: torch.Tensor | None) -> bool:
    """Whether values differ; False if the parameters themselves do."""
    return (
        before is not None
        and now is not None
        and len(before) == len(now)
        and not torch.equal(before, now)
    )
