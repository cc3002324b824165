"""What a copy beside the training needs of a GPU: a stream of its own, events, page-locked memory.

Written against ``torch.cuda`` (CUDA and ROCm). The tests put a device of their own in its place.
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
        """Wait until the device has come by."""

    def query(self) -> bool:
        """Whether the device has come by."""


class Stream(Protocol):
    """A queue of work on a device."""

    def record_event(self, event: Any = None) -> Event:
        """Put an event behind what is in the queue."""

    def wait_event(self, event: Any) -> None:
        """What is queued from now on begins when the event has happened; does not wait itself."""


class Cuda:
    """GPUs by ``torch.cuda``."""

    def has(self, device: torch.device) -> bool:
        """Whether this is one of them."""
        return device.type == "cuda"

    def stream(self, device: torch.device) -> Stream:
        """A new stream beside that of the training."""
        made: Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return made

    def current(self, device: torch.device) -> Stream:
        """The stream on which the calling thread works now."""
        found: Stream = torch.cuda.current_stream(device)
        return found

    def mark(self, stream: Stream) -> Event:
        """An event behind what is in the stream, for which a thread can wait without keeping a processor busy."""
        return stream.record_event(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]

    def copy(self, stream: Stream, into: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        """Queue copies; into page-locked memory they run beside everything else."""
        with self.within([stream]):
            for target, source in zip(into, out, strict=True):
                target.copy_(source, non_blocking=True)

    @contextmanager
    def within(self, streams: Sequence[Stream]) -> Iterator[None]:
        """What this thread does to their devices goes onto these streams."""
        with ExitStack() as stack:
            for stream in streams:
                stack.enter_context(torch.cuda.stream(stream))  # type: ignore[arg-type]
            yield

    def room(self, device: torch.device) -> int:
        """Bytes that neither this process nor another has taken; what torch keeps in reserve is taken."""
        return int(torch.cuda.mem_get_info(device)[0])

    def pin(self, address: int, size: int) -> str:
        """Lock memory into its pages, so that the device copies into it by itself; returns why it cannot be, or ""."""
        try:
            error = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE))  # type: ignore[no-untyped-call]
        except RuntimeError as failure:
            return str(failure)
        return f"cudaHostRegister returned error {error}" if error else ""

    def unpin(self, address: int) -> None:
        """Undo :meth:`pin`."""
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


CUDA = Cuda()
