"""Save and restore the state: model, optimizers, the user's extras and random states."""

import copy
import io
import random
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deepvm.checkpoint.format.flatten import State, StateDict, flatten, map_leaves
from deepvm.checkpoint.format.sharded import (
    check_runs,
    is_sharded,
    region_of,
    sharded_as,
    storage_of,
)
from deepvm.checkpoint.format.tensor_bytes import bytes_of
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.fingerprint import FINGERPRINT, Fingerprint, other_model
from deepvm.checkpoint.training.hooks import parameters_of, without_autograd
from deepvm.errors import CheckpointError, RequestError

RANDOM = "rng"  # Key of the random states among the extras
_ANEW = "start over under another name (job= or DEEPVM_JOB)"
_NEXT = (
    "build all as it was when the checkpoint was saved: before that, saved ="
    " deepvm.checkpoint.inspect_latest(tiers=...) gives its step, saved['version'], the names and"
    f" shapes in saved['model'], and saved['optimizer']['param_groups']; or {_ANEW}"
)
_CLONE_HINT = (
    "tensors with memory for each element: .clone(), outside of inference_mode, makes one of it"
)
_MOST_LINES = 4


class StorageRoles(NamedTuple):
    """Storages by their role, as ``_cdata``."""

    parameters: Mapping[int, nn.Parameter]
    buffers: set[int]
    gated: set[int]  # only steps change them


@runtime_checkable
class Stateful(Protocol):
    """What a scheduler, a GradScaler or a sampler has."""

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state_dict: StateDict) -> Any: ...


class TrainingState:
    """The objects whose state is saved, by the user's names."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, extra: Mapping[str, Stateful] | None = None
    ) -> None:
        """Raises RequestError: an extra lacks methods or has a reserved name."""
        self.model: Any = unwrap(model)
        self.optimizer = optimizer
        self.extra = dict(extra or {})
        # Extras that are read right after a step; hooks add those that change before forward
        self.read_after_step = set[str]()
        self.optimizers = {"optimizer": optimizer}  # by the argument that they are
        for name, value in self.extra.items():
            label = f"extra[{name!r}]"
            if name in (RANDOM, RECORDS):
                allowed = "other names: this one is taken by the random states"
                raise RequestError("extra", name, allowed)
            if not isinstance(value, Stateful):
                allowed = "objects with state_dict, load_state_dict"
                raise RequestError(label, type(value).__name__, allowed)
            if isinstance(value, Optimizer):
                self.optimizers[label] = value
            reads = isinstance(value, torch.utils.data.Sampler) or hasattr(type(value), "__iter__")
            if reads and not isinstance(value, nn.Module):
                self.read_after_step.add(name)
        self.fingerprint = Fingerprint(self.model, self.optimizers, self.extra)

    @property
    def sharded(self) -> bool:
        """Whether a rank may have only a part of some parameter."""
        return any(map(is_sharded, [*self.model.parameters(), *self._updated()]))

    def check(self) -> None:
        """Raise RequestError if the state cannot be saved, now or after an optimizer step."""
        parameters = set(self.model.parameters())
        if self.sharded and parameters.isdisjoint(self._updated()):
            kind = type(self.optimizer).__name__
            allowed = "one made after the model was sharded: it updates none of its parameters"
            raise RequestError("optimizer", kind, allowed)
        with without_autograd():
            tree = self.tree(0, self.early())
            found = flatten(tree)
            for label, state in (("model", tree["model"]), *tree["extra"].items()):
                flatten({f"_metadata of {label}": dict(getattr(state, "_metadata", {}))})
            modules = {"model": self.model, **{f"extra[{n!r}]": v for n, v in self.extra.items()}}
            for label, module in modules.items():
                if isinstance(module, nn.Module):
                    _check_memory(label, module)
        to_come = []
        if not self.optimizer.state:
            updated = (p for p in self._updated() if is_sharded(p) and p.requires_grad)
            to_come = [region_of(p) for p in updated] * _states_to_come(self.optimizer)
        check_runs([*found.regions.values(), *to_come])

    def early(self) -> StateDict:
        """Copies of what the next batch advances: random states, samplers and loaders.

        Everything else is read when the next forward starts; of that a file has one for all ranks.
        """
        states = {n: v.state_dict() for n, v in self.extra.items() if n in self.read_after_step}
        return {**_copied(states), RANDOM: random_state()}

    def tree(self, version: int, early: State) -> StateDict:
        if self.sharded:
            for place, optimizer in self.optimizers.items():
                _check_sharded(place, optimizer)
        late = {n: v.state_dict() for n, v in self.extra.items() if n not in self.read_after_step}
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "extra": {**late, **early},
            "version": version,
            FINGERPRINT: self.fingerprint.text(),
        }

    def record(self) -> bytes:
        """This rank's own state as a torch file: :meth:`early`, and buffers."""
        early = self.early()
        flatten({"extra": early})
        buffers = {name: b.detach() for name, b in self.model.named_buffers() if not is_sharded(b)}
        stream = io.BytesIO()
        torch.save({"early": early, "buffers": buffers}, stream)
        return stream.getvalue()

    def optimizer_tensors(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        found = [self.optimizer.state[p] for p in parameters if p in self.optimizer.state]
        return [v for values in found for v in values.values() if isinstance(v, Tensor)]

    def owned(self, at_boundary: bool = False) -> StorageRoles:
        """The roles now; ``at_boundary``: only optimizers' are gated, not momentum encoders."""
        modules = [*self.model.modules()]
        own = (p for m in modules for p in m._parameters.values() if p is not None)
        parameters = {storage_of(p)._cdata: p for p in own}
        held = (b for m in modules for b in m._buffers.values() if b is not None)
        gated = self.updated()
        if not at_boundary:
            gated.update(parameters)
        return StorageRoles(parameters, {storage_of(b)._cdata for b in held}, gated)

    def updated(self) -> set[int]:
        """Storages of the optimizers' parameters and state, by ``_cdata``."""
        states = (optimizer.state for optimizer in self.optimizers.values())
        found = [*self._updated(), *(t for state in states for t in tensors_of(state))]
        return {storage_of(tensor)._cdata for tensor in found}

    def unknown_parameters(self) -> list[str]:
        known = set(self._updated())
        named = self.model.named_parameters()
        return [name for name, p in named if p.requires_grad and p not in known]

    def _updated(self) -> list[Tensor]:
        return [p for optimizer in self.optimizers.values() for p in parameters_of(optimizer)]

    def restore(self, tree: State, rank: int = 0, world: int = 1) -> int:
        """Restore every object; returns the checkpoint. Raises CheckpointError.

        Of another number of ranks samplers come from rank 0, random states where a rank saved one.
        """
        saved_model = tree["model"]  # a record's buffers are other memory
        tree, own = _with_record(tree, rank, world)
        missing = [name for name in self.extra if name not in tree["extra"]]
        if missing:
            raise CheckpointError(
                f"it has no state of extra {', '.join(missing)}; leave it out, or {_ANEW}"
            )
        for name in tree["extra"].keys() - self.extra.keys() - {RANDOM}:
            log.warning(
                "the checkpoint has a state of extra %s, which this training does not: it is not"
                " restored",
                name,
            )
        self._compare_optimizers(tree)
        if not self.sharded and (other := other_model(saved_model, self.model.state_dict())):
            raise CheckpointError(f"it is of another model: {other}; {_NEXT}")
        with ExitStack() as back:  # undo what was done, last first
            try:
                self._take(tree, back)
                if own:
                    restore_random(tree["extra"][RANDOM])
            except Exception as error:  # load_state_dict of an extra is foreign code
                reason = _shortened(f"{type(error).__name__}: {error}")
                raise CheckpointError(
                    f"it is of another model, optimizer or extra: {reason}; {_NEXT}"
                ) from error
            back.pop_all()
        return int(tree["version"])

    def _take(self, tree: State, back: ExitStack) -> None:
        # All but the model may keep what they are given, a mapped file: copy it. The model comes
        # last: it alone is not backed up, which would take its memory once more.
        for name, value in self.extra.items():
            if not isinstance(value, Optimizer):
                present = value.state_dict()
                back.callback(value.load_state_dict, _copied(present, "cpu"))
                value.load_state_dict(_detached(_parts(tree["extra"][name], present)))
        for optimizer, state in zip(
            self.optimizers.values(), self._saved_optimizers(tree), strict=True
        ):
            # Loading replaces these, and leaves the old ones unchanged.
            back.callback(setattr, optimizer, "state", optimizer.state)
            back.callback(setattr, optimizer, "param_groups", optimizer.param_groups)
            optimizer.load_state_dict(_detached(_sharded_states(state, optimizer)))
        present = self.model.state_dict()
        if _shapes(present) != _shapes(tree["model"]):  # refused, unless its hooks can handle it
            back.callback(self.model.load_state_dict, _copied(present, "cpu"))
        self.model.load_state_dict(_parts(tree["model"], present))  # copies

    def _saved_optimizers(self, tree: State) -> list[Any]:
        extra = [tree["extra"][name] for name, v in self.extra.items() if isinstance(v, Optimizer)]
        return [tree["optimizer"], *extra]

    def _compare_optimizers(self, tree: State) -> None:
        for (place, optimizer), state in zip(
            self.optimizers.items(), self._saved_optimizers(tree), strict=True
        ):
            groups = ()
            if isinstance(state, Mapping):
                groups = state.get("param_groups", ())
            there, here = map(_lengths, (groups, optimizer.param_groups))
            if there != here:
                raise CheckpointError(
                    f"it is of another model or optimizer: groups of its {place} have {there}"
                    f" parameters, here they have {here}; {_NEXT}"
                )


# Key of the ranks' own records among the extras; each is a tensor of bytes, its length first
RECORDS = "ranks"


def _states_to_come(optimizer: Optimizer) -> int:
    """How many tensors of a parameter's size an optimizer will keep of each, at least."""
    if isinstance(optimizer, torch.optim.SGD):
        return int(any(group["momentum"] for group in optimizer.param_groups))
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return 2
    return 1


def _lengths(groups: Iterable[Any]) -> str:
    return ", ".join(str(len(group["params"])) for group in groups) or "no"


def pack(record: bytes, capacity: int) -> Tensor:
    """A rank's record in a tensor of ``capacity`` bytes."""
    data = struct.pack("<Q", len(record)) + record
    return torch.frombuffer(bytearray(data.ljust(capacity, b"\0")), dtype=torch.uint8)


def unpack(tensor: Tensor) -> StateDict:
    """The record in a tensor of :func:`pack`."""
    data = bytes_of(tensor)
    (length,) = struct.unpack_from("<Q", data)
    return dict(torch.load(io.BytesIO(data[8 : 8 + length]), map_location="cpu", weights_only=True))


def _with_record(tree: State, rank: int, world: int) -> tuple[State, bool]:
    """The state with a rank's own record merged in, and whether its random state is this rank's."""
    records = tree["extra"].get(RECORDS)
    if records is None:  # saved by one process
        return tree, rank == 0
    same = len(records) == world
    record = unpack(records[rank if same else 0])
    model = OrderedDict(tree["model"])
    if hasattr(tree["model"], "_metadata"):
        model._metadata = tree["model"]._metadata  # type: ignore[attr-defined]
    if same:
        model.update({k: v for k, v in record["buffers"].items() if k in model})
    extra = {**{k: v for k, v in tree["extra"].items() if k != RECORDS}, **record["early"]}
    if not same and rank < len(records):
        extra[RANDOM] = unpack(records[rank])["early"][RANDOM]
    return {**tree, "model": model, "extra": extra}, rank < len(records)


def unwrap(model: nn.Module) -> nn.Module:
    """The plain model inside DistributedDataParallel, DataParallel and ``torch.compile``."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            # Its class is slow to import
            model = inner
        else:
            return model


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors in a tree of mappings, lists and tuples, in no particular order."""
    ahead = [tree]
    while ahead:
        found = ahead.pop()
        if isinstance(found, Tensor):
            yield found
        elif isinstance(found, (dict, Mapping)):  # dict first: asking for Mapping is slow
            ahead.extend(found.values())
        elif isinstance(found, (list, tuple)):
            ahead.extend(found)


def _parts(saved: Any, present: Any) -> Any:
    if any(map(is_sharded, tensors_of(present))):
        return sharded_as(saved, present)
    return saved


def _sharded_states(state: State, optimizer: Optimizer) -> StateDict:
    """A saved optimizer state: what is as large as its parameter is sharded like it."""
    parameters = parameters_of(optimizer)
    if not any(map(is_sharded, parameters)):
        return dict(state)
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    like = {
        number: {name: p for name in state["state"].get(number, ()) if name != "step"}
        for number, p in zip(numbers, parameters, strict=True)
    }
    return dict(sharded_as(state, {"state": like}))


def _placed(tensor: Any) -> tuple[Any, ...] | None:
    if is_sharded(tensor):
        return tuple(tensor.shape), tensor.placements, tensor.device_mesh
    return None


def _check_sharded(place: str, optimizer: Optimizer) -> None:
    """Refuse sharded optimizer tensors unlike their parameter, which tells how to shard."""
    allowed = "one whose states are sharded, and as large, as their parameters are, or DeepVMWriter"
    for parameter, state in optimizer.state.items():
        for name, value in state.items() if isinstance(state, Mapping) else [(parameter, state)]:
            if isinstance(value, Tensor) and _placed(value) in (None, _placed(parameter)):
                continue
            for tensor in filter(is_sharded, tensors_of(value)):
                shown = (
                    f"{type(optimizer).__name__}, whose state {name!r} has a sharded tensor"
                    f" {tuple(tensor.shape)}"
                )
                raise RequestError(place, shown, allowed)


def _check_memory(label: str, module: nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor) or not tensor.numel():
            continue
        problem = ""
        if tensor.is_inference():
            problem = "a tensor of inference_mode"
        elif any(n > 1 and not step for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
            problem = "an expanded tensor"
        if problem:
            problem += ", which nothing can be restored into"
            raise RequestError(f"{label}.{name}", problem, _CLONE_HINT)


def _shapes(state: State) -> StateDict:
    plain = (Tensor, nn.Parameter)
    return {k: v.shape if type(v) in plain or is_sharded(v) else None for k, v in state.items()}


def _copied(tree: Any, device: str | None = None) -> Any:
    return map_leaves(tree, lambda tensor: tensor.detach().to(device, copy=True), lambda n: n)


def _detached(saved: Any) -> Any:
    """A copy of a loaded state in which tensors that shared memory still share it."""
    known: dict[int, Any] = {}

    def copied(tensor: Tensor) -> Tensor:
        if is_sharded(tensor):
            return tensor
        return copy.deepcopy(tensor.detach(), known)

    return map_leaves(saved, copied, lambda number: number)


def _shortened(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more"]
    return " ".join(lines)


def random_state() -> StateDict:
    """The random generators that this process uses, as tensors and numbers."""
    version, words, gauss = random.getstate()
    found: StateDict = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64, device="cpu"),
        # A tensor even if there is none: None would change the layout of the file.
        "python_gauss": torch.tensor(
            float("nan") if gauss is None else gauss, dtype=torch.float64, device="cpu"
        ),
        "python_version": version,
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # not loaded, not used
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = {
            "name": name,
            "keys": torch.from_numpy(keys.astype("int64")),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # not initialized, not used
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def restore_random(state: State) -> None:
    """Set the generators of :func:`random_state`."""
    torch.set_rng_state(state["torch"])
    gauss = float(state["python_gauss"])
    words = tuple(int(word) for word in state["python"])
    random.setstate((int(state["python_version"]), words, None if gauss != gauss else gauss))
    kept = state.get("numpy")
    numpy = sys.modules.get("numpy")
    if kept is not None and numpy is not None:
        keys = kept["keys"].numpy().astype("uint32")
        rest = kept["position"], kept["has_gauss"], kept["cached"]
        numpy.random.set_state((kept["name"], keys, *rest))
    devices = state.get("cuda", ())
    if devices and torch.cuda.is_available() and len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(devices)
