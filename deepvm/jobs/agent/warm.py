"""A trainer that has loaded torch and waits for its command, a line of JSON, to become that."""

import gc
import importlib
import json
import os
import runpy
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from deepvm.io.agent_link import INDEPENDENT, AgentLink, distributed
from deepvm.io.failpoints import point

READY = b"warm\n"
_FIRST_S = 0.4
_LOOK_S = 0.002


def can_warm(words: Sequence[str]) -> bool:
    """Whether a command is ``python FILE ...`` or ``python -m MODULE ...`` without options."""
    if len(words) < 2 or os.path.basename(words[0]) not in ("python", "python3"):
        return False
    return not words[1].startswith("-") or (words[1] == "-m" and len(words) > 2)


def await_first(environ: Mapping[str, str]) -> None:
    """Let rank 0 listen early, briefly: after a refused connection torch waits half a second."""
    where = (environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""))
    until_s = time.monotonic() + _FIRST_S
    if environ.get("RANK", "0") == "0" or not all(where):
        return
    while (left_s := until_s - time.monotonic()) > 0:
        with suppress(OSError), socket.create_connection(where, left_s):
            return
        time.sleep(_LOOK_S)


def use_own_gpu(environ: Mapping[str, str]) -> None:
    """Make this rank's GPU the default of CUDA: all are visible, and few scripts choose one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    if cuda is None or not local_rank:
        return

    def choose() -> None:
        if local_rank < cuda.device_count():  # a machine that is simulated here has fewer
            cuda.set_device(local_rank)

    with suppress(AttributeError):  # a release of torch without it
        cuda._lazy_call(choose)


# Libraries that join processes without ``torch.distributed``
_OTHER_GROUPS = ("byteps", "horovod", "mpi4py", "ray")


def watch_first_step(environ: Mapping[str, str]) -> None:
    """Report the first optimizer step to the agent if this process has formed no group."""
    optimizer: Any = sys.modules.get("torch.optim.optimizer")
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    if environ.get("WORLD_SIZE", "1") == "1" or environ.get(INDEPENDENT):
        return
    if optimizer is None or compiler is None:
        return
    done = False

    def before(*_: object) -> None:
        nonlocal done
        if done or compiler.is_compiling():
            return
        done = True
        if list(optimizer._global_optimizer_pre_hooks.values()) == [before]:
            # The old one is iterated over, and must not change
            optimizer._global_optimizer_pre_hooks = OrderedDict()
        if distributed() is not None or any(name in sys.modules for name in _OTHER_GROUPS):
            return
        link = AgentLink.find()
        answer = link.ask({"ask": "first-step"}) if link else None
        while answer is not None and answer.get("stop"):  # until the agent ends this process
            time.sleep(1.0)

    with suppress(AttributeError):
        optimizer.register_optimizer_step_pre_hook(before)


_LAUNCHERS = (__file__, runpy.run_path.__code__.co_filename)


def show_script_frames(kind: object, error: BaseException, trace: object) -> None:
    """Print an error as Python does, without the frames that lead to the script."""
    # The context is of runpy, too, if it cannot load a module
    for part in filter(None, (error, error.__context__)):
        frames = part.__traceback__
        while frames and frames.tb_frame.f_code.co_filename in _LAUNCHERS:
            frames = frames.tb_next
        part.__traceback__ = frames
    sys.__excepthook__(type(error), error, error.__traceback__)


def main() -> None:
    """Load, wait, run."""
    sys.excepthook = show_script_frames
    # A training without torch, or whose torch is broken: it will say so itself
    with suppress(Exception):
        importlib.import_module("torch")
        # The first optimizer loads it, in as long as torch itself takes.
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch.distributed")
        importlib.import_module("deepvm.checkpoint.checkpointer")
    # Else the end of this process looks at all of torch for garbage, for most of a second
    gc.freeze()
    tells = int(sys.argv[1])
    point("warm.loaded")
    # The order came before it was ready, and no one waits for its answer
    with suppress(BrokenPipeError):
        os.write(tells, READY)
    os.close(tells)
    with os.fdopen(0, "rb", closefd=False) as source:
        line = source.readline()
    if not line:
        os._exit(0)
    point("warm.ordered")
    order = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    use_own_gpu(order["env"])
    watch_first_step(order["env"])
    await_first(order["env"])
    _, first, *rest = order["words"]
    sys.modules.pop("__main__", None)
    if first == "-m":
        sys.argv = rest
        sys.path[0] = order["folder"]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
