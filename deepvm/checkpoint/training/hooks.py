"""Hooks into a model, its optimizers and program exit, and where training is in each."""

import atexit
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from deepvm.checkpoint.loggers import log
from deepvm.errors import CheckpointError, RequestError

_WHY = (
    "the checkpointer copies between optimizer steps, so it cannot be part of a graph: compile"
    " optimizer.step without fullgraph=True"
)
_STEPS = Optimizer.step.__code__.co_filename
_DEEPEST = 8
EXIT_S = 30.0  # Seconds that the end of a program waits for tiers that do not answer


class Hook:
    """Calls a method without arguments; a copied or pickled hook does nothing."""

    def __init__(self, method: Callable[[], None] = lambda: None, *, step: bool = False) -> None:
        """A ``step`` hook also runs when the code around it is compiled."""
        self._method = never_compiled(method) if step else method
        self._step = step

    def __call__(self, *_: Any, **__: Any) -> None:
        if self._step or not torch.compiler.is_compiling():
            self._method()

    def __reduce__(self) -> "tuple[type[Hook], tuple[()]]":
        return (Hook, ())


def never_compiled(method: Callable[..., None]) -> Callable[..., None]:
    """Exclude a method from compilation: torch splits the graph, or refuses ``fullgraph=True``."""
    known = "reason" in inspect.signature(torch.compiler.disable).parameters  # since torch 2.8
    options: dict[str, Any] = {"reason": _WHY} if known else {}
    found: Callable[..., None] = torch.compiler.disable(method, **options)  # type: ignore[no-untyped-call]
    return found


def stepper(optimizer: Any, name: str = "optimizer") -> Optimizer:
    """The optimizer whose ``step`` can be hooked: this one, or one in a wrapper (Accelerate)."""
    found = optimizer
    for _ in range(_DEEPEST):
        if isinstance(found, Optimizer):
            # Torch's constructor sets up hooks and has the class's step call them.
            ran = "_optimizer_step_pre_hooks" in vars(found)
            if ran and getattr(type(found).step, "hooked", False):
                return found
        found = getattr(found, "optimizer", None)
    allowed = "a torch.optim.Optimizer, or a wrapper with one as its attribute 'optimizer'"
    raise RequestError(name, type(optimizer).__name__, allowed)


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """The parameters of all its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def modules_called(model: nn.Module) -> list[nn.Module]:
    """The model, or its parts if it has no forward (a ModuleDict of generator and critic)."""
    modules = [model]
    if type(model).forward is nn.Module.forward and "forward" not in vars(model):
        for part in model.children():
            modules += modules_called(part)
    return modules


def is_nested_step(optimizer: Optimizer) -> bool:
    """Whether the running hooks belong to a nested ``step``, as with ``super().step()``."""
    frames = [
        f for f in callers() if f.f_code.co_name == "wrapper" and f.f_code.co_filename == _STEPS
    ]
    return sum(f.f_locals.get("self") is optimizer for f in frames) > 1


def callers() -> Iterator[FrameType]:
    """The frames of the calling functions, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@contextmanager
def without_autograd() -> Iterator[None]:
    """No gradients and no inference tensors inside, in any mode of the training."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def close_at_exit(close: Callable[[float], None]) -> None:
    """Call it with a limit in seconds when this program or a fork exits, if still alive."""
    atexit.register(_close, weakref.WeakMethod(close))


def _close(method: weakref.WeakMethod[Callable[[float], None]]) -> None:
    close = method()
    if close is not None:
        try:
            close(EXIT_S)
        except CheckpointError as error:
            log.warning("at the end of the program: %s", error)
