"""Ctrl-C ends the command with exit code 130 and at most one line, at any moment.

Python's own answer, an exception, is right only while a command runs, which may have to tidy up. Where modules are
loaded or taken down it is shown with a traceback, lost, or turned into another exception.

This module is loaded before everything else, so it imports next to nothing.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED = 130


class _Interrupt(KeyboardInterrupt):
    """Not Python's own: where that one has passed through an ``exec()``, though caught, Python ends by the signal."""


class Interrupts:
    """Who answers SIGINT; as a context, while a command runs, where it is a KeyboardInterrupt.

    Attributes:
        heard: whether that has happened; what catches the exception may make another one of it.
    """

    def __init__(self) -> None:
        """Leave the answer to Python."""
        self.heard, self._ours = False, False

    def take(self) -> None:
        """SIGINT ends this process at once, from here to its end, but for the time in the context."""
        try:
            import signal  # this takes a while, of which nothing may be heard either

            # Behind `&` in a script, or from some supervisors, SIGINT is ignored and has to stay so.
            if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                return
            signal.signal(signal.SIGINT, _end)
        except KeyboardInterrupt:
            _end()
        self._ours = True
        # The first one to be registered is called last. Soon after it the interpreter gives the signal back to the
        # system, which would end the process without our exit code although all of its work is done.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        sys.unraisablehook = _unraisable

    def __enter__(self) -> None:
        """Begin to raise."""
        self._answer(self._raise)

    def __exit__(self, *_: object) -> None:
        """End the process at once again."""
        self._answer(_end)

    def _answer(self, answer: Callable[[int, FrameType | None], None]) -> None:
        if self._ours:
            import signal

            signal.signal(signal.SIGINT, answer)

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        self.heard = True
        raise _Interrupt


def _end(_number: int = 0, _frame: FrameType | None = None) -> None:
    try:
        os.write(2, b"Error: interrupted\n")
    finally:  # standard error may be closed
        os._exit(INTERRUPTED)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """A destructor or a callback cannot pass an exception on: Python would show this one and go on with the command."""
    if isinstance(what.exc_value, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(what)
