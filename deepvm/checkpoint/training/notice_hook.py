"""When a preemption is near and no step comes, the forward of another module may save."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

_POLL_S = 0.1


class NoticeHook:
    """Hooks into forwards other than the model's, after half the time to the preemption.

    Until then the next step is awaited, after which the state is that of a whole iteration.
    """

    def __init__(
        self, model: torch.nn.Module, left_s: Callable[[], float], save: Callable[[], None]
    ) -> None:
        """``left_s``: seconds left, or infinity; ``save`` is called before forwards."""
        self._model = model
        self._left_s = left_s
        self._save = weakref.WeakMethod(save)
        self._half_s = math.inf
        self._hook: Any = None
        self._own: set[torch.nn.Module] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deepvm-notice", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the hook; none comes later."""
        self._ended.set()
        self._thread.join()
        self._set(hooked=False)

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S) and self._save() is not None:
            left_s = self._left_s()
            if left_s == math.inf:
                self._half_s = math.inf
            elif self._half_s == math.inf:
                self._half_s = left_s / 2
            self._set(hooked=left_s <= self._half_s < math.inf)
        self._set(hooked=False)

    def _set(self, hooked: bool) -> None:
        if hooked and self._hook is None:
            self._own = set(self._model.modules())
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(
                self._before_forward
            )
        elif not hooked and self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        save = self._save()
        if save is not None and module not in self._own and not torch.compiler.is_compiling():
            save()
