"""The GPU features that background copies need: streams, events, page-locked memory.

For ``torch.cuda`` (CUDA and ROCm); the tests substitute a device of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch

_PORTABLE = 1  # cudaHostRegisterPortable: for every device of this process


class Event(Protocol):
    """A place in a stream."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""

    def query(self) -> bool:
        """Whether the device has passed it."""


class Stream(Protocol):
    """A queue of work on a device."""

    def record_event(self, event: Any = None) -> Event:
        """Put an event after what is in the queue."""

    def wait_event(self, event: Any) -> None:
        """Work queued from now on starts after the event; returns at once."""


class Cuda:
    """GPUs by ``torch.cuda``."""

    def has(self, device: torch.device) -> bool:
        """Whether this device is one."""
        return device.type == "cuda"

    def stream(self, device: torch.device) -> Stream:
        """A new stream beside the training's."""
        made: Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return made

    def current(self, device: torch.device) -> Stream:
        """The current stream of this thread."""
        found: Stream = torch.cuda.current_stream(device)
        return found

    def mark(self, stream: Stream) -> Event:
        """An event after what is in the stream, for which a thread can wait without spinning."""
        return stream.record_event(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]

    def copy(self, stream: Stream, into: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        """Queue copies; into page-locked memory they are asynchronous."""
        with self.within([stream]):
            for target, source in zip(into, out, strict=True):
                target.copy_(source, non_blocking=True)

    @contextmanager
    def within(self, streams: Sequence[Stream]) -> Iterator[None]:
        """Make these the current streams of their devices in this thread."""
        with ExitStack() as stack:
            for stream in streams:
                stack.enter_context(torch.cuda.stream(stream))  # type: ignore[arg-type]
            yield

    def room(self, device: torch.device) -> int:
        """Free bytes on the device; what torch keeps cached is not free."""
        return int(torch.cuda.mem_get_info(device)[0])

    def pin(self, address: int, size: int) -> str:
        """Page-lock memory, so that the device can write into it; returns why that failed, or ""."""
        try:
            error = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE))  # type: ignore[no-untyped-call]
        except RuntimeError as failure:
            return str(failure)
        return f"cudaHostRegister returned error {error}" if error else ""

    def unpin(self, address: int) -> None:
        """Undo :meth:`pin`."""
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


CUDA = Cuda()
