"""Hooks into a model and its optimizers, and where the training is while one of them runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


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


def nested_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the hooks that run now are those of a ``step`` inside the optimizer's own ``step``, as by ``super()``.

    torch hooks the ``step`` of every class of which there was an object.
    """
    count, frame = 0, sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == _STEPS and frame.f_locals.get("self") is optimizer:
            count += 1
        frame = frame.f_back  # type: ignore[assignment]
    return count > 1


_STEPS = torch.optim.Optimizer.step.__code__.co_filename


@contextmanager
def aside() -> Iterator[None]:
    """Whatever mode the training is in: what is made here can be used in every other, and has no gradients."""
    with torch.inference_mode(False), torch.no_grad():
        yield
