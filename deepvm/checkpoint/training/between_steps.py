"""Assign changes between a step and the next forward to an iteration, where hooks cannot."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deepvm.checkpoint.format.flatten import State, flatten
from deepvm.checkpoint.format.sharded import local, storage_of
from deepvm.checkpoint.format.tensor_bytes import as_bytes, bytes_of, sample
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.state import TrainingState, random_state, tensors_of
from deepvm.core.spelling import listed
from deepvm.errors import RequestError

# They change after a step, if not after each. Other objects that do so only sometimes may be
# positions in the data.
_FOLLOW_THE_STEP: tuple[type, ...] = (
    torch.optim.lr_scheduler.LRScheduler,
    torch.optim.lr_scheduler.ReduceLROnPlateau,
    Optimizer,
    torch.amp.GradScaler,
    nn.Module,
)
_MAX_NAMES = 3
# The CPU's generators (MT19937) make a block of so many words, and count how many are used
_WORDS = 624
_USE_STEPS = "use `for step in ck.steps(total):`, which saves between iterations"


class BetweenSteps:
    """Observes the state before the first forward and around checkpoints; one warning a name."""

    def __init__(self, state: TrainingState, looks: bool, switches: bool) -> None:
        """``switches``: extras that change before the first forward are read after the step."""
        self._state = state
        self._looks = looks
        self._switch = switches
        self._start: _Observation | None = None
        self._at_step: _Observation | None = None
        self._usual_draws: dict[str, int] | None = None
        self._changed: dict[str, bool] = {}
        self._main_first: bool | None = None
        # The largest scale of each GradScaler: a smaller one means that a step was skipped
        self._largest: dict[str, float] = {}
        self._warned = set[str]()

    def started(self) -> None:
        self.forget()
        if self._looks:
            self._start = _Observation(self._state, model=True)
        self._usual_draws = self._main_first = None
        self._changed = {}
        self._largest = self._scales()

    def forget(self) -> None:
        self._start = self._at_step = None

    def main_stepped(self) -> None:
        if self._main_first is None:
            self._main_first = True

    def other_stepped(self, name: str) -> None:
        if self._main_first is None:
            self._main_first = False
        elif self._main_first:
            self._warn(
                [name],
                "{} changed in a step that follows the step of the optimizer given as optimizer=:"
                " checkpoints are taken between the two, and after a resume the iteration starts"
                " again; give the one that steps last",
            )

    def due(self) -> None:
        for name, scale in self._scales().items():
            if scale < self._largest.setdefault(name, scale):
                self._warn(
                    [_extra(name)],
                    "{} has skipped a step between two others: hooks do not count that iteration,"
                    " so a loop over range(ck.restore_latest(), total) does one more after a"
                    " resume",
                )
            self._largest[name] = max(scale, self._largest[name])
        self._at_step = _Observation(self._state, model=False)

    def first_forward(self, in_step: bool) -> None:
        """The first forward of this process starts; ``in_step``: none was seen before its step."""
        start = self._start
        self._start = None
        if start is None:
            return
        now = _Observation(self._state, model=not in_step)
        self._usual_draws = draws_between(start.random, now.random)
        changed = start.changed(now)
        extras = [name for name in self._state.extra if _extra(name) in changed and self._switch]
        self._state.read_after_step.update(extras)
        kept = [_extra(name) for name in extras]
        self._warn(
            kept,
            "{} changed between the start and the first forward: it is saved as optimizer.step()"
            " leaves it, without what changes later in that iteration",
        )
        self._warn(
            [name for name in changed if name not in kept],
            "{} changed between the start and the first forward: if each iteration starts with"
            " that, checkpoints have the change of the next iteration, and it is repeated after a"
            " resume",
        )

    def next_forward(self, storages: Collection[int]) -> None:
        """A checkpoint is read; these storages of the model, by ``_cdata``, have changed."""
        at_step = self._at_step
        self._at_step = None
        if at_step is None:
            return
        now = _Observation(self._state, model=False)
        changed = set(at_step.changed(now))
        if storages:
            named = _named(self._state.model)
            changed |= {name for name, t in named if storage_of(t)._cdata in storages}
        extra = self._state.extra
        exempt = {_extra(n) for n, v in extra.items() if isinstance(v, _FOLLOW_THE_STEP)}
        for name in self._changed.keys() | changed:
            usual = self._changed.setdefault(name, name in changed)
            if usual != (name in changed) and name not in exempt:
                self._warn(
                    [name],
                    "{} changed between some steps and the next forward, and not between others: it"
                    " is saved as that forward finds it, so a change that belongs to the next"
                    " iteration is repeated after a resume",
                )
        moved = [
            label
            for label, optimizer in self._state.optimizers.items()
            if storages  # most often there are none, and tensors of an optimizer are many
            and any(storage_of(tensor)._cdata in storages for tensor in tensors_of(optimizer.state))
        ]
        self._warn(
            moved,
            "the state of {} changed between a step and the next forward: it is saved as that"
            " forward finds it, so a change that belongs to the next iteration is repeated after a"
            " resume",
        )
        self._changed = dict.fromkeys(at_step.contents, False) | self._changed
        expected = self._usual_draws or {}
        draws = draws_between(at_step.random, now.random)
        strange = [name for name, count in draws.items() if expected.get(name) != count]
        self._warn(
            [f"the random state ({name})" for name in sorted(strange)],
            "{} changed between a step and the next forward, by other draws than before the first"
            " forward: checkpoints have it as the step left it, so what is drawn later in that"
            " iteration is drawn twice after a resume",
        )

    def _scales(self) -> dict[str, float]:
        return {
            name: value.get_scale()
            for name, value in self._state.extra.items()
            if isinstance(value, torch.amp.GradScaler) and value.is_enabled()
        }

    def _warn(self, names: Iterable[str], text: str) -> None:
        fresh = [name for name in names if name not in self._warned]
        if fresh:
            self._warned.update(fresh)
            log.warning("%s; %s", text.format(listed(fresh, _MAX_NAMES)), _USE_STEPS)


class _Observation:
    """The state of extras that follow a step, of random generators, and perhaps of the model."""

    def __init__(self, state: TrainingState, *, model: bool) -> None:
        self.random = random_state()
        extra = {n: v for n, v in state.extra.items() if n not in state.read_after_step}
        # By name, what differs once an object has changed
        self.contents: dict[str, Any] = {_extra(n): _content(v) for n, v in extra.items()}
        if model:
            self.contents |= {name: _content(o) for name, o in state.optimizers.items()}
            self.contents |= {
                name: (storage_of(t)._cdata, t._version, _sampled(t))
                for name, t in _named(state.model)
                if t.layout is torch.strided and not t.is_inference()
            }

    def changed(self, now: "_Observation") -> list[str]:
        """Names of what differs; not of what cannot be saved, as an error says when it is due."""
        pairs = {n: (c, now.contents.get(n)) for n, c in self.contents.items()}
        return [name for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]]


def _extra(name: str) -> str:
    return f"extra[{name!r}]"


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"parameter {name!r}", p.detach()) for name, p in model.named_parameters())
    yield from ((f"buffer {name!r}", b) for name, b in model.named_buffers())


def _content(value: Any) -> Any:
    try:
        parts = flatten(value.state_dict())
    except RequestError:
        return None
    # NaN differs from itself, its text does not
    return parts.structure, repr(parts.numbers), [_sampled(t) for t in parts.tensors]


def _sampled(tensor: Tensor) -> Any:
    """Some bytes of a tensor in host memory, the place and version of another one."""
    held = local(tensor)
    if held.device.type != "cpu":
        return held.data_ptr(), None if held.is_inference() else held._version
    source = None
    if held.layout is torch.strided:
        source = as_bytes(held.untyped_storage())
    if source is None:
        return None
    return bytes_of(sample(source).contiguous())


def draws_between(before: State, after: State) -> dict[str, int]:
    """32-bit numbers drawn modulo 624, by generator; those that drew none are left out."""
    old = _positions(before)
    return {
        name: (position - old[name][1]) % _WORDS
        for name, (state, position) in _positions(after).items()
        if name in old and old[name][0] != state
    }


def _positions(random: State) -> dict[str, tuple[bytes, int]]:
    torch_state = bytes_of(random["torch"])  # The state, and the words used of its block
    left = int.from_bytes(torch_state[8:12], "little")
    found = {
        "torch": (torch_state, -left),
        "python": (bytes_of(random["python"]), int(random["python"][_WORDS])),
    }
    numpy = random.get("numpy")
    if numpy is not None:
        position = int(numpy["position"])
        found["numpy"] = bytes_of(numpy["keys"]) + bytes(str(position), "ascii"), position
    for number, state in enumerate(random.get("cuda", ())):
        data = bytes_of(state)
        found[f"cuda:{number}"] = data, int.from_bytes(data[8:16], "little")  # behind the seed
    return found
