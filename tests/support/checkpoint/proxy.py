"""A connection to a memory node that breaks, or stands still, when a test says so."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Between a tier and a node: cuts one of the connections after so many bytes towards the node,
    or holds all.

    Attributes:
        sent: bytes towards the node. cuts: how many connections are still to be cut. flowing:
            whether none is held.
    """

    def __init__(self, target: tuple[str, int], cut_after: int = 0, cuts: int = 0) -> None:
        self._target, self._left, self.cuts = target, cut_after, cuts
        self.sent = self._held_from = 0
        self.flowing = threading.Event()
        self.flowing.set()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                self._sockets.append(near)
                far = socket.create_connection(self._target)
                self._sockets.append(far)
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if counted and self._over(len(data)):
                    break
                if counted and self.sent > self._held_from:
                    self.flowing.wait()
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the other thread that reads it
            # With bytes unread that resets the connection: else a sender with no window would wait
            # on
            sock.close()

    def _over(self, count: int) -> bool:
        with self._lock:
            self.sent += count
            if self.cuts and self.sent > self._left:
                self.cuts -= 1
                return True
            return False

    def hold_after(self, count: int) -> None:
        """Let nothing through to the node after so many bytes more, until ``flowing`` is set."""
        self._held_from = self.sent + count
        self.flowing.clear()

    def cut_after(self, count: int) -> None:
        """Cut a connection after so many bytes more."""
        with self._lock:
            self._left, self.cuts = self.sent + count, 1

    def close(self) -> None:
        self.flowing.set()
        for sock in self._sockets:
            sock.close()
