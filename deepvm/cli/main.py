"""The command ``deepvm``: its entry, exit codes, Ctrl-C; the only place that prints errors."""
# Ctrl-C ends the command with exit code 130 and at most one line, at any moment. Python's own
# KeyboardInterrupt is right only while a command runs, which may have to tidy up: while modules are
# loaded or taken down it is shown with a traceback, lost, or turned into another exception.

from __future__ import annotations

import atexit
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

PIPE_CLOSED = 141
INTERRUPTED = 130


class _Interrupt(KeyboardInterrupt):
    """Not Python's own: if that passes through an ``exec()``, the signal ends Python."""


class Interrupts:
    """The handler of SIGINT; while a command runs, it raises KeyboardInterrupt."""

    received = False
    _ours = False

    def take(self) -> None:
        try:
            import signal  # takes a while, in which Ctrl-C must not show a traceback either

            # After `&` in a script, or from some supervisors, SIGINT is ignored and has to stay
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

    def handle(self, handler: Callable[[int, FrameType | None], None]) -> None:
        if self._ours:
            import signal

            signal.signal(signal.SIGINT, handler)

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
        raise _Interrupt


def _end(_number: int = 0, _frame: FrameType | None = None) -> None:
    try:
        os.write(2, b"Error: interrupted\n")
    finally:  # standard error may be closed
        os._exit(INTERRUPTED)


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    if isinstance(error.exc_value, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    interrupts = Interrupts()
    if arguments is None:
        interrupts.take()
        # By default, a short run spends a twentieth of its time looking for garbage
        gc.set_threshold(100_000)
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Removed here, so that it also works after the command, where people add it after a failure.
    debug = "--debug" in words
    words = [w for w in words if w != "--debug"]
    if sys.stdout is None or sys.stderr is None:  # closed by anyone who started this
        closed = "Error: standard output is closed; open it, or redirect it to a file or /dev/null"
        sys.exit(closed if sys.stderr else 1)
    if arguments is None:
        import codecs

        # File names that are no text, and in some locales all but ASCII
        codecs.register_error("deepvm", _escaped)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="deepvm")  # type: ignore[union-attr]
    _leave(_run_reporting(words, debug, interrupts), ours=arguments is None)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json

    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _run_reporting(words: list[str], debug: bool, interrupts: Interrupts) -> int:
    try:
        try:
            interrupts.handle(interrupts.interrupt)
            code = _run(words)
        finally:
            interrupts.handle(_end)
    except BaseException as error:
        if interrupts.received or isinstance(error, KeyboardInterrupt):
            return _interrupted()
        if isinstance(error, BrokenPipeError):
            return PIPE_CLOSED
        if debug:
            from traceback import print_exc

            print_exc()
        return _report(error)
    # An interrupted command may also return instead of raising; nothing has been printed yet.
    if interrupts.received or code == INTERRUPTED:
        return _interrupted()
    return code


def _run(words: list[str]) -> int:
    import typer

    from deepvm.cli.app import app

    try:
        code = typer.main.get_command(app).main(words, prog_name="deepvm", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as end:
        # The option parser exits after shell completion, and when the reader of a pipe is gone; it
        # has then replaced stdout with a wrapper of that name.
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":
            return PIPE_CLOSED
        return int(end.code or 0)
    if isinstance(code, int):
        return code
    return 0


def _report(error: BaseException) -> int:
    from deepvm.cli.parameters import OPTION_NAMES
    from deepvm.errors import DeepVMError, RequestError, missing_extra

    if isinstance(error, ModuleNotFoundError):
        error = missing_extra(error) or error
    if isinstance(error, DeepVMError):
        text = str(error)
        if isinstance(error, RequestError):
            # A name in capitals is an argument, as in the usage line, or a variable of the
            # environment; one with blanks says where a file has the value.
            no_option = error.option.isupper() or " " in error.option
            name = OPTION_NAMES.get(error.option, error.option.replace("_", "-"))
            text = error.about(error.option if no_option else f"--{name}")
        # Notes are from deepvm.cli.settings: who set the value that was refused.
        return _fail("\n".join([text, *getattr(error, "__notes__", ())]), error.exit_code)
    # Usage errors of the option parser; its classes moved between releases of typer, their shape
    # did not.
    exit_code = getattr(error, "exit_code", None)
    if isinstance(exit_code, int) and hasattr(error, "show"):
        return _report_usage(error, exit_code)
    if isinstance(error, OSError):
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}", 1)
    return _fail(
        f"internal error: {type(error).__name__}: {error}\n"
        "This is a bug. Run the command again with --debug and report what it prints.",
        1,
    )


def _report_usage(error: Any, exit_code: int) -> int:
    import re
    from io import StringIO

    stream = StringIO()
    error.show(stream)
    usage, _, message = stream.getvalue().partition("Error: ")
    sys.stderr.write(usage)
    if not message:
        return exit_code
    message = _in_our_form(message.rstrip("\n"))
    if type(error).__name__ == "MissingParameter":
        example = re.search(r"Example: deepvm .*", error.ctx.command.help or "")
        if example:
            message = f"{message} {example[0]}"
    return _fail(message, exit_code)


def _in_our_form(message: str) -> str:
    """Choices as other values are refused, and an answer for options of other planners."""
    import re

    from deepvm.core.options import NOT_MODELED, WHAT_IS_MODELED

    choice = re.fullmatch(
        r"Invalid value for '(-[^']*)': ('.*') is not one of ('.*?')\.(.*)", message
    )
    unknown = re.match(r"No such option: --([\w-]+)", message)
    long_names = tuple(name for name in NOT_MODELED if "-" in name)
    if unknown and unknown[1].startswith(long_names):
        return f"no such option: --{unknown[1]} ({WHAT_IS_MODELED})"
    if not choice:
        return message
    name, value, expected, origin = choice.groups()
    expected = expected.replace("'", "")
    if name == "--method" and value.strip("'") in NOT_MODELED:
        expected = f"{expected}; {WHAT_IS_MODELED}"
    text = f"invalid value for {name}: {value} (expected {expected})"
    if origin:
        text = f"{text}.{origin}"
    return text


def _interrupted() -> int:
    import signal
    from contextlib import suppress

    # Ignore repeated Ctrl-C from here: the interpreter would print a traceback while it exits.
    with suppress(ValueError):  # only the main thread may set handlers
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _fail("interrupted", INTERRUPTED)


def _fail(message: str, code: int) -> int:
    from deepvm.reports.terminal import ERROR, fitted, paint

    first = "Error:"
    lines = fitted(f"{first} {message}", sys.stderr)
    sys.stderr.write(f"{paint(first, ERROR, sys.stderr)}{lines.removeprefix(first)}\n")
    return code


def _leave(code: int, *, ours: bool) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        # What could not be written once must not be tried again by the interpreter's own flush at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or PIPE_CLOSED
    if ours:
        gc.freeze()  # or the interpreter looks through all that is left, a tenth of a short run
    sys.exit(code)


if __name__ == "__main__":
    main()
