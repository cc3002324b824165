"""What a checkpoint was made with (settings, modules), compared on restore."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from deepvm.checkpoint.format.flatten import State
from deepvm.checkpoint.training.hooks import parameters_of
from deepvm.errors import CheckpointError
from deepvm.records import InitVar, dataclass

# Key of the fingerprint, a text, in a checkpoint file; older releases ignore it
FINGERPRINT = "fingerprint"
_MAX_CHANGES = 4
# What schedulers count or compute; the rest of their state is settings
_PROGRESS = {
    "last_epoch",
    "_step_count",
    "_last_lr",
    "_is_initial",
    "_get_lr_called_within_step",
    "best",
    "T_cur",
    "num_bad_epochs",
    "cooldown_counter",
}
# Attributes where modules that compile or recompute another one have it; names leave them out
_WRAPPED_IN = ("_orig_mod", "_checkpoint_wrapped_module")


@dataclass(eq=False, repr=False)
class Fingerprint:
    """First settings of optimizers and schedulers, and the structure of a training."""

    _model: nn.Module
    _optimizers: Mapping[str, torch.optim.Optimizer]
    extra: InitVar[Mapping[str, Any]]

    def __post_init__(self, extra: Mapping[str, Any]) -> None:
        schedulers = torch.optim.lr_scheduler.LRScheduler
        self._schedulers = {
            f"extra[{n!r}]": v for n, v in extra.items() if isinstance(v, schedulers)
        }
        self.settings: dict[str, Any] = {}
        self._built: list[Any] = []
        self._text = ""

    def adopt(self, settings: dict[str, Any]) -> None:  # rank 0's: all ranks save one text
        self.settings = settings
        self._built = []

    def text(self) -> str:
        built: list[Any] = [*map(type, self._model.modules())]
        built += [len(o.param_groups) for o in self._optimizers.values()]
        if built != self._built:
            self._built = built
            # Those seen first win: schedulers change settings, such as betas, as they go.
            self.settings = {**self._settings(), **self.settings}
            document = {
                "settings": self.settings,
                "modules": self._modules(),
                "parameters": self._parameters(),
            }
            self._text = json.dumps(document, sort_keys=True)
        return self._text

    def changes(self, tree: State) -> list[str]:
        """Settings, in words, that differ from a loaded checkpoint's.

        Raises CheckpointError: an optimizer has the same parameters in another order.
        """
        saved = json.loads(tree.get(FINGERPRINT) or "{}")
        own = json.loads(self.text())
        for label, names in saved.get("parameters", {}).items():
            here = own["parameters"].get(label, [])
            # Optimizer states are saved by number; other names show that it is another model.
            if names != here and sorted(names) == sorted(here):
                pairs = zip(names, here, strict=True)
                old, new = next((a, b) for a, b in pairs if a != b)
                raise CheckpointError(
                    f"its {label} has the same parameters in another order, {old} where {new} is"
                    " here: their states would be mixed up; give them to it in the order of the"
                    " checkpoint"
                )
        states = {f"extra[{name!r}]": state for name, state in tree["extra"].items()}
        in_force: dict[str, Any] = {}
        for label, state in {"optimizer": tree["optimizer"], **states}.items():
            if isinstance(state, Mapping):
                in_force |= _of_groups(label, state.get("param_groups", ()))
        changes = []
        for section in ("settings", "modules"):
            for label, old in saved.get(section, {}).items():
                new = own[section].get(label, old)
                if not (_equal(old, new) or _equal(in_force.get(label, old), new)):
                    changes.append(f"{label}: {old} -> {new}")
        if len(changes) > _MAX_CHANGES:
            changes[_MAX_CHANGES:] = [f"{len(changes) - _MAX_CHANGES} more"]
        return changes

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for label, optimizer in self._optimizers.items():
            settings[f"class of {label}"] = type(optimizer).__name__
            settings |= _of_groups(label, optimizer.param_groups)
        for label, scheduler in self._schedulers.items():
            settings[f"class of {label}"] = type(scheduler).__name__
            for key, value in scheduler.state_dict().items():
                if key not in _PROGRESS and (plain := _plain(value)) is not None:
                    settings[f"{label}.{key}"] = plain
        return settings

    def _modules(self) -> dict[str, str]:
        modules = self._model.named_modules(remove_duplicate=False)
        return {
            f"model.{_name(n)}".rstrip("."): _module(m)
            for n, m in modules
            if m._modules.keys().isdisjoint(_WRAPPED_IN)
        }

    def _parameters(self) -> dict[str, list[str]]:
        names = {id(p): _name(n) for n, p in self._model.named_parameters()}
        return {
            label: [names.get(id(p), "?") for p in parameters_of(optimizer)]
            for label, optimizer in self._optimizers.items()
        }


def other_model(saved: State, present: State) -> str:
    """Why a state is of another model where ``load_state_dict`` is silent; empty if it fits."""
    plain = (Tensor, nn.Parameter)
    pairs: dict[str, tuple[Any, Any]] = {n: (v, present.get(n)) for n, v in saved.items()}
    common = {n: both for n, both in pairs.items() if all(type(t) in plain for t in both)}
    for name, (old, new) in common.items():
        if old.dtype is not new.dtype:
            return f"{name} is of {old.dtype}, here of {new.dtype}"
    there, here = (_tied({n: pair[side] for n, pair in common.items()}) for side in (0, 1))
    for names in there ^ here:
        where = "here, not in the checkpoint"
        if names in there:
            where = "in the checkpoint, not here"
        return f"{' and '.join(sorted(names))} are tied {where}"
    return ""


def _tied(tensors: Mapping[str, Tensor]) -> set[frozenset[str]]:
    names_by_memory: dict[Any, set[str]] = {}
    for name, tensor in tensors.items():
        # Empty tensors have no memory that they could share.
        if tensor.numel():
            memory = tensor.untyped_storage()._cdata
            key = memory, tensor.storage_offset(), tensor.shape, tensor.stride()
            names_by_memory.setdefault(key, set()).add(name)
    return {frozenset(names) for names in names_by_memory.values() if len(names) > 1}


def _of_groups(label: str, groups: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for number, group in enumerate(groups):
        # Schedulers keep the learning rate that they change in initial_lr.
        for key, value in {**group, "lr": group.get("initial_lr", group.get("lr"))}.items():
            if key in ("params", "param_names", "initial_lr"):
                continue
            plain = _plain(value)
            if plain is not None:
                settings[f"{label}.param_groups[{number}][{key!r}]"] = plain
    return settings


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.numel() == 1 and not value.is_complex():
            return value.item()
        return None
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return None


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) or repr(one) == repr(other)  # NaN


def _name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPED_IN)


def _module(module: nn.Module) -> str:
    """A module's class, with the arguments in the repr of torch's own; ignores fully_shard's."""
    classes = [c for c in type(module).__mro__ if not c.__name__.startswith("FSDP")]
    cls = classes[0]
    if cls.__module__.startswith("torch.nn.modules"):
        return f"{cls.__name__}({module.extra_repr()})"
    return cls.__name__
