"""Layerwise updates (LightCheck III-B): update a layer once its gradients exist, then copy it.

The optimizer is split: one per layer, of the same class with the same options and state, so that
``optimizer.state_dict()``, schedulers and the saved file stay those of the whole. A layer is a
module's own parameters, updated when backward has accumulated the last of their gradients; in
DistributedDataParallel it is a bucket, updated in the communication hook once its gradients are
averaged. ``optimizer.step()`` updates the rest and ends the step. The next update of a layer waits
only for the copy of that layer (:mod:`deepvm.checkpoint.snapshot.copying`).

Requirements, all else being refused:

- one optimizer with exactly the trainable parameters of the model, which treats each parameter
  independently: one of :data:`INDEPENDENT`, or a class with ``per_parameter = True`` that leaves
  parameters without gradient alone;
- one backward per step: no gradient accumulation, no ``no_sync``;
- gradients and options unchanged between backward and ``optimizer.step()``: no clipping, no
  GradScaler, no closure; set the learning rate before backward;
- several ranks only in DistributedDataParallel, without ``find_unused_parameters``,
  ``static_graph``, its own mixed precision, or another communication hook.

If gradients are changed after backward, the next ``optimizer.step()`` raises, and the training must
go back to its last checkpoint (``restore_latest``). Worth it where a copy takes longer than forward
and backward.
"""

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from deepvm.checkpoint.training.hooks import callers, never_compiled
from deepvm.errors import RequestError
from deepvm.records import InitVar, dataclass

# Optimizers whose update of a parameter depends only on its own gradient and state
_NAMES = "SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop, Adagrad, Adadelta, ASGD"
INDEPENDENT: tuple[type, ...] = tuple(getattr(torch.optim, name) for name in _NAMES.split(", "))

Parameters = Sequence[nn.Parameter]
_Surround = Callable[[Parameters], None]


@dataclass(eq=False, repr=False)
class LayerUpdates:
    """Updates layers during backward; ``before`` and ``after`` surround updates."""

    model: InitVar[nn.Module]
    _optimizer: Optimizer
    _before: _Surround
    _after: _Surround
    world: InitVar[int]

    def __post_init__(self, model: nn.Module, world: int) -> None:
        optimizer = self._optimizer
        self._place = {
            p: n for n, group in enumerate(optimizer.param_groups) for p in group["params"]
        }
        self._check(model, world)
        self._parts: dict[tuple[int, ...], Optimizer] = {}
        self._lock = threading.Lock()
        # Of the current step: what backward has reached, and what was updated with which gradients
        # and options.
        self._fired: set[nn.Parameter] = set()
        self._updated: dict[nn.Parameter, tuple[Tensor | None, int]] = {}
        self._options: list[dict[str, Any]] = []
        self._reducing: list[torch.futures.Future[Tensor]] = []
        self._closed = False
        self._bucketed = isinstance(model, DistributedDataParallel)
        if isinstance(model, DistributedDataParallel):
            try:
                # Not the method itself: DDP compares annotations, which are strings here.
                model.register_comm_hook(
                    model.process_group, lambda group, bucket: self._reduce(group, bucket)
                )
            except RuntimeError as error:
                given = "DistributedDataParallel with a communication hook"
                raise _refused(given, f"none of its own: {error}") from None
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(never_compiled(self._before_step)),
            optimizer.register_step_post_hook(never_compiled(self._after_step)),
        ]
        self._layer: dict[nn.Parameter, list[nn.Parameter]] = {}
        for module in model.modules():
            trainable = (p for p in module.parameters(recurse=False) if p.requires_grad)
            own = [p for p in trainable if p not in self._layer]
            self._layer |= dict.fromkeys(own, own)
        self._hooks += [p.register_post_accumulate_grad_hook(self._ready) for p in self._layer]  # type: ignore[no-untyped-call]

    @property
    def ahead(self) -> bool:  # some layers are a step ahead of others
        return bool(self._fired)

    def reset(self) -> None:
        """Forget what a failed step has updated, before a checkpoint is loaded."""
        for future in self._reducing:  # an update in progress must not come after loading
            with contextlib.suppress(Exception):  # an error of the failed step
                future.wait()
        self._forget()

    def close(self) -> None:
        """Unhook from backward; in DistributedDataParallel the hook stays, and only averages."""
        self._closed = True
        for hook in self._hooks:
            hook.remove()

    def _check(self, model: nn.Module, world: int) -> None:
        optimizer = self._optimizer
        kind = type(optimizer).__name__
        if type(optimizer) not in INDEPENDENT and not getattr(optimizer, "per_parameter", False):
            raise _refused(kind, f"{_NAMES}, or a class with per_parameter = True")
        missing = {p for p in model.parameters() if p.requires_grad} - self._place.keys()
        if missing:
            raise _refused(f"{kind} without {len(missing)} parameters", "one for all of them")
        if self._place.keys() - set(model.parameters()):
            given = f"{kind} with parameters that are not the model's"
            raise _refused(given, "one for the model alone")
        if world > 1 and not isinstance(model, DistributedDataParallel):
            raise _refused(f"{type(model).__name__} on {world} ranks", "DistributedDataParallel")
        if isinstance(model, DistributedDataParallel):
            for option in ("find_unused_parameters", "static_graph", "mixed_precision"):
                if getattr(model, option, None):
                    raise _refused(f"DistributedDataParallel({option}=...)", "one without it")

    def _ready(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if parameter in self._fired:
            given = "a second backward before optimizer.step()"
            raise _refused(given, "one backward for a step, no accumulation")
        self._fired.add(parameter)
        if self._bucketed:
            return
        layer = self._layer[parameter]
        if all(p in self._fired for p in layer):
            self._update(layer)
            self._note(layer)

    def _reduce(self, group: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        # In a communication thread
        parameters = bucket.parameters()
        gradients = bucket.gradients()
        buffer: Tensor = bucket.buffer()
        closed = self._closed
        if bucket.is_last() and not closed:
            # Gradients may change until DDP has copied the averages into them, at the end of
            # backward. What a callback queues there runs last. Libraries have used this private
            # call for years.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(
                lambda: engine.queue_callback(lambda: self._note(list(self._updated)))
            )
        buffer.div_(group.size())
        work = torch.distributed.all_reduce(buffer, group=group, async_op=True)

        def update(future: torch.futures.Future[Any]) -> Tensor:
            future.wait()
            if closed:
                return buffer
            own = [p.grad for p in parameters]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            try:
                self._update(parameters)
            finally:
                for parameter, gradient in zip(parameters, own, strict=True):
                    parameter.grad = gradient
            return buffer

        found: torch.futures.Future[Tensor] = work.get_future().then(update)
        self._reducing += [] if closed else [found]
        return found

    def _update(self, layer: Any) -> None:
        self._before(layer)
        with self._lock:
            options = self._now()
            part = self._part(layer, options)
            self._options = self._options or options
            self._updated |= dict.fromkeys(layer, (None, 0))
        type(part).step(part)  # a scheduler may have wrapped the instance's own step
        self._after(layer)

    def _part(self, layer: Parameters, options: Sequence[dict[str, Any]]) -> Optimizer:
        key = tuple(map(id, layer))
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = copy.copy(self._optimizer)
            numbers = sorted({self._place[p] for p in layer})
            part.param_groups = [
                {"number": n, "params": [p for p in layer if self._place[p] == n]} for n in numbers
            ]
        part.state = self._optimizer.state
        for group in part.param_groups:
            group.update(options[group["number"]])
        return part

    def _now(self) -> list[dict[str, Any]]:
        groups = self._optimizer.param_groups
        return [{k: v for k, v in group.items() if k != "params"} for group in groups]

    def _note(self, layer: Parameters) -> None:
        """Note the gradients that were used: they must be unchanged when the step ends."""
        for p in layer:
            self._updated[p] = (p.grad, -1 if p.grad is None else p.grad._version)

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if any(a is not None for a in (*args[1:], *kwargs.values())):
            raise _refused("a closure", "optimizer.step() without arguments")
        # A GradScaler's changes to gradients do not show in their version counters.
        if any(frame.f_code is torch.amp.GradScaler.step.__code__ for frame in callers()):
            raise _refused("a GradScaler", "training without one, as with bfloat16")
        if sum(len(group["params"]) for group in optimizer.param_groups) != len(self._place):
            raise _refused("parameters that were added", "a new Checkpointer after add_param_group")
        for p, (gradient, version) in self._updated.items():
            if p.grad is not gradient or (gradient is not None and gradient._version != version):
                given = "gradients that change after backward"
                raise _refused(given, "no clipping, GradScaler or accumulation")
        if self._updated and self._options != self._now():
            given = "options that change after backward"
            raise _refused(given, "a learning rate that is set before backward")
        left = [p for p in self._place if p not in self._updated]
        if left:
            self._before(left)
        for p in self._updated:
            p.grad = None  # the optimizer then skips it

    def _after_step(self, *_: Any) -> None:
        for p, (gradient, _version) in self._updated.items():
            p.grad = gradient
        self._forget()

    def _forget(self) -> None:
        self._fired = set()
        self._updated = {}
        self._options = []
        self._reducing = []


def _refused(value: str, allowed: str) -> RequestError:
    return RequestError(
        "strategy", "layerwise", f'{allowed}; here is {value}: change that, or use strategy="C"'
    )
