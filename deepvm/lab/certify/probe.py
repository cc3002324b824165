"""Loaded into each process of an audited script: logs optimizer steps and checkpoint writes.

It needs the standard library only, waits until the script itself imports torch, draws no random
number, and changes no value. It also kills: a reader of the log would come too late.
"""

import contextlib
import functools
import gc
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

# Log folder, and where to kill (:class:`Killer`): after ``step``/``samples``, in ``write``
LOG, KILL = "DEEPVM_AUDIT_LOG", "DEEPVM_AUDIT_KILL"
# Files: rank 0's first line; where to kill; what was killed. COMPLETE is removed when a
# line could not be written: on a full disk that can still be done.
FIRST, POINT, KILLED, COMPLETE = "first.json", "point.json", "killed.json", "complete"
_CLAIM = "claim"
_POLL_S = 0.001
_KILL_LIMIT_S = 30.0
# States of optimizers only help to say what is wrong: larger ones are not read
_MOST_STATE_BYTES = 1 << 28


def rank() -> int:
    """Of this process; 0 without a group."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "0")
    if text.isdecimal():
        return int(text)
    return 0


def write_whole(path: str, value: Any) -> None:
    """Write JSON so that no reader ever sees a part of it. Raises OSError."""
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(file.name, path)


class Log:
    """The file of this process; each line is one write, which survives a SIGKILL."""

    def __init__(self, folder: str, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self._file = -1
        self._owner = 0

    def add(self, row: dict[str, Any]) -> None:
        """Append a line; if that fails, notify the audit and exit: it is not the script's fault."""
        line = json.dumps({**row, "time": time.time()}).encode() + b"\n"
        try:
            # Not opened, or opened by the process that has forked this one
            if self._owner != os.getpid():
                name = f"{self._kind}-{rank()}-{os.getpid()}.jsonl"
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(os.path.join(self._folder, name), flags, 0o644)
                self._owner = os.getpid()
            complete = os.write(self._file, line) == len(line)
        except OSError:
            complete = False
        if not complete:
            mark_incomplete(self._folder)


def mark_incomplete(folder: str) -> None:
    """Tell the audit that its own files could not be written."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, COMPLETE))


def processes_of(folder: str) -> set[int]:
    """Processes whose logs are in a folder or below it, by a variable in their environment."""
    marker = os.fsencode(f"{LOG}={folder}")
    pids = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        # It has ended, or belongs to another user; zombies have no environment.
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            words = file.read().split(b"\0")
            if any(one == marker or one.startswith(marker + b"/") for one in words):
                pids.add(int(name))
    return pids


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)


def _stop(folder: str, without: set[int]) -> set[int]:
    stopped = set[int]()
    while new := processes_of(folder) - without - stopped:
        _send(signal.SIGSTOP, new)
        stopped |= new
    return stopped


def kill_processes(folder: str) -> int:
    """Kill a folder's processes with SIGKILL, except the caller; returns how many still live."""
    _stop(folder, set())
    until_s = time.monotonic() + _KILL_LIMIT_S
    while left := processes_of(folder):
        _send(signal.SIGKILL, left)
        if time.monotonic() > until_s:
            return len(left)
        time.sleep(0.01)
    return 0


class Killer:
    """Kills all processes of an attempt when this one has come to the audit's point."""

    def __init__(self, folder: str, kind: str) -> None:
        """``kind``: the lines counted here, ``step`` or ``samples``."""
        self._folder = folder
        self._answer = os.path.join(folder, POINT)
        asked = os.environ.get(KILL)
        self._in_write = kind == "step" and asked == "write"
        self._active = bool(kind) and (asked == kind or self._in_write)
        self._point: dict[str, Any] | None = None
        self._delayed = False

    def begin(self, row: dict[str, Any]) -> None:
        if not self._active or self._point is not None or rank():
            return
        try:
            write_whole(os.path.join(self._folder, FIRST), row)
        except OSError:
            mark_incomplete(self._folder)
            self._active = False
            return
        while not self._read():
            time.sleep(_POLL_S)

    def _read(self) -> bool:
        if self._point is None and os.path.exists(self._answer):
            with open(self._answer, encoding="utf-8") as file:
                self._point = json.load(file)
        return self._point is not None

    def kills_write(self, steps: int) -> bool:
        if not self._in_write or not self._read():
            return False
        if self._point is None or steps < self._point["after"]:
            return False
        self._point["skip"] -= 1
        return bool(self._point["skip"] < 0)

    def check(self, steps: int) -> None:
        point = self._point
        if self._in_write or point is None or steps < point["after"]:
            return
        if steps >= point["limit"] or not point["delay_s"]:
            self.kill()
        elif not self._delayed:
            self._delayed = True
            timer = threading.Timer(point["delay_s"], self.kill)
            timer.daemon = True
            timer.start()

    def kill(self, file: str = "") -> None:
        try:
            # Only one may: two that stop each other would wait for ever.
            with open(os.path.join(self._folder, _CLAIM), "x", encoding="utf-8"):
                pass
            write_whole(os.path.join(self._folder, KILLED), {"file": file})
        except FileExistsError:
            pass
        except OSError:
            mark_incomplete(self._folder)
        else:
            own = os.getpid()
            _send(signal.SIGKILL, _stop(self._folder, {own}))
            os.kill(own, signal.SIGKILL)
        while True:  # until another process, or the audit, kills this one
            time.sleep(1)


class Probe:
    """Logs what one process does."""

    def __init__(self, folder: str) -> None:
        self._log = Log(folder, "steps")
        self._killer = Killer(folder, "step")
        self._steps = 0
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._modules: dict[str, list[weakref.ref[Any]]] = {}
        self._started: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(
            lambda optimizer, *_: self._safely(self._before, optimizer)
        )
        module.register_optimizer_step_post_hook(
            lambda optimizer, *_: self._safely(self._after, optimizer)
        )

    def _safely(self, do: Callable[[Any], None], optimizer: Any) -> None:
        """A mistake of this module must not end the user's training."""
        try:
            do(optimizer)
        except Exception as error:
            self._log.add({"kind": "error", "why": f"{type(error).__name__}: {error}"})

    def _before(self, optimizer: Any) -> None:
        """Before its first step, an optimizer holds what training starts with or continues from."""
        if optimizer in self._started:
            return
        self._started.add(optimizer)
        facts = {"kind": "start", "key": self._name(optimizer)}
        facts["params"] = digest(_parameters(optimizer))
        row = {**facts, "state": _state(optimizer), "n": self._steps}
        self._log.add(row)
        self._killer.begin(row)

    def _after(self, optimizer: Any) -> None:
        self._steps += 1
        key = self._name(optimizer)
        self._log.add(
            {
                "kind": "step",
                "n": self._steps,
                "key": key,
                "params": digest(_parameters(optimizer)),
                "buffers": digest(self._buffers(key, optimizer)),
                "state": _state(optimizer),
                "groups": [_numbers(group) for group in optimizer.param_groups],
                "random": _random_states(),
            }
        )
        self._killer.check(self._steps)

    def _name(self, optimizer: Any) -> str:
        """The same for the same parameters in each process, whichever optimizer holds them."""
        parameters = list(_parameters(optimizer))
        if not parameters:
            return "none"
        known = self._names.get(id(parameters[0]))
        if known is not None and known[0]() is parameters[0]:
            return known[1]
        shapes = hashlib.sha256(repr([tuple(p.shape) for p in parameters]).encode()).hexdigest()[:8]
        same_shapes = sum(
            name.startswith(shapes) for ref, name in self._names.values() if ref() is not None
        )
        name = f"{shapes}-{same_shapes}"
        self._names[id(parameters[0])] = (weakref.ref(parameters[0]), name)
        return name

    def _buffers(self, key: str, optimizer: Any) -> Iterator[Any]:
        """``state_dict()`` of training modules without parameters, such as BatchNorm averages."""
        if key not in self._modules:
            self._modules[key] = [
                weakref.ref(module) for module in _roots(list(_parameters(optimizer)))
            ]
        seen = set()
        for root in filter(None, (ref() for ref in self._modules[key])):
            for module in root.modules():
                if id(module) in seen:
                    continue
                seen.add(id(module))
                for name, value in module._buffers.items():
                    if value is not None and name not in module._non_persistent_buffers_set:
                        yield value

    def watch_torch_save(self, module: Any) -> None:
        original = module.save

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **options: Any) -> Any:
            return self._write(f, lambda target: original(obj, target, *args, **options))

        module.save = save

    def watch_safetensors(self, module: Any) -> None:
        original = module.save_file

        @functools.wraps(original)
        def save_file(tensors: Any, filename: Any, metadata: Any = None) -> Any:
            def write(target: Any) -> Any:
                if target is filename:
                    return original(tensors, filename, metadata)
                return target.write(module.save(tensors, metadata))

            return self._write(filename, write)

        module.save_file = save_file

    def _write(self, target: Any, write: Callable[[Any], Any]) -> Any:
        """Log a write, and do it; the one in which the script is to be killed ends half done."""
        is_path = isinstance(target, (str, os.PathLike))
        name = target if is_path else getattr(target, "name", None)
        if not isinstance(name, (str, os.PathLike)):  # memory, or a file without a name
            return write(target)
        file = os.fsdecode(name)
        self._log.add({"kind": "write", "file": file, "n": self._steps})
        if not self._killer.kills_write(self._steps):
            return write(target)
        buffer = io.BytesIO()
        write(buffer)
        data = buffer.getvalue()
        with (
            open(target, "wb", buffering=0) if is_path else contextlib.nullcontext(target) as opened
        ):
            opened.write(data[: len(data) // 2])
            with contextlib.suppress(AttributeError, OSError):
                opened.flush()
            self._killer.kill(file)
        return None


def _parameters(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def digest(tensors: Iterable[Any]) -> str:
    """Hex SHA-256 over kinds, shapes and bytes of tensors; of sharded ones, this rank's part."""
    import torch

    hashed = hashlib.sha256()
    for tensor in tensors:
        here = tensor
        if hasattr(tensor, "to_local"):
            here = tensor.to_local()
        hashed.update(f"{here.dtype} {tuple(here.shape)};".encode())
        hashed.update(here.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def _state(optimizer: Any) -> str:
    """A digest of what an optimizer remembers of earlier steps, empty if it is too large."""
    tensors: list[Any] = []
    others = ""
    for parameter in _parameters(optimizer):
        # A defaultdict: reading must not create an entry
        kept = optimizer.state.get(parameter) or {}
        for name in sorted(map(str, kept)):
            value = kept.get(name)
            if hasattr(value, "numel"):
                tensors.append(value)
            else:
                others += f"{name} {value!r};"
    if sum(t.numel() * t.element_size() for t in tensors) > _MOST_STATE_BYTES:
        return ""
    return digest(tensors) + _short(others)[:8]


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in group.items():
        if hasattr(value, "item") and name != "params" and value.numel() == 1:
            value = value.item()
        if isinstance(value, (bool, int, float)) or (
            isinstance(value, tuple) and all(isinstance(v, (int, float)) for v in value)
        ):
            settings[name] = value
    return settings


def _random_states() -> dict[str, str]:
    import torch

    digests = {"torch": digest([torch.get_rng_state()]), "python": _short(repr(random.getstate()))}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        digests["cuda"] = digest(torch.cuda.get_rng_state_all())
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        digests["numpy"] = _short(f"{kind} {keys.tolist()} {rest}")
    return digests


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _roots(parameters: Sequence[Any]) -> list[Any]:
    """The outermost modules that hold some of these parameters, in the order of their first one."""
    import torch

    indices = {id(parameter): index for index, parameter in enumerate(parameters)}
    # By type(), not isinstance(): that would ask lazy modules and dead proxies for their class.
    objects = (one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module))
    modules = [one for one in objects if "_modules" in vars(one)]
    inner = {id(child) for one in modules for child in one._modules.values()}
    roots: list[tuple[int, Any]] = []
    for one in modules:
        if id(one) not in inner:
            own = [indices[id(p)] for p in one.parameters() if id(p) in indices]
            if own:
                roots.append((min(own), one))
    return [one for _, one in sorted(roots, key=lambda pair: pair[0])]


class SampleLog:
    """Logs samples and losses of a training for ``deepvm audit``; else does nothing.

    Call :meth:`step` on each rank after ``optimizer.step()``, and before a checkpoint that holds
    the step::

        log = SampleLog()
        for ids, inputs, targets in loader:
            ...
            optimizer.step()
            log.step(global_step, ids, loss, epoch=epoch)
            global_step += 1
    """

    def __init__(self) -> None:
        folder = os.environ.get(LOG, "")
        self._log = Log(folder, "samples") if folder else None
        self._killer = Killer(folder, "samples")
        self._steps = 0

    def step(self, global_step: int, ids: Iterable[Any], loss: Any = None, epoch: int = 0) -> None:
        """A step was trained.

        Args:
            global_step: its number, counted over all epochs and restarts.
            ids: of this rank's samples: numbers or texts, as a list, an array or a tensor.
            loss: a number or a tensor of one; compared to the last bit when the step is done again.
            epoch: in which each sample belongs once; without it, all steps count as one.
        """
        if self._log is None:
            return
        if hasattr(ids, "tolist"):
            ids = ids.tolist()
        # Float() of a tensor with a gradient warns
        value = loss.item() if hasattr(loss, "item") else loss
        loss_hex = None if value is None else float(value).hex()
        row = {
            "kind": "samples",
            "global_step": int(global_step),
            "epoch": int(epoch),
            "sample_ids": [str(one) for one in ids],
            "loss_hex": loss_hex,
        }
        self._log.add(row)
        self._steps += 1
        self._killer.begin(row)
        self._killer.check(self._steps)


class _AfterImport:
    def __init__(self, then: dict[str, Callable[[Any], None]]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        then = self._then.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            then(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(own_folder: str) -> None:
    """Start, if this process is of an audit; and run the ``sitecustomize`` that this one hides."""
    own = os.path.realpath(own_folder)
    others = [one for one in sys.path if os.path.realpath(one or ".") != own]
    if os.environ.get(LOG):
        probe = Probe(os.environ[LOG])
        then = {
            "torch.optim.optimizer": probe.watch_optimizers,
            "torch.serialization": probe.watch_torch_save,
            "safetensors.torch": probe.watch_safetensors,
        }
        sys.meta_path.insert(0, _AfterImport(then))  # type: ignore[arg-type]
    sys.path[:] = others
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def guard(folder: str) -> None:
    """Kill an audit's processes when it ends for any reason: standard input has ended."""
    while os.read(0, 1):
        pass
    kill_processes(folder)


if __name__ == "__main__":
    guard(sys.argv[1])
