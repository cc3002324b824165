"""Byte streams between processes of one ``mpirun``: local sockets, carried by one thread.

Without ``mpirun --with-ft ulfm`` Open MPI ends every process when one is killed.
"""

import atexit
import contextlib
import logging
import os
import queue
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from deepvm.errors import CheckpointError, MissingExtraError
from deepvm.io.threads import start_thread

_LOG = logging.getLogger("deepvm.checkpoint")
_ULFM = "OMPI_MCA_mpi_ft_enable"  # set by mpirun --with-ft ulfm; a hint, not a proof
_BUFFER = 2**20
_CONTROL = 0  # tag of messages about streams; each stream has two more, one for each direction
_MESSAGE = struct.Struct("!BI")
_OPEN, _RESET_BY_OPENER, _RESET_BY_OTHER, _SERVE, _BYE = range(1, 6)
_JOIN_S = 60.0
_LINGER_S = 5.0
# For a memory node to announce itself; mpirun starts all processes at the same time
_START_S = 20.0
_EAGER_S = 50e-6
_EAGER_ROUNDS = 100
# After so many more idle rounds the pause grows by 1 ms, to at most this
_ROUNDS_PER_MS = 25
_LONGEST_MS = 20
_PAUSE_S = 0.001
_MAKING = threading.Lock()


class _Stream:
    """One end of a stream; only the carrier's thread touches it."""

    def __init__(
        self, carrier: "MpiTransport", peer: int, number: int, sock: socket.socket, *, opener: bool
    ) -> None:
        self.key = (peer, number, opener)
        self._carrier = carrier
        self._comm = carrier.comm
        self._peer = peer
        self._sock = sock
        self._out_tag = 2 * number + (not opener)
        self._in_tag = 2 * number + opener
        # MPI's own memory outlives Python's: what still arrives while MPI ends must not be written
        # to freed memory
        self._out = carrier.memory(_BUFFER)
        self._in = carrier.memory(_BUFFER)
        self._sending: Any = None
        self._receiving: Any = None
        self._undelivered = memoryview(b"")
        self._discards = self._sent_end = self._received_end = False
        sock.setblocking(False)

    @property
    def all_sent(self) -> bool:
        return self._sent_end and self._sending is None

    @property
    def ended(self) -> bool:
        return self.all_sent and self._received_end and not self._undelivered

    def step(self) -> bool:
        """Returns whether anything was possible. Raises MPI's errors if the peer is dead."""
        moved = self._receive()
        return self._send() or moved

    def _receive(self) -> bool:
        if self._undelivered:
            return self._deliver()
        if self._received_end:
            return False
        if self._receiving is None:
            self._receiving = self._comm.Irecv(self._in, self._peer, self._in_tag)
        if not self._receiving.Test(self._carrier.status):
            return False
        self._receiving = None
        count = self._carrier.status.Get_count()
        if not count:
            self._received_end = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        elif not self._discards:
            self._undelivered = memoryview(self._in)[:count]
            self._deliver()
        return True

    def _deliver(self) -> bool:
        try:
            self._undelivered = self._undelivered[self._sock.send(self._undelivered) :]
        except BlockingIOError:
            return False
        except OSError:  # the reader has closed: drop what still comes, and tell the sender
            self._discards = True
            self._undelivered = memoryview(b"")
            self._carrier.send_control(
                self._peer, _RESET_BY_OPENER if self.key[2] else _RESET_BY_OTHER, self.key[1]
            )
        return True

    def _send(self) -> bool:
        if self._sending is not None:
            if not self._sending.Test():
                return False
            self._sending = None
            return True
        if self._sent_end:
            return False
        try:
            count = self._sock.recv_into(self._out)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        self._sent_end = not count
        self._sending = self._comm.Isend(
            [self._out, count, self._carrier.byte], self._peer, self._out_tag
        )
        return True

    def reset(self) -> None:
        self._hang_up()
        self._discards = True
        self._undelivered = memoryview(b"")

    def awaited(self) -> tuple[socket.socket, int]:
        events = 0
        if self._sending is None and not self._sent_end:
            events |= select.POLLIN
        if self._undelivered:
            events |= select.POLLOUT
        return self._sock, events

    def drop(self) -> None:
        self._hang_up()
        for request, memory in ((self._sending, self._out), (self._receiving, self._in)):
            if request is None:
                self._carrier.free(memory)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            # Closing alone does nothing while a forked process has it open too
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class MpiTransport:
    """The thread behind all streams of this process, and what it knows of the other ranks."""

    def __init__(self, comm: Any, mpi: Any) -> None:
        self.comm = comm
        self.byte = mpi.BYTE
        self.status = mpi.Status()
        self.rank = int(comm.Get_rank())
        self.size = int(comm.Get_size())
        self._mpi = mpi
        self._streams: dict[tuple[int, int, bool], _Stream] = {}
        self._controls: list[tuple[Any, bytes]] = []
        self._work: deque[Callable[[], None]] = deque()
        self._number = 0
        self._lock = threading.Lock()
        # Streams that others open; None: they are refused
        self.opened: queue.SimpleQueue[tuple[socket.socket, int] | None] | None = None
        self._gone: set[int] = set()
        self._nodes: set[int] = set()
        self._awaited = {self.rank}
        self._ended = threading.Event()
        self.memory = mpi.Alloc_mem
        self.free = mpi.Free_mem
        self._control = self.memory(_MESSAGE.size)
        self._listening = comm.Irecv(self._control, mpi.ANY_SOURCE, _CONTROL)
        self._thread = start_thread(self._run, name="deepvm-mpi")

    def connect(self, peer: int) -> socket.socket:
        """A stream to another, maybe starting process; it ends at once if none serves there."""
        if peer not in self._awaited:
            self._wait(lambda: peer in self._gone | self._nodes, _START_S)
        if peer in self._gone:
            raise ConnectionRefusedError("that process has ended or died")
        if not self._thread.is_alive():
            raise ConnectionRefusedError("MPI has ended in this process")
        self._awaited.add(peer)  # once is enough: a node says so when it starts to serve
        near, far = socket.socketpair()
        with self._lock:
            self._number += 1
            number = self._number

        def begin() -> None:
            self.send_control(peer, _OPEN, number)
            self._open(peer, number, far, opener=True)

        self._work.append(begin)
        return near

    def serve(self) -> queue.SimpleQueue[tuple[socket.socket, int] | None]:
        """The queue of streams that others open from now on, with the opener's rank."""
        self.opened = opened = queue.SimpleQueue[tuple[socket.socket, int] | None]()
        self._work.append(lambda: self._send_controls(_SERVE))
        return opened

    def deserted(self) -> bool:
        """Whether all processes but nodes have ended, died or become unreachable."""
        alone = len(self._gone | self._nodes | {self.rank}) == self.size
        return (alone and self.size > 1) or not self._thread.is_alive()

    def send_control(self, peer: int, kind: int, number: int = 0) -> None:
        message = _MESSAGE.pack(kind, number)
        with contextlib.suppress(self._mpi.Exception):
            self._controls.append((self.comm.Isend(message, peer, _CONTROL), message))

    def _send_controls(self, kind: int) -> None:
        for peer in set(range(self.size)) - {self.rank} - self._gone:
            self.send_control(peer, kind)

    def close(self) -> None:
        self._wait(
            lambda: (
                not self._work and all(stream.all_sent for stream in list(self._streams.values()))
            )
        )
        self._work.append(lambda: self._send_controls(_BYE))
        self._wait(lambda: not self._work and not self._controls)
        self._ended.set()
        self._thread.join(_LINGER_S)

    def _wait(self, done: Callable[[], bool], limit_s: float = _LINGER_S) -> None:
        deadline = time.monotonic() + limit_s
        while not done() and time.monotonic() < deadline and self._thread.is_alive():
            time.sleep(_PAUSE_S)

    def _run(self) -> None:
        idle = 0
        try:
            while not self._ended.is_set():
                idle = 0 if self._step() else idle + 1
                if idle:
                    self._pause(idle)
        except Exception:
            _LOG.exception("checkpoints by MPI have ended in this process")
        finally:
            for stream in self._streams.values():
                stream.drop()
            self._streams.clear()

    def _step(self) -> bool:
        moved = False
        while self._work:
            self._work[0]()
            self._work.popleft()  # only now: who finds nothing here relies on it being done
            moved = True
        moved |= self._receive_control()
        if self._controls:
            self._controls = [each for each in self._controls if not self._is_sent(each[0])]
        for stream in list(self._streams.values()):
            try:
                moved |= stream.step()
                over = stream.ended
            except self._mpi.Exception as error:  # its peer is dead
                _LOG.warning("rank %d of mpirun: %s", stream.key[0], error.Get_error_string())
                over = True
            if over:
                del self._streams[stream.key]
                stream.drop()
        return moved

    def _is_sent(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception:  # to a dead process
            return True

    def _receive_control(self) -> bool:
        try:
            if not self._listening.Test(self.status):
                return False
            self._handle(self.status.Get_source(), *_MESSAGE.unpack(self._control))
        except self._mpi.Exception as error:
            # A receive from any rank is held up by each death until that is acknowledged (ULFM).
            failed = self.comm.Get_failed()
            ranks = self._mpi.Group.Translate_ranks(failed, None, self.comm.Get_group())
            self._gone |= {int(rank) for rank in ranks}
            self.comm.Ack_failed()
            if error.Get_error_class() == self._mpi.ERR_PROC_FAILED_PENDING:
                return True
        self._listening = self.comm.Irecv(self._control, self._mpi.ANY_SOURCE, _CONTROL)
        return True

    def _handle(self, peer: int, kind: int, number: int) -> None:
        if kind == _OPEN:
            try:
                near, far = socket.socketpair()
            except OSError as error:
                # Out of file descriptors: the peer gives up after a while, the others continue
                _LOG.error("a stream of rank %d cannot be opened: %s", peer, error)
                return
            self._open(peer, number, far, opener=False)
            if self.opened is None:
                near.close()
            else:
                self.opened.put((near, peer))
        elif kind in (_RESET_BY_OPENER, _RESET_BY_OTHER):
            stream = self._streams.get((peer, number, kind == _RESET_BY_OTHER))
            if stream is not None:
                stream.reset()
        elif kind == _SERVE:
            self._nodes.add(peer)
        elif kind == _BYE:
            self._gone.add(peer)

    def _open(self, peer: int, number: int, sock: socket.socket, *, opener: bool) -> None:
        self._streams[peer, number, opener] = _Stream(self, peer, number, sock, opener=opener)

    def _pause(self, idle: int) -> None:
        """Sleep, longer the longer nothing has come; bytes of this process end a longer sleep."""
        if idle < _EAGER_ROUNDS:
            time.sleep(_EAGER_S)
            return
        poll = select.poll()
        for stream in self._streams.values():
            sock, events = stream.awaited()
            if events and sock.fileno() >= 0:
                poll.register(sock, events)
        poll.poll(min(idle // _ROUNDS_PER_MS, _LONGEST_MS))


def carrier() -> MpiTransport:
    """This process's transport; collective at first. Raises MissingExtraError, CheckpointError."""
    with _MAKING:
        return _made()


@cache
def _made() -> MpiTransport:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: it finds no MPI library
        raise MissingExtraError("tiers", "mpi4py", "mpi") from error
    world: Any = MPI.COMM_WORLD
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise CheckpointError(
            "mpi://: MPI was initialized without threads; leave mpi4py.rc.thread_level at"
            " 'multiple'"
        )
    if world.Get_size() > 1 and os.environ.get(_ULFM) != "1":
        _LOG.warning(
            "mpi://: a killed process will end all of them; start with mpirun --with-ft ulfm"
        )
    try:
        comm, request = world.Idup()
        deadline = time.monotonic() + _JOIN_S
        while not request.Test():
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"mpi://: not all {world.Get_size()} processes of mpirun have come to their"
                    f" checkpointer in {_JOIN_S:.0f} s; each of them must name the mpi:// tier, or"
                    " be a memory node"
                )
            time.sleep(_PAUSE_S)
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    except MPI.Exception as error:
        raise CheckpointError(f"mpi://: {error.Get_error_string()}") from error
    made = MpiTransport(comm, MPI)
    atexit.register(made.close)
    return made
