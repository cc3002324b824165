"""Gradients that are added up over iterations until an optimizer uses them: no version has them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

MAX_ITERATIONS = 256
"""A version waits so many iterations for the step that uses the gradients."""
_MARKED_PARAMETERS = 8

Marks = list["tuple[int, int] | None"]


class AccumulatedGradients:
    """Which optimizers have gradients at the end of an iteration that they have not used."""

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        """``optimizers``: by the name that :meth:`stepped` gets."""
        self._optimizers = optimizers
        self.reset()

    def reset(self) -> None:
        """A loop starts, or goes back to an older version."""
        self._stepped: set[str] = set()
        self._waited = dict.fromkeys(self._optimizers, 0)
        self._used = {name: _marks(optimizer) for name, optimizer in self._optimizers.items()}

    def stepped(self, name: str) -> None:
        """An optimizer has stepped in this iteration."""
        self._stepped.add(name)

    def end_iteration(self) -> None:
        """The gradients of now count as used by the optimizers that have stepped."""
        for name, optimizer in self._optimizers.items():
            if name in self._stepped:
                self._waited[name] = 0
            else:
                self._waited[name] = self._waited[name] + 1
            if name in self._stepped:
                self._used[name] = _marks(optimizer)
        self._stepped = set()

    def unused(self) -> str:
        """Names of the optimizers whose gradients a backward has changed since their step."""
        idle = {
            name: optimizer
            for name, optimizer in self._optimizers.items()
            if name not in self._stepped
        }
        names = [
            name
            for name, optimizer in idle.items()
            if any(now := _marks(optimizer)) and now != self._used[name]
        ]
        return ", ".join(names)

    def takes_too_long(self) -> bool:
        """Whether an optimizer has not stepped for so many iterations that nothing waits for it."""
        return max(self._waited.values()) > MAX_ITERATIONS


def _marks(optimizer: torch.optim.Optimizer) -> Marks:
    """Which gradients some of its parameters have: a backward changes or replaces them."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    gradients = [p.grad for p in parameters[:: len(parameters) // _MARKED_PARAMETERS + 1]]
    return [
        None if gradient is None else (id(gradient), gradient._version) for gradient in gradients
    ]
