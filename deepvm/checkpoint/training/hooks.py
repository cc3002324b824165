"""Hooks into a model, its optimizers and the end of the program, and where the training is while one of them runs."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from deepvm.errors import CheckpointError, RequestError

_WHY = (
    "the checkpointer copies between optimizer steps, so it cannot be part of a graph: compile optimizer.step without "
    "fullgraph=True"
)
_DEEPEST = 8
EXIT_S = 30.0
"""Seconds that the end of a program waits for tiers that do not answer."""

log = logging.getLogger("deepvm.checkpoint")


class Hook:
    """Calls a method without arguments; in a copy of the model, or a file of it, it is nothing."""

    def __init__(self, method: Callable[[], None] | None = None) -> None:
        """Remember what to call."""
        self._method = method

    def __call__(self, *_: Any, **__: Any) -> None:
        """Call it; not where torch.compile would make it a part of the model."""
        if not torch.compiler.is_compiling() and self._method is not None:
            self._method()

    def __deepcopy__(self, memo: Any) -> Hook:
        """Of another model nobody takes versions."""
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        """Neither of one in a file."""
        return (Hook, ())


class StepHook(Hook):
    """A hook into an optimizer's step, which runs also where torch.compile has made graphs of what is around it."""

    def __init__(self, method: Callable[[], None] | None = None) -> None:
        """Remember what to call."""
        super().__init__(None if method is None else outside(method))

    def __call__(self, *_: Any, **__: Any) -> None:
        """Call it: one graph ends before, the next one begins behind."""
        if self._method is not None:
            self._method()


def outside(method: Callable[..., None]) -> Callable[..., None]:
    """The method, never compiled: what is compiled around it is split into a graph before it and one behind it.

    Where that may not be (``fullgraph=True``), torch refuses to compile, with the reason.
    """
    known = "reason" in inspect.signature(torch.compiler.disable).parameters  # since torch 2.8
    options: dict[str, Any] = {"reason": _WHY} if known else {}
    found: Callable[..., None] = torch.compiler.disable(method, **options)  # type: ignore[no-untyped-call]
    return found


def stepper(optimizer: Any, name: str = "optimizer") -> torch.optim.Optimizer:
    """The optimizer whose ``step`` can be hooked: this one, or that in a wrapper, as Accelerate and Lightning have it.

    Args:
        optimizer: what the training calls its optimizer.
        name: what errors call it.

    Raises:
        RequestError: there is none.
    """
    found = optimizer
    for _ in range(_DEEPEST):
        if isinstance(found, torch.optim.Optimizer) and _can_be_hooked(found):
            return found
        found = getattr(found, "optimizer", None)
    raise RequestError(
        name, type(optimizer).__name__, "a torch.optim.Optimizer, or a wrapper with one as its attribute 'optimizer'"
    )


def _can_be_hooked(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it was made by torch's constructor, which gives it hooks and has its class's ``step`` call them."""
    return "_optimizer_step_pre_hooks" in vars(optimizer) and bool(getattr(type(optimizer).step, "hooked", False))


def nested_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the hooks that run now are those of a ``step`` inside the optimizer's own ``step``, as by ``super()``.

    torch hooks the ``step`` of every class of which there was an object.
    """
    frames = [f for f in callers() if f.f_code.co_name == "wrapper" and f.f_code.co_filename == _STEPS]
    return sum(f.f_locals.get("self") is optimizer for f in frames) > 1


def callers() -> Iterator[FrameType]:
    """The frames of the functions that led here, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


_STEPS = torch.optim.Optimizer.step.__code__.co_filename


@contextmanager
def aside() -> Iterator[None]:
    """Whatever mode the training is in: what is made here can be used in every other, and has no gradients."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def close_at_exit(close: Callable[[float], None]) -> None:
    """Call this method at the end of the program, if its object is still there, with a limit in seconds.

    Who forgets to close a checkpointer must not lose what is under way. In this process only: a forked child
    inherits the handler, but neither the threads nor the right to end them.
    """
    atexit.register(_close, weakref.WeakMethod(close), os.getpid())


def _close(method: weakref.WeakMethod[Callable[[float], None]], process: int) -> None:
    close = method() if os.getpid() == process else None
    if close is not None:
        try:
            close(EXIT_S)
        except CheckpointError as error:
            log.warning("at the end of the program: %s", error)
