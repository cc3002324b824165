"""What all loops share: a checkpointer with a data loader, and the reaction to SIGTERM."""

import contextlib
import inspect
import io
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from deepvm.checkpoint.arguments import check_whole
from deepvm.checkpoint.checkpointer import Checkpointer
from deepvm.checkpoint.format.flatten import StateDict, check_readable
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.checkpoint.training.state import Stateful, pack, unpack
from deepvm.core.spelling import one_of
from deepvm.errors import CheckpointError, RequestError

LOADER = "loader"  # Key of the loader's position among the extras
ENDED = 128 + signal.SIGTERM  # Exit code after SIGTERM, as shells and schedulers know it
_LEAST = 2**14
_AHEAD = 1  # Accelerate fetches one batch ahead, to know which is the last


class Session:
    """Saves before a batch is fetched; after SIGTERM, exits once the checkpoint is safe."""

    def __init__(
        self,
        loader: ResumableLoader,
        extra: Mapping[str, Stateful] | None,
        sigterm: bool = True,
        *,
        own: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """``own``: what a trainer saves, under names that are taken then."""
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
        # All ranks have taken this checkpoint, here or by save(): all of them end if one was asked
        # to.
        (stays,) = self._ranks.minimum([self._asked is None or not self._asked.version])
        if not stays:
            self._end()

    def _end(self) -> None:
        version = self.checkpointer.version
        try:
            # The one that was taken, or one more if there was no space
            self.checkpointer.save(block=True)
        except CheckpointError as error:
            log.error("after SIGTERM, version %d is not safe: %s", version, error)
        else:
            log.warning("SIGTERM: training ends with version %d, which is safe", version)
        raise SystemExit(ENDED)

    def restore(self) -> int:
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


class TrainingRun:
    """A loop over ``loader``, each pass an epoch; ``checkpointer`` may save between batches."""

    def __init__(self, session: Session, epochs: int | None, loader: Any = None) -> None:
        self._session = session
        self._epochs = epochs
        self.loader = session.loader if loader is None else loader
        self.checkpointer: Checkpointer = session.checkpointer
        try:
            if epochs is not None:
                check_whole("epochs", epochs, 0, ", or None")
            session.restore()
        except BaseException:
            session.close()
            raise

    @property
    def epoch(self) -> int:
        """The epoch that is under way, from 0."""
        return self._session.loader.epoch

    @property
    def step(self) -> int:
        """Optimizer steps done, those of the restored checkpoint included."""
        return self.checkpointer.version

    def epochs(self) -> Iterator[int]:
        """The remaining epochs, each one pass over ``loader``, for loops with work after each."""
        loader = self._session.loader
        while self._epochs is None or loader.epoch < self._epochs:
            epoch = loader.epoch
            yield epoch
            if loader.epoch == epoch:  # the pass was left before its end, or never started
                loader.leave()

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left, of all epochs."""
        for _ in self.epochs():
            yield from self.loader

    def __enter__(self) -> "TrainingRun":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Save the end of the training, unless an error ends it, and close the checkpointer."""
        if error is not None:
            with contextlib.suppress(CheckpointError):
                self._session.close()
            return
        try:
            self._session.finish()
        finally:
            self._session.close()


def training_run(
    *,
    loader: DataLoader[Any] | ResumableLoader,
    epochs: int | None = None,
    extra: Mapping[str, Stateful] | None = None,
    sigterm: bool = True,
    **options: Any,
) -> TrainingRun:
    """A training loop that resumes without help, in the middle of an epoch too, bit for bit.

    Example::

        with training_run(
            model=model, optimizer=optimizer, loader=loader, epochs=10, tiers=..., every=100
        ) as run:
            for inputs, targets in run:
                ...  # run.epoch, run.step

    or, with something to do after each epoch::

            for epoch in run.epochs():
                for inputs, targets in run.loader:
                    ...
                validate()

    A checkpoint is taken between two batches: all that the body of the loop did is in it, but no
    local variables. One that is due at the last batch of an epoch is taken when the next epoch
    fetches its first: it has what follows the inner loop. What precedes the inner loop runs again
    when an epoch is resumed in the middle; it must not change what is saved.

    Args:
        loader: a loader of torch or torchdata, see :class:`ResumableLoader`.
        epochs: how often to pass over it; None: until the loop is left.
        extra: what else has a state: schedulers, GradScalers.
        sigterm: SIGTERM saves the state after the next step, and when it is safe the process exits
            with code 143; False leaves the signal alone.
        options: those of :class:`deepvm.checkpoint.Checkpointer`: ``model``, ``optimizer``,
            ``tiers``, ``every``, ...

    Raises:
        RequestError: an argument is invalid.
        CheckpointError: a tier cannot be reached, or checkpoints exist but none can be restored.
    """
    if not isinstance(loader, ResumableLoader):
        loader = ResumableLoader(loader)
    return TrainingRun(Session(loader, extra, sigterm, **options), epochs)


class SessionCallback:
    """What callbacks for trainers share: the options, and the session of a running training."""

    def __init__(
        self, extra: Mapping[str, Stateful] | None, sigterm: bool, options: Mapping[str, Any]
    ) -> None:
        """Refuse options that cannot be passed on later. Raises RequestError."""
        known = inspect.signature(Checkpointer).parameters
        for name, value in options.items():
            if name in ("model", "optimizer"):
                raise RequestError(name, type(value).__name__, "nothing: the Trainer has it")
            if name not in known:
                allowed = f"an option of Checkpointer: {one_of(name, known, ', ')}"
                raise RequestError(name, value, allowed)
        self._extra = dict(extra or {})
        self._sigterm = sigterm
        self._options = options
        self._session: Session | None = None

    @property
    def checkpointer(self) -> Any:
        """The checkpointer, while the Trainer trains."""
        if self._session is None:
            return None
        return self._session.checkpointer

    def _open(
        self, loader: ResumableLoader, own: Mapping[str, Any], model: Any, optimizer: Any
    ) -> int:
        options = {"model": model, "optimizer": optimizer, **self._options}
        self._session = Session(loader, self._extra, self._sigterm, own=own, **options)
        return self._session.restore()

    def _close(self) -> None:
        session = self._session
        self._session = None
        if session is not None:
            session.close()


class PackedState:
    """A trainer's object, read at each checkpoint, in a tensor of nearly constant size."""

    def __init__(self, what: str, save: Any, load: Any) -> None:
        # save() returns what torch.load reads; load(it) restores it
        self._what = what
        self._save = save
        self._load = load
        self._size = _LEAST
        self._checked = -1

    def state_dict(self) -> StateDict:
        """Raises RequestError: it has something in it that could not be read back."""
        stream = io.BytesIO()
        torch.save(self._save(), stream)
        data = stream.getvalue()
        if len(data) != self._checked:  # what has changed may hold something new
            check_readable(data, self._what)
            self._checked = len(data)
        while self._size < len(data) + 8:
            self._size *= 2
        return {"packed": pack(data, self._size)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        self._size = max(self._size, len(state_dict["packed"]))
        self._load(unpack(state_dict["packed"]))


def iterate_through(
    loader: DataLoader[Any], *, ahead: int = 0, stateful: bool = False
) -> ResumableLoader:
    """From now on iterating over this very object has a position; what it returns has the state.

    Trainers keep a loader in many places: it stays the same object, of a derived class. ``ahead``:
    batches fetched before the training has them. ``stateful``: with the ``state_dict`` of loaders.
    """
    kind = getattr(type(loader), "_plain", type(loader))  # a second training with the same loader
    inner = _plain(kind, loader.__dict__)
    resumable = ResumableLoader(inner, ahead=ahead)

    class WithPosition(kind):  # type: ignore[valid-type,misc]
        _plain = kind

        def __iter__(self) -> Any:
            # Trainers change a loader after it was made: the way its workers start, for example.
            inner.__dict__.update(self.__dict__)
            return iter(resumable)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _plain, (kind, self.__dict__)

    WithPosition.__name__ = WithPosition.__qualname__ = kind.__name__
    if stateful:
        WithPosition.state_dict = lambda self: resumable.state_dict()
        WithPosition.load_state_dict = lambda self, state: resumable.load_state_dict(state)
    elif hasattr(kind, "state_dict"):  # asked by Accelerate for each batch
        WithPosition.state_dict = lambda self: {}
    loader.__class__ = WithPosition
    return resumable


def _plain(kind: type[Any], state: StateDict) -> Any:
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


def prepared(loader: Any) -> ResumableLoader:
    """Give a loader that Accelerate has prepared a position. Raises RequestError."""
    from accelerate.data_loader import DataLoaderDispatcher  # Lightning does without

    base = getattr(loader, "base_dataloader", None)
    kind = type(loader).__name__
    if not isinstance(base, DataLoader):
        raise RequestError("loader", kind, "a data loader that accelerator.prepare() has returned")
    if isinstance(loader, DataLoaderDispatcher) and loader.state.num_processes > 1:
        raise RequestError("loader", kind, "one that each process reads: dispatch_batches=False")
    return iterate_through(base, ahead=_AHEAD)
