"""What all loops share: a checkpointer with a data loader, and the reaction to SIGTERM."""

from __future__ import annotations

import inspect
import io
import logging
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from deepvm.checkpoint.checkpointer import Checkpointer
from deepvm.checkpoint.format.flatten import check_readable
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.checkpoint.training.state import Stateful, pack, unpack
from deepvm.core.spelling import one_of
from deepvm.errors import CheckpointError, RequestError

LOADER = "loader"
"""Key of the loader's position among the extras."""
ENDED = 128 + signal.SIGTERM
"""Exit code after SIGTERM, as shells and schedulers know it."""
_LEAST = 2**14

log = logging.getLogger("deepvm.checkpoint")


class Session:
    """Saves before a batch is fetched; after SIGTERM, exits once the checkpoint is safe.

    Attributes:
        checkpointer: the one that it has made. loader: what the training iterates over.
    """

    def __init__(
        self,
        loader: ResumableLoader,
        extra: Mapping[str, Stateful] | None,
        sigterm: bool = True,
        *,
        own: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Make the checkpointer; ``options`` are its own.

        Args:
            loader: the data.
            extra: what the user wants to be saved besides.
            sigterm: whether SIGTERM saves and ends the training.
            own: what a trainer wants to be saved, under names that are taken then.
            **options: those of Checkpointer.

        Raises:
            RequestError: a name is taken. Also what Checkpointer raises.
        """
        extra = dict(extra or {})
        own = {**(own or {}), LOADER: loader}
        for name in extra.keys() & own.keys():
            raise RequestError("extra", name, f"other names than {', '.join(own)}, which are taken")
        self.loader = loader
        self.checkpointer = Checkpointer(extra={**extra, **own}, **options)
        self._save = loader.before_batch
        loader.before_batch = self._before_batch
        self._ranks = self.checkpointer._ranks
        self._asked: Handle | None = None
        self._newest: tuple[Handle, ...] = ()
        self._restored = 0
        self._before: Any = None
        self._listens = sigterm and threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = self.checkpointer.request_save()

    def _before_batch(self) -> None:
        self._save()
        newest = self._newest
        self._newest = self.checkpointer.handles[-1:]
        if not self._newest or self._newest == newest:
            return
        # All ranks have taken this version, here or by save(): all of them end if one was asked to.
        (stays,) = self._ranks.minimum([self._asked is None or not self._asked.version])
        if not stays:
            self._end()

    def _end(self) -> None:
        version = self.checkpointer.version
        try:
            # The one that was taken, or one more if there was no room
            self.checkpointer.save(block=True)
        except CheckpointError as error:
            log.error("after SIGTERM, version %d is not safe: %s", version, error)
        else:
            log.warning("SIGTERM: training ends with version %d, which is safe", version)
        raise SystemExit(ENDED)

    def restore(self) -> int:
        """Continue from the newest version; returns it.

        Raises as :meth:`Checkpointer.restore_latest`.
        """
        self._restored = self.checkpointer.restore_latest()
        return self._restored

    def finish(self) -> None:
        """Training is over: save the final state if there was a step, so a restart is a no-op."""
        if self.checkpointer.version != self._restored:
            self.checkpointer.save(block=True)

    def close(self) -> None:
        """Finish what is under way; signals go where they went. Raises CheckpointError."""
        if self._listens and signal.getsignal(signal.SIGTERM) == self._ask:
            signal.signal(signal.SIGTERM, self._before)
        self._listens = False
        self.checkpointer.close()


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what a callback cannot pass on when the training begins. Raises RequestError."""
    for name in ("model", "optimizer"):
        if name in options:
            raise RequestError(name, type(options[name]).__name__, "nothing: the Trainer has it")
    known = inspect.signature(Checkpointer).parameters
    for name, value in options.items():
        if name not in known:
            raise RequestError(
                name, value, f"an option of Checkpointer: {one_of(name, known, ', ')}"
            )


class PackedState:
    """A trainer object packed into a tensor of nearly constant size: relayouts cost time.

    It is read when the version is taken.
    """

    def __init__(self, what: str, save: Any, load: Any) -> None:
        """``save()`` returns what ``torch.load`` reads; ``load(found)`` restores it."""
        self._what = what
        self._save = save
        self._load = load
        self._size = _LEAST
        self._checked = -1

    def state_dict(self) -> dict[str, Any]:
        """The object, packed.

        Raises RequestError: it has something in it that could not be read back.
        """
        stream = io.BytesIO()
        torch.save(self._save(), stream)
        data = stream.getvalue()
        if len(data) != self._checked:  # what has changed may hold something new
            check_readable(data, self._what)
            self._checked = len(data)
        while self._size < len(data) + 8:
            self._size *= 2
        return {"packed": pack(data, self._size)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the object."""
        self._size = max(self._size, len(state_dict["packed"]))
        self._load(unpack(state_dict["packed"]))
