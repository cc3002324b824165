"""Flatten a state into structure, tensors and numbers; refuse what torch would not load safely."""

import io
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

import torch

from deepvm.checkpoint.format.sharded import (
    Region,
    check_runs,
    is_sharded,
    local,
    region_of,
    whole_strides,
)
from deepvm.errors import RequestError
from deepvm.records import dataclass, field

StateDict: TypeAlias = dict[str, Any]  # What ``state_dict()`` returns
State: TypeAlias = Mapping[str, Any]  # That, or what a file holds, only read
_INT64 = range(-(2**63), 2**63)
_CONSTANTS = (str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_CONVERSIONS = {
    "ndarray": (
        "torch.from_numpy(x) makes one of it, and .numpy() an array again in load_state_dict; or"
        " x.tolist()"
    ),
    "deque": (
        "list(x) makes one of it, and deque(state, maxlen=...) a deque again in load_state_dict"
    ),
    "defaultdict": "dict(x) makes one of it",
    "set": "sorted(x) makes one of it",
    "frozenset": "sorted(x) makes one of it",
    "complex": "[x.real, x.imag] makes one of it",
    "Generator": (
        "x.get_state() makes one of it, and x.set_state(state) restores it in load_state_dict"
    ),
}
_MAPPINGS: tuple[type, ...] = (dict, OrderedDict, Counter)


@dataclass
class FlatState:
    """A flattened tree; ``structure`` is equal for equal layouts."""

    structure: list[Hashable] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)  # as pickle visits them
    numbers: list[int | float] = field(default_factory=list)  # as ``tensors``
    storages: list[torch.UntypedStorage] = field(default_factory=list)  # of the tensors, each once
    sizes: list[int] = field(default_factory=list)  # in a file, sharded tensors whole
    regions: dict[int, Region] = field(default_factory=dict)  # this rank's, by storage number
    _known: "dict[int, tuple[int, torch.dtype, _Place]]" = field(default_factory=dict)

    def place_of(self, storage: int) -> str:
        """Where a storage was found first, such as ``state['model']['2.bias']``."""
        places = (place for number, _, place in self._known.values() if number == storage)
        return f"state{_path(next(places))}"


def flatten(tree: Any) -> FlatState:
    """Flatten a tree. Raises RequestError, with its path, for what torch cannot load safely."""
    parts = FlatState()
    try:
        _visit(tree, parts, ())
    except RecursionError:
        raise RequestError(
            "state", "something nested in itself, or too deeply", "some hundred levels"
        ) from None
    check_runs(parts.regions.values())
    return parts


def check_readable(record: bytes, subject: str) -> None:
    """Raise RequestError about ``subject`` if plain ``torch.load`` would refuse a record."""
    try:
        torch.load(io.BytesIO(record), map_location="cpu", weights_only=True)
    except Exception as error:  # of unpickling, of any kind
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise RequestError(
            subject,
            match[1] if match else str(error).splitlines()[0],
            "tensors, numbers, text, and lists, tuples and dictionaries of them: no checkpoint with"
            " anything else could be restored",
        ) from None


def map_leaves(
    tree: Any, tensor: Callable[[torch.Tensor], Any], number: Callable[[int | float], Any]
) -> Any:
    """The same tree with every tensor and number replaced, in the order of :func:`flatten`."""
    kind = type(tree)
    if isinstance(tree, torch.Tensor):
        return tensor(tree)
    if kind is float or (kind is int and tree in _INT64):
        return number(tree)
    if kind in _MAPPINGS:
        made = kind()
        for key, value in tree.items():
            made[key] = map_leaves(value, tensor, number)
        # Of a module's state_dict: load_state_dict reads checkpoints from it
        if hasattr(tree, "_metadata"):
            made._metadata = tree._metadata
        return made
    if kind in (list, tuple):
        return kind(map_leaves(value, tensor, number) for value in tree)
    return tree


# (place of the container, key), () for the root: a string for each would be slow to make
_Place = tuple[Any, ...]


def _visit(tree: Any, parts: FlatState, place: _Place) -> None:
    kind = type(tree)
    if isinstance(tree, torch.Tensor):
        _visit_tensor(tree, parts, place)
    elif kind is float or (kind is int and tree in _INT64):
        parts.structure.append(kind.__name__)
        parts.numbers.append(tree)
    elif kind in _CONSTANTS or kind is int:
        parts.structure.append((kind.__name__, tree))
    elif kind in _MAPPINGS:
        parts.structure.append((kind.__name__, len(tree), repr(getattr(tree, "_metadata", ""))))
        for key, value in tree.items():
            if type(key) not in (str, int):
                raise _refused(place, key, "keys that are strings or whole numbers; at {at}")
            parts.structure.append(key)
            _visit(value, parts, (place, key))
    elif kind in (list, tuple):
        parts.structure.append((kind.__name__, len(tree)))
        for number, value in enumerate(tree):
            _visit(value, parts, (place, number))
    else:
        hint = _CONVERSIONS.get(kind.__name__, "save its fields, and build it again on load")
        if kind.__module__ == "numpy" and kind.__name__ not in _CONVERSIONS:
            hint = "x.item() makes one of it"
        allowed = f"tensors, numbers, strings, lists, tuples, dicts of them; at {{at}}: {hint}"
        raise _refused(place, kind.__name__, allowed)


def _visit_tensor(tensor: torch.Tensor, parts: FlatState, place: _Place) -> None:
    held = local(tensor)
    region = None
    problem = _problem(held)
    if problem is None and is_sharded(tensor):
        try:
            region = region_of(tensor)
        except ValueError as error:
            problem = "DTensor", f"it is {error}"
    if problem is not None:
        raise _refused(place, problem[0], f"dense tensors with memory; at {{at}}: {problem[1]}")
    storage = held.untyped_storage()
    index, dtype, first = parts._known.setdefault(
        storage._cdata, (len(parts.storages), tensor.dtype, place)
    )
    if index == len(parts.storages):
        parts.storages.append(storage)
        parts.sizes.append(storage.nbytes() if region is None else region.nbytes)
        if region is not None:
            parts.regions[index] = region
    if dtype is not tensor.dtype:
        allowed = (
            f"one type for one memory; {{at}} is a view of state{_path(first)}: .clone() gives it"
            " its own memory"
        )
        raise _refused(place, f"{tensor.dtype} in the memory of {dtype}", allowed)
    if parts.regions.get(index) != region:
        allowed = f"memory of its own, not state{_path(first)}'s; at {{at}}"
        raise _refused(place, "a part of a sharded tensor", allowed)
    memory = (*whole_strides(tensor), index, parts.sizes[index], held.is_conj(), held.is_neg())
    parts.structure.append((tensor.dtype, tuple(tensor.shape), *memory))
    parts.tensors.append(tensor)


def _problem(tensor: torch.Tensor) -> tuple[str, str] | None:
    if torch.nn.parameter.is_lazy(tensor):
        advice = "run one forward, model(example), before the Checkpointer is made: it gives shapes"
        return type(tensor).__name__, advice
    if tensor.is_nested:
        return "a nested tensor", ".unbind() makes plain ones of it"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return type(tensor).__name__, "a state_dict that gives plain tensors"
    if tensor.is_meta:
        advice = "to_empty(device=...) and values, or a buffer with persistent=False"
        return "a tensor on the device meta", advice
    if tensor.layout is not torch.strided:
        return str(tensor.layout), ".to_dense() makes one of it"
    if tensor.is_quantized:
        advice = ".int_repr() with scale and zero point next to it, or .dequantize()"
        return str(tensor.dtype), advice
    if tensor._is_zerotensor():
        return "a tensor of zeros without memory", "torch.zeros(...) makes one of it"
    return None


def _path(place: _Place) -> str:
    if place:
        return f"{_path(place[0])}[{place[1]!r}]"
    return ""


def _refused(place: _Place, value: object, allowed: str) -> RequestError:
    path = _path(place)
    return RequestError(path or "state", value, allowed.replace("{at}", f"state{path}"))
