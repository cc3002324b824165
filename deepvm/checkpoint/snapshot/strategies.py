"""How a checkpoint leaves the training's memory, by LightCheck's strategies (III-A).

``C``: into host memory, page-locked if the state is on a GPU. ``G``: into a copy on the device
first, which soon opens the gate; C is used where it has no space. ``D`` (III-D): into the hidden
mapped file of a file tier that becomes the checkpoint; not for disks, where C is twice as fast.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.torch_zip import Image
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.network.memory_file import readable_memory
from deepvm.checkpoint.snapshot.host_buffer import Piece, Slot, Sources
from deepvm.errors import RequestError
from deepvm.io.atomic_write import discard

_SHARE = 0.9  # of what is free on a device: the training's next peak may be higher than its last
_PORTABLE = 1  # cudaHostRegisterPortable: for every device of this process


class Cuda:
    """The ``torch.cuda`` features (CUDA, ROCm) that copies need; tests substitute their own."""

    def has(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.current_stream(device)

    def mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        return stream.record_event(torch.cuda.Event(blocking=True))  # type: ignore[no-any-return,no-untyped-call]

    def copy(
        self, stream: torch.cuda.Stream, into: Sequence[Tensor], out: Sequence[Tensor]
    ) -> None:
        with self.within([stream]):
            for target, source in zip(into, out, strict=True):
                target.copy_(source, non_blocking=True)

    @contextlib.contextmanager
    def within(self, streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for stream in streams:
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def room(self, device: torch.device) -> int:
        return int(torch.cuda.mem_get_info(device)[0])

    def pin(self, address: int, size: int) -> str:
        """Page-lock memory, so that the device can write into it; returns why it failed, or ""."""
        try:
            error = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE))  # type: ignore[no-untyped-call]
        except RuntimeError as failure:
            return str(failure)
        if not error:
            return ""
        # CUDA keeps the error for anyone who asks next, which would be the training's next kernel;
        # this one asks.
        with contextlib.suppress(RuntimeError):
            torch.empty(1, device="cuda").zero_()
        return f"cudaHostRegister returned error {error}"

    def unpin(self, address: int) -> None:
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


class Strategy:
    """Strategy C: host memory."""

    def __init__(self, api: Cuda | None = None) -> None:
        self.api = Cuda() if api is None else api
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pins = True

    def slot(self, image: Image, layout: Layout, rank: int, *, readable: bool = False) -> Slot:
        """Memory for a checkpoint; ``readable``: by a local memory node, where possible."""
        # Private memory is a tenth faster to copy into
        memory = readable_memory(image.size) if readable else None
        return self._pinned(Slot(image, layout, rank, memory=memory))

    def streams(self, sources: Sources) -> dict[torch.device, torch.cuda.Stream]:
        devices = {source.device for source in sources if source is not None}
        devices = {device for device in devices if self.api.has(device)}
        for device in devices - self._streams.keys():
            self._streams[device] = self.api.stream(device)
        return {device: self._streams[device] for device in devices}

    def clones(
        self, pieces: Sequence[Piece], sources: Sources, which: Sequence[int]
    ) -> Sources | None:
        """Device memory to copy these pieces into first; None: copy straight to the host."""
        return None

    def _pinned(self, slot: Slot) -> Slot:
        if self._pins and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with contextlib.ExitStack() as undo:
                for address, size in slot.pages:
                    problem = self.api.pin(address, size)
                    if problem:
                        self._pins = False
                        text = "memory of %d bytes cannot be page-locked, copies take longer: %s"
                        log.warning(text, size, problem)
                        return slot
                    undo.callback(self.api.unpin, address)
                slot.on_release = undo.pop_all().close
        return slot


class DeviceCopyStrategy(Strategy):
    """Strategy G: a copy on the device first."""

    _clones: Sequence[Tensor | None] = ()
    _warned = False

    def clones(
        self, pieces: Sequence[Piece], sources: Sources, which: Sequence[int]
    ) -> Sources | None:
        """The same memory for every checkpoint: a copy waits until the previous one has left it."""
        used = {pieces[number].storage for number in which}
        wanted = [source if number in used else None for number, source in enumerate(sources)]
        if [_kind(c) for c in self._clones] != [_kind(w) for w in wanted]:
            self._clones = ()
            needed: dict[torch.device, int] = {}
            for source in wanted:
                if source is not None:
                    needed[source.device] = needed.get(source.device, 0) + source.nbytes
            try:
                for device, size in needed.items():
                    free = self._room(device)
                    if size > _SHARE * free:
                        return self._none(f"{size} bytes on {device}, of which {free} are free")
                self._clones = [None if w is None else torch.empty_like(w) for w in wanted]
            except torch.OutOfMemoryError as error:
                return self._none(str(error))
        return self._clones

    def _room(self, device: torch.device) -> int:
        if self.api.has(device):
            return self.api.room(device)
        if device.type != "cpu":
            return 2**63  # torch has no common way to ask: a failed allocation will tell
        with open("/proc/meminfo") as file:
            return next(
                int(row.split()[1]) * 1024 for row in file if row.startswith("MemAvailable")
            )

    def _none(self, reason: str) -> Sources | None:
        if not self._warned:
            self._warned = True
            text = "strategy G has no space for a copy on the device, C is used: it needs %s"
            log.warning(text, reason)
        return None


def _kind(tensor: Tensor | None) -> tuple[torch.device, int] | None:
    if tensor is None:
        return None
    return (tensor.device, tensor.nbytes)


class MmapStrategy(Strategy):
    """Strategy D: the file itself, for one rank."""

    def __init__(self, folder: VersionFolder, job: str) -> None:
        """Raises RequestError: on this file system a full disk would kill us (SIGBUS)."""
        super().__init__()
        self._folder = folder
        self._job = job
        medium = durable_write.medium(folder.path)
        if not medium.mappable:
            where = f"{folder.path} is on {medium.kind or 'another'}"
            raise RequestError("strategy", "D", f"on ext4, tmpfs, or xfs with DAX; {where}: use C")
        log.info("checkpoints are copied straight into files of %s, on %s", folder.path, medium)

    def slot(self, image: Image, layout: Layout, rank: int, *, readable: bool = False) -> Slot:
        with contextlib.ExitStack() as undo:
            use = f"used for a file of {image.size} bytes (strategy D)"
            with durable_write.failing(self._folder.path, use):
                hidden = self._folder.reserve(self._job)
                undo.callback(discard, hidden)
                memory = _map(hidden, image.size)
            slot = self._pinned(Slot(image, layout, rank, memory=memory))
            undo.callback(slot.on_release)
            # Removes it, unless it has become a checkpoint
            slot.home = hidden
            slot.on_release = undo.pop_all().close
        return slot


def _map(path: Path, size: int) -> mmap.mmap:
    with open(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=0
    ) as file:
        file.truncate(size)
        # Writing into a hole takes space; when none is left, the process would be killed.
        os.posix_fallocate(file.fileno(), 0, size)
        # Fault all pages in now, in the background, not one by one while the training waits for the
        # copy.
        return mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
