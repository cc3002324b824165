"""A data loader with a position: what :class:`ResumableLoader` promises, and how it keeps that."""

from __future__ import annotations

import copy
import io
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import DataLoader, IterableDataset

from deepvm.checkpoint.format.flatten import State, StateDict, check_readable
from deepvm.checkpoint.format.tensor_bytes import as_tensor, bytes_of
from deepvm.checkpoint.loading import worker_states
from deepvm.checkpoint.loading.random_states import (
    GeneratorStates,
    counters_of,
    generators_of,
    own_generators,
    packed,
    restore,
    restore_counters,
)
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.hooks import Hook
from deepvm.checkpoint.training.ranks import world_size
from deepvm.checkpoint.training.state import pack, unpack
from deepvm.errors import CheckpointError, RequestError
from deepvm.records import dataclass, field

# Stages of ``datasets`` whose state is exact, as tests of each show
_STAGES = ["", "Arrow", "RebatchedArrow", "Step", "Mapped", "Filtered", "Skip", "Take", "Repeat"]
_STAGES.append("Formatted")
_EXACT = {f"{stage}ExamplesIterable" for stage in _STAGES} | {"SelectColumnsIterable"}
_EXACT_WITHOUT_WORKERS = {
    f"{kind}MultiSourcesExamplesIterable"
    for kind in ("Cycling", "RandomlyCycling", "VerticallyConcatenated", "HorizontallyConcatenated")
}
_REASONS = {"BufferShuffledExamplesIterable": "the rows in its shuffle buffer"}
_COMPARED_VALUES = 4096
_COMPARED_ITEMS = 64


def is_hugging_face(dataset: Any) -> bool:
    """Whether this is a stream of Hugging Face ``datasets``, or a stage of one."""
    kind = type(dataset)
    return kind.__module__.partition(".")[0] == "datasets" and "Iterable" in kind.__name__


def missing_from_state(loader: DataLoader[Any]) -> str:
    """What the dataset's state lacks, so that it must be reread; empty if nothing is known."""
    stages = [*_stages(loader.dataset)]
    if not stages:
        return ""
    if not is_hugging_face(loader.dataset):
        return "which row of the stream of datasets in it comes next"
    if loader.num_workers and loader.persistent_workers:
        return "where persistent workers start the next epoch"
    names = {type(stage).__name__ for stage in stages} - _EXACT - {"IterableDataset"}
    if not loader.num_workers:
        names -= _EXACT_WITHOUT_WORKERS
    reasons = [reason for name, reason in _REASONS.items() if name in names]
    return (reasons or [f"the rows in {name}" for name in sorted(names)] or [""])[0]


def warn_of_incomplete(extra: Mapping[str, Any]) -> None:
    """Warn of stateful loaders without a :class:`ResumableLoader` whose own state loses rows."""
    for name, loader in extra.items():
        if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
            missing = missing_from_state(loader)
            if missing:
                log.warning(
                    "extra[%r]: the state of the %s does not have %s, so a resume loses or repeats"
                    " rows; put ResumableLoader(loader) into extra, and iterate over that",
                    name,
                    type(loader).__name__,
                    missing,
                )


def _stages(top: Any) -> Iterator[Any]:
    waiting = [top]
    known = {id(top)}
    while waiting:
        stage = waiting.pop()
        if is_hugging_face(stage):
            yield stage
        parts = [*vars(stage).values()]
        for value in [*parts]:
            if isinstance(value, dict):
                parts += value.values()
            elif isinstance(value, (list, tuple)):
                parts += value
        for part in parts:
            if is_hugging_face(part) and id(part) not in known:
                known.add(id(part))
                waiting.append(part)


def digest(batch: Any) -> int:
    """A checksum of a batch in microseconds: samples of each tensor, shapes, texts, numbers."""
    crc = 0
    for part in _parts(batch):
        crc = crc32(part, crc)
    return crc


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        if value.layout is torch.strided and value.device.type == "cpu":
            # Some rows and some columns: that costs the same for any size and any order in memory.
            side = int(_COMPARED_VALUES ** (1 / max(value.dim(), 1)))
            yield bytes_of(value.detach()[(slice(side),) * value.dim()].contiguous())
    elif isinstance(value, Mapping):
        yield from _parts([*islice(value.items(), _COMPARED_ITEMS)])
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)}".encode()
        for item in value[:_COMPARED_ITEMS]:
            yield from _parts(item)
    elif hasattr(value, "__array_interface__"):
        yield from _parts([str(value.dtype), *value.shape, value.flat[:_COMPARED_ITEMS].tolist()])
    elif isinstance(value, (str, bytes, int, float, complex, type(None))):
        yield repr(value[:_COMPARED_VALUES] if isinstance(value, (str, bytes)) else value).encode()
    else:
        yield type(value).__name__.encode()


# Records are filled up to a multiple of this: a longer one would change the layout of the file
_GRAIN = 2**16
_OTHER_BATCHES = (
    "epoch %d: the dataset does not yield the same batches again, so some samples are repeated or"
    " missing in what is left of it; give it the same data, a seed, and this epoch if it has"
    " set_epoch()"
)
_OTHER_ORDER = (
    "epoch %d: the sampler has not drawn the same order again, so some samples come twice and"
    " others not at all in what is left of it; give the sampler a generator of its own, and the"
    " same data"
)
_WORKERS_A_GRAIN = 4  # Their random states come to be in the record in the middle of a pass


class ResumableLoader:
    """Wraps a ``DataLoader`` or ``StatefulDataLoader`` so that a checkpoint has its position.

    Its batches are those of the loader, with the same random numbers. It goes into the
    checkpointer's ``extra``; after a restore the next pass has the batches that are left::

        def batches():
            while True:
                yield from loader

        data = batches()
        for step in ck.steps(10_000):
            inputs, targets = next(data)
            ...

    Without ``ck.steps``, as in ``for batch in loader``, a checkpoint that is due is taken before
    the next batch is fetched, or when the next pass starts.

    A resumed pass has the samples that were left of it, in the same order, each once, with the same
    random changes (augmentation), in workers too; random states are those of the checkpoint when
    the first batch is there, so dropout continues as it would have. To get there, the sampler is
    drawn from again, which takes microseconds a batch. What an ``IterableDataset`` yields is read
    again and thrown away, unless the loader is a ``StatefulDataLoader`` and the dataset has a
    complete ``state_dict``. What cannot be exact: docs/internals/guide/trainers.md, "Data loaders".

    Attributes:
        loader: what it wraps; other attributes are those of it.
        before_batch: called where the checkpointer may save: before a batch is fetched, and before
            a pass starts; not at the end of a pass.
    """

    def __init__(self, loader: DataLoader[Any], *, ahead: int = 0) -> None:
        """Nothing is drawn yet. Raises RequestError: no loader, or without a fixed order.

        ``ahead``: batches that are fetched before the training has them (Accelerate: 1).
        """
        if isinstance(loader, ResumableLoader) or not isinstance(loader, DataLoader):
            allowed = "a torch.utils.data.DataLoader, or torchdata's"
            raise RequestError("loader", type(loader).__name__, allowed)
        if loader.num_workers and not getattr(loader, "in_order", True):
            allowed = "a loader that keeps the order, so that it can be repeated"
            raise RequestError("loader", "in_order=False", allowed)
        self.loader = loader
        self.before_batch: Callable[[], None] = Hook()
        self._ahead = ahead
        self._stream = isinstance(loader.dataset, IterableDataset)
        own = all(hasattr(loader.dataset, name) for name in ("state_dict", "load_state_dict"))
        own = own and hasattr(loader, "load_state_dict")
        self._missing = ""
        if own and self._stream:
            self._missing = missing_from_state(loader)
        self._stateful = own and not self._missing
        self._reads = self._stream and not self._stateful
        # Key in a record of the value that must be the same after a restore
        self._order_key = "read" if self._reads else "order"
        if self._stateful and hasattr(loader.dataset, "epoch") and is_hugging_face(loader.dataset):
            self._order_key = "epoch_of_dataset"
        self._epoch = self._fetched = self._least = 0
        self._running = False
        self._length: int | None = None  # Batches of this pass, where that is certain
        self._known_generators: list[torch.Generator] = []
        self._initial_counters = counters_of(loader)
        # Counters that the samplers have changed, as of the start of this pass
        self._counters: dict[str, int] = {}
        # Random states when the iterator was made, and with it the workers
        self._made: GeneratorStates | None = None
        self._began: GeneratorStates | None = None
        # Set while a pass starts that resumes in the middle
        self._first: GeneratorStates | None = None
        # While a pass starts that continues in the middle
        self._putting_back: _Resume | None = None
        self._calls = 0
        # Those of persistent workers when this pass started
        self._worker_states: dict[int, bytes] = {}
        self._history = worker_states.History(max(loader.num_workers, 1) + ahead)
        # For each of the newest fetches: random states, and the loader's own state if any
        self._fetches: deque[tuple[GeneratorStates, Any]] = deque(maxlen=max(ahead, 1))
        self._copy: DataLoader[Any] | None = None
        self._indexes: worker_states.Indexes | None = None
        self._resume: _Resume | None = None
        # The state that was loaded, until a pass starts with it
        self._restored: StateDict = {}
        self._warned = False
        self._checked = -1  # Bytes of the record that was last seen to be readable

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """The number of the pass that runs, or that starts next, from 0."""
        return self._epoch

    @property
    def batch(self) -> int:
        """Batches of this pass that the training has been given."""
        if self._resume is not None:
            return self._resume.batch
        if self._running:
            return max(self._fetched - self._ahead, self._least)
        return 0

    def __iter__(self) -> Iterator[Any]:
        """Start the next pass, or continue with the one of the checkpoint that was restored."""
        if self._running:  # it was left before its end
            self._ended()
        self.before_batch()
        resume = self._resume
        self._resume = None
        if resume is None:
            resume = _Resume(GeneratorStates.now(self._generators))
            return _Pass(self, self._begin(resume), resume)
        if resume.alone:
            resume.now = GeneratorStates(packed(), resume.now.own)
        if not resume.inside:
            resume.now.put_back(self._generators)
            if resume.dataset is not None and not is_hugging_face(self.loader.dataset):
                self.loader.dataset.load_state_dict(resume.dataset)  # type: ignore[attr-defined]
        return _Pass(self, self._begin(resume), resume)

    def _begin(self, resume: _Resume) -> Iterator[Any]:
        batch = resume.batch
        start = batch
        if resume.own is None or not self._stateful:
            start = self._start_of(batch)
        persistent = self._workers > 0 and self.loader.persistent_workers
        if self._copy is None or not persistent:
            self._copy = self._copied(resume)
            if resume.made is not None:
                resume.made.put_back(self._generators)
            self._made = GeneratorStates.now(self._generators)
            self._worker_states = dict(resume.workers)
        else:
            self._worker_states = self._history.newest
        self._began = resume.began
        self._first = resume.first
        self._calls = 0
        self._counters = self._changed_counters()
        if resume.made is not None and not resume.inside:  # the workers are older than this pass
            self._began = resume.now
        self._putting_back = None
        if resume.inside or self._began is not None:
            self._putting_back = resume
        if self._indexes is not None:
            self._indexes.skip = start
            self._indexes.skipped = _weak(self._skipped, resume)
            self._indexes.known = 0
            if resume.order is not None and not self._reads:
                self._indexes.known = batch
            self._indexes.compare = _weak(self._compare, resume)
        self._history.begin(start, self._worker_states)
        found = self._iterator(resume)
        self._fetches.clear()
        self._running = True
        self._fetched = start
        self._length = _length_of(self.loader)
        if self._stream or self._stateful or self._workers:
            if self._fetched < batch:  # the workers take turns, so this starts with the first one's
                for _ in islice(_Pass(self, found, resume, silent=True), batch - start):
                    pass
                if self._reads:
                    self._compare(resume, self._order(batch))
            self._fetches.clear()
            self._putting_back = None
        self._least = batch
        if resume.inside:
            restore(resume.now.shared)
        if not (self._stream or self._stateful or self._warned) and (
            names := own_generators(self.loader.dataset)
        ):
            self._warned = True
            log.warning(
                "%s has random generators that no checkpoint has (%s): what it draws from them"
                " differs after a resume; draw from the global ones of random, NumPy or torch, or"
                " seed them with the number of the sample",
                type(self.loader.dataset).__name__,
                ", ".join(names),
            )
        return found

    def _iterator(self, resume: _Resume) -> Iterator[Any]:
        try:
            batches = iter(self._copy)  # type: ignore[arg-type]
            at_its_end = self._stream and self._stateful and not resume.batch
            loaded = resume.own is not None or resume.dataset is not None
            if at_its_end and loaded:
                return self._restarted_if_empty(batches, resume)
            return batches
        except Exception as error:
            if not self._stateful or resume.own is None:
                raise
            raise CheckpointError(
                f"epoch {self._epoch}: {type(self.loader.dataset).__name__} cannot load the state"
                f" that it has saved: {_shown(error)}; try: a DataLoader of torch, with which"
                " batches are read again"
            ) from error

    def _restarted_if_empty(self, batches: Iterator[Any], resume: _Resume) -> Iterator[Any]:
        """A stream's batches between two passes; many keep the end state of the last pass."""
        first = next(batches, _END)
        if first is _END:
            resume.now.put_back(self._generators)
            batches = iter(self._copy)  # type: ignore[arg-type]
            if resume.inside:
                restore(resume.now.shared)
        else:
            yield first
        yield from batches

    def _start_of(self, batch: int) -> int:
        if self._reads or self._stateful:
            return 0
        return batch - batch % max(self._workers, 1)

    def _copied(self, resume: _Resume) -> DataLoader[Any]:
        made = copy.copy(self.loader)
        changes: dict[str, Any] = {
            "collate_fn": worker_states.Collate(self.loader.collate_fn),
            "worker_init_fn": worker_states.StartWorker(self.loader.worker_init_fn, resume.workers),
            "_iterator": None,  # one that was made before has none of this
        }
        if hasattr(made, "_initial_iter_for_state_dict"):
            changes["_initial_iter_for_state_dict"] = False
        if not self._stateful:
            name = "batch_sampler"
            if self.loader.batch_sampler is None:
                name = "sampler"
            begins = _weak(self._before_sampler)
            self._indexes = worker_states.Indexes(
                getattr(self.loader, name), begins, _weak(self._before_first)
            )
            changes[name] = self._indexes
        for name, value in changes.items():
            # Torch forbids some of these, as they would not reach the workers
            object.__setattr__(made, name, value)
        if self._stateful and resume.own is not None:
            if self._order_key == "epoch_of_dataset":
                self._compare(resume, self._order(0))
            made.load_state_dict(resume.own)  # type: ignore[attr-defined]
        elif self._stateful and is_hugging_face(made.dataset):
            made.dataset.load_state_dict(None)  # type: ignore[attr-defined]  # a state that was loaded starts all passes
        return made

    def _before_sampler(self) -> None:
        # With workers torch asks for the iterator twice, and draws their seed between: the second
        # one is used.
        self._calls += 1
        if self._putting_back is not None and self._began is not None:
            if self._calls == 1 + (self._workers > 0):
                self._began.put_back(self._generators)
        else:
            self._began = GeneratorStates.now(self._generators)

    def _before_first(self) -> None:
        resume = self._putting_back
        if resume is not None and resume.first is not None:
            resume.first.put_back(self._generators)
        else:
            self._first = GeneratorStates.now(self._generators)
        self._putting_back = None

    def _skipped(self, resume: _Resume, crc: int) -> None:
        self._history.skipped(crc)
        if not self._workers:  # the first batch is about to be read
            restore((resume.ahead[0] if resume.ahead else resume.now).shared)

    def _compare(self, resume: _Resume, order: int | None) -> None:
        if resume.order is None or order == resume.order:
            return
        text = _OTHER_ORDER
        if self._stream:
            text = _OTHER_BATCHES
        log.warning(text, self._epoch)

    def _order(self, batch: int) -> int | None:
        """Checksum of the batches before this one; for streams that are not reread, the epoch."""
        if self._order_key == "epoch_of_dataset":
            return int(self.loader.dataset.epoch)  # type: ignore[attr-defined]
        if self._stateful:
            return None
        return self._history.at(batch)[1]

    def _fetch(self, batches: Iterator[Any], silent: bool) -> Any:
        # Where no more batches come, the epoch's end belongs to this pass: a checkpoint is then
        # taken when the next one starts, as loops may count epochs by steps.
        if not silent and (self._length is None or self.batch < self._length):
            self.before_batch()
        if self._ahead and (self._stateful or not self._workers):
            own = self._own_state() if self._stateful else None
            self._fetches.append((GeneratorStates.now(self._generators), own))
        batch = next(batches, _END)
        if batch is _END:
            if not silent:
                self._ended()
            return batch
        self._fetched += 1
        if not isinstance(batch, worker_states.BatchWithState):
            batch = worker_states.BatchWithState(batch, 0, None)
        checksum = 0
        if self._indexes is not None and self._indexes.drawn:
            checksum = self._indexes.drawn.popleft()
        self._history.add(batch, digest(batch.batch) if self._reads else checksum)
        return batch.batch

    def leave(self) -> None:
        """End the running or restored pass here; the next ``iter()`` starts a new one."""
        self._resume = None
        self._ended()

    def _ended(self) -> None:
        self._epoch += 1
        self._running = False
        self._fetched = self._least = 0
        self._fetches.clear()

    def state_dict(self) -> StateDict:
        """The position, with what is needed to come back to it; plain ``torch.load`` reads it."""
        if self._resume is not None:
            return dict(self._restored)
        batch = self.batch
        record: StateDict = {
            "now": _saved(GeneratorStates.now(self._generators)),
            "world": world_size(),
            "batch_size": _batch_size(self.loader),
            "num_workers": self._workers,
        }
        if self._running:
            start = self._start_of(batch)
            states, _ = self._history.at(batch if self._stateful else start)
            ahead = []
            if self._fetched > batch:
                ahead = list(self._fetches)[batch - self._fetched :]
            record |= {
                "began": _saved(self._began),
                "first": _saved(self._first),
                self._order_key: self._order(batch),
                "ahead": [_saved(each) for each, _ in ahead],
                "counters": self._counters,
            }
            if self._stateful:
                record["own"] = ahead[0][1] if ahead else self._own_state()
            elif not start:
                states = self._worker_states
        else:
            record["counters"] = self._changed_counters()
            states = self._history.newest
            keeps = self._stateful and not is_hugging_face(self.loader.dataset)
            if keeps and not self._workers and self._copy is not None:
                record["dataset"] = copy.deepcopy(self.loader.dataset.state_dict())  # type: ignore[attr-defined]
        if self._running or (
            self._workers and self.loader.persistent_workers and self._copy is not None
        ):
            record |= {
                "made": _saved(self._made),
                "workers": {w: as_tensor(s) for w, s in states.items()},
            }
        stream = io.BytesIO()
        torch.save(record, stream)
        data = stream.getvalue()
        # The dataset's state may have anything in it
        if self._stateful and len(data) != self._checked:
            check_readable(data, f"state_dict() of {type(self.loader.dataset).__name__}")
            self._checked = len(data)
        size = max(-(-(len(data) + 8) // _GRAIN), 1 + self._workers // _WORKERS_A_GRAIN) * _GRAIN
        return {"epoch": self._epoch, "batch": batch, "record": pack(data, size)}

    def _own_state(self) -> Any:
        assert self._copy is not None
        return copy.deepcopy(self._copy.state_dict())  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a position with the next ``iter()``. Raises CheckpointError: it is none."""
        try:
            epoch = int(state_dict["epoch"])
            batch = int(state_dict["batch"])
            record = unpack(state_dict["record"])
            resume = _Resume.of(batch, record)
        except Exception as error:  # unpickling may raise anything
            text = f"this is no position of a data loader: {_shown(error)}"
            raise CheckpointError(text) from error
        resume.order = record.get(self._order_key)
        if not batch and is_hugging_face(self.loader.dataset):
            resume.own = None  # until it yields, it has the state of the last pass's end
        world = world_size()
        size = _batch_size(self.loader)
        workers = self._workers
        before = record["world"]
        had = record.get("batch_size")
        had_workers = record.get("num_workers", workers)
        resized = bool(size and had and size != had)
        if (
            self._stream
            and resume.inside
            and (before != world or workers != had_workers or (resized and workers))
        ):
            log.warning(
                "epoch %d: the stream was read with workers: %d, ranks: %d, batch size: %s; now"
                " with workers: %d, ranks: %d, batch size: %s. If they divide it, some samples are"
                " missing or repeated in what is left of it; to be exact, continue with the same"
                " numbers",
                epoch,
                had_workers,
                before,
                had,
                workers,
                world,
                size,
            )
        if workers != had_workers and (self._stream or self._stateful):
            resume.own = resume.order = None
        if before != world or resized:
            if not (size and had):
                log.warning(
                    "epoch %d: how large the batches of %d ranks were is not known: %d ranks"
                    " continue"
                    " as if theirs were as large; else some samples come twice, or not at all",
                    epoch,
                    before,
                    world,
                )
                size = had = 1
            # Samplers that split data deal it out in turn: what one had, others have now.
            batch = resume.batch = batch * had * before // (size * world)
            resume.own = resume.order = None
            resume.workers = {}
            resume.ahead = ()
        if before != world:
            resume.alone = True
            resume.made = resume.dataset = None
        if batch and (self._missing or (self._stateful and resume.own is None)):
            name = type(self.loader.dataset).__name__
            reason = (
                f"the checkpoint has no state of {name} for this batch size, these workers and"
                " ranks"
            )
            if self._missing:
                reason = f"the state of {name} leaves out {self._missing}"
            log.warning(
                "epoch %d: %d batches are read again, which takes as long as loading them did: %s",
                epoch,
                batch,
                reason,
            )
        if "counters" in record:
            restore_counters(self.loader, {**self._initial_counters, **record["counters"]})
        self._epoch = epoch
        self._running = False
        self._fetched = self._least = 0
        self._resume = resume
        self._restored = dict(state_dict)
        self._copy = self._made = self._indexes = None
        self._history.begin(0, {})

    def _changed_counters(self) -> dict[str, int]:
        now = counters_of(self.loader)
        return {key: n for key, n in now.items() if self._initial_counters.get(key) != n}

    @property
    def _workers(self) -> int:
        return int(self.loader.num_workers)

    @property
    def _generators(self) -> list[torch.Generator]:
        if not self._running:  # samplers may be exchanged between passes
            self._known_generators = generators_of(self.loader)
        return self._known_generators


@dataclass
class _Resume:
    """Where a pass continues, and the random states of moments in it."""

    now: GeneratorStates  # of the checkpoint
    batch: int = 0
    inside: bool = False  # a pass had started
    made: GeneratorStates | None = None  # when the workers were made
    began: GeneratorStates | None = None  # when the sampler's iterator was made
    first: GeneratorStates | None = None  # when that drew first
    order: int | None = None  # checksum of all batches before
    workers: Mapping[int, bytes] = field(default_factory=dict)
    ahead: Sequence[GeneratorStates] = ()  # before each of the first batches
    own: Any = None  # the loader's state, if it has one
    dataset: Any = None  # and the dataset's
    alone: bool = False  # of another number of ranks: the global states are not this rank's

    @classmethod
    def of(cls, batch: int, record: State) -> _Resume:
        resume = cls(_loaded(record["now"]), batch, inside="began" in record)
        for moment in ("made", "began", "first"):
            if record.get(moment) is not None:
                setattr(resume, moment, _loaded(record[moment]))
        resume.workers = {int(w): bytes_of(s) for w, s in record.get("workers", {}).items()}
        resume.ahead = [_loaded(saved) for saved in record.get("ahead", ())]
        resume.own = record.get("own")
        resume.dataset = record.get("dataset")
        return resume


class _Pass(Iterator[Any]):
    def __init__(
        self, owner: ResumableLoader, found: Iterator[Any], resume: _Resume, *, silent: bool = False
    ) -> None:
        self._owner = owner
        self._found = found
        self._silent = silent
        self._ahead = deque(() if silent else resume.ahead)
        self._now = resume.now
        self._over = False

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        # The checkpoint had these batches: random states are those before each, then its own.
        again = bool(self._ahead)
        if again:
            restore(self._ahead.popleft().shared)
        batch = self._owner._fetch(self._found, self._silent)
        if again:
            restore((self._ahead[0] if self._ahead else self._now).shared)
        if batch is _END:
            self._over = True
            raise StopIteration
        return batch


_END = object()


def _weak(method: Callable[..., None], *first: Any) -> Callable[..., None]:
    """A call through a weak reference: workers freed with a cycle never get an order to end."""
    found = weakref.WeakMethod(method)

    def call(*others: Any) -> None:
        alive = found()
        if alive is not None:
            alive(*first, *others)

    return call


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _length_of(loader: DataLoader[Any]) -> int | None:
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except TypeError:  # a sampler without a length
        return None


def _batch_size(loader: DataLoader[Any]) -> int | None:
    """Samples of a batch of this rank; None where only the sampler knows."""
    if loader.batch_size is not None:
        return loader.batch_size
    sampler = loader.batch_sampler
    size = getattr(sampler, "batch_size", None)
    # Accelerate's, whose batches are of all ranks together
    if size and getattr(sampler, "split_batches", False):
        size //= max(getattr(sampler, "num_processes", 1), 1)
    if isinstance(size, int) and size > 0:
        return size
    return None


def _saved(states: GeneratorStates | None) -> Any:
    if states is None:
        return None
    return [as_tensor(states.shared), *map(as_tensor, states.own)]


def _loaded(saved: Any) -> GeneratorStates:
    shared, *own = (bytes_of(tensor) for tensor in saved)
    return GeneratorStates(shared, tuple(own))
