"""Detect steps that are not seen, and gradients that no optimizer has used yet."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from deepvm.checkpoint.format.sharded import local
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.hooks import parameters_of, without_autograd
from deepvm.errors import CheckpointError

# Backward passes without a step before parameters are read first; compared after 16, 32, ..
_BACKWARDS = 8
# Steps of another optimizer without one of the first; the critic of a GAN often takes 100
_OTHER_STEPS = 128
# Parameters that count backward passes: not every expert or head takes part in every one
_HOOKED = 24
# Forward passes without a backward: the hooked parameters may have been frozen or replaced
_FORWARDS = 16
_ELEMENTS = 256  # of each parameter are compared: version counters miss .data and fused steps
Samples = list[Tensor]


def spread(parameters: list[Any], limit: int) -> list[Any]:
    """About so many of the trainable ones, the first among them."""
    trainable = [p for p in parameters if p.requires_grad]
    return trainable[:: len(trainable) // limit + 1]


def sampled(parameters: list[Any]) -> Samples | None:
    """Copies of some elements of each; None if they cannot be read now."""
    try:
        with without_autograd():
            dense = [t for t in map(local, parameters) if t.layout is torch.strided]
            if dense and dense[0].is_cuda and torch.cuda.is_current_stream_capturing():
                return None
            flat = [t.detach().reshape(-1) for t in dense]
            return [t[:: len(t) // _ELEMENTS + 1].clone() for t in flat]
    except Exception as error:  # in a transformation, or with tensors that are none
        log.debug("parameters cannot be compared now: %s", error)
        return None


def differ(before: Samples | None, now: Samples | None) -> bool:
    """Whether values differ; False if the parameters are others, or unknown."""
    if before is None or now is None or [*map(_kind, before)] != [*map(_kind, now)]:
        return False
    with without_autograd():
        pairs = zip(before, now, strict=True)
        return any(not torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def _kind(sample: Tensor) -> tuple[object, ...]:
    return sample.shape, sample.dtype, sample.device


class MissingStepDetector:
    """Counts backward passes without a step, and compares parameters after a few of them."""

    def __init__(self, optimizer: Optimizer, others: Mapping[str, Optimizer], warns: bool) -> None:
        self._optimizer = optimizer
        self._warns = warns
        self._usual = self._usual_others = 0
        self._hooks: list[Any] = []
        own = set(parameters_of(optimizer))
        # Other optimizers of some of the same parameters
        self._sharing = {n for n, o in others.items() if not own.isdisjoint(parameters_of(o))}
        self.reset()

    def reset(self) -> None:
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
        self._usual = max(self._usual, self._backwards)
        self._usual_others = max(self._usual_others, self._others)
        self._never = self._changed = False
        self._others = 0
        self.forget()

    def forwarded(self) -> None:
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
        """Nothing was saved despite a schedule: raise CheckpointError if something should be."""
        if self._changed:
            if self._backwards:
                raise CheckpointError(f"no checkpoint was saved: {self._problem}")
            self._warn(self._problem)
        elif self._never and self._others:
            self._warn_of_others()

    def close(self) -> None:
        for hook in self._hooks:
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
        self._forwards = 0
        self.close()
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

    def other_stepped(self, name: str) -> None:
        self._others += 1
        self._other = name
        if name in self._sharing:
            self.forget()
        if self._others == max(_OTHER_STEPS, 2 * self._usual_others):
            self._warn_of_others()

    def _warn_of_others(self) -> None:
        self._warn(
            f"{self._other} steps, the optimizer given as optimizer= does not; checkpoints"
            " follow its"
            " steps: give the one that steps last"
        )

    def _warn(self, problem: str) -> None:
        if self._warns:
            self._warns = False
            text = f"nothing is saved automatically: {problem}"
            log.warning("%s", text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)


MAX_ITERATIONS = 256  # A checkpoint waits so many iterations for the step that uses the gradients
_MARKED_PARAMETERS = 8

Marks = list["tuple[int, int] | None"]


class AccumulatedGradients:
    """Which optimizers have gradients at the end of an iteration that they have not used."""

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = optimizers
        self.reset()

    def reset(self) -> None:
        self._stepped: set[str] = set()
        self._waited = dict.fromkeys(self._optimizers, 0)
        self._used = {name: _marks(optimizer) for name, optimizer in self._optimizers.items()}

    def stepped(self, name: str) -> None:
        self._stepped.add(name)

    def end_iteration(self) -> None:
        for name, optimizer in self._optimizers.items():
            if name in self._stepped:
                self._waited[name] = 0
                self._used[name] = _marks(optimizer)
            else:
                self._waited[name] += 1
        self._stepped = set()

    def unused(self) -> str:
        """Names of the optimizers whose gradients a backward has changed since their step."""
        left = {n: _marks(o) for n, o in self._optimizers.items() if n not in self._stepped}
        return ", ".join(n for n, marks in left.items() if any(marks) and marks != self._used[n])

    def takes_too_long(self) -> bool:
        return max(self._waited.values()) > MAX_ITERATIONS


def _marks(optimizer: Optimizer) -> Marks:
    parameters = [p for p in parameters_of(optimizer) if p.requires_grad]
    gradients = [p.grad for p in parameters[:: len(parameters) // _MARKED_PARAMETERS + 1]]
    return [None if g is None else (id(g), g._version) for g in gradients]
