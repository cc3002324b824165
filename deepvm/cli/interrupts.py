"""Ctrl-C ends the command with exit code 130 and at most one line, at any moment.

Python's own KeyboardInterrupt is right only while a command runs, which may have to tidy up. While
modules are loaded or taken down it is shown with a traceback, lost, or turned into another
exception. This is loaded first, so it imports next to nothing.
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
    """Not Python's own.

    If that one passes through an ``exec()``, even caught, Python ends by the signal.
    """


class Interrupts:
    """The handler of SIGINT; in its context, while a command runs, it raises KeyboardInterrupt.

    ``heard`` says whether it did: what catches the exception may turn it into another one.
    """

    def __init__(self) -> None:
        """Leave the answer to Python."""
        self.heard = False
        self._ours = False

    def take(self) -> None:
        """End the process at SIGINT, from here to its end, except in the context."""
        try:
            import signal  # takes a while, in which Ctrl-C must not show a traceback either

            # Behind `&` in a script, or from some supervisors, SIGINT is ignored and has to stay
            # so.
            if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                return
            signal.signal(signal.SIGINT, _end)
        except KeyboardInterrupt:
            _end()
        self._ours = True
        # Registered first, called last: soon after it the interpreter restores the system's
        # handler, which would end the process without our exit code although all of its work is
        # done.
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
    """Destructors and callbacks cannot raise.

    Python would show the interrupt and continue the command.
    """
    if isinstance(what.exc_value, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(what)
