"""The command ``deepvm``: the commands, and the only place that prints errors.

Exit codes: 0 done; 1 something unforeseen; 2 wrong usage; 3 nothing feasible; 4 data missing or unreadable; 5 cloud or
network; 130 interrupted; 141 the reader of a pipe went away.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from deepvm.cli.commands import LazyGroup
from deepvm.cli.flags import option_name
from deepvm.errors import DeepVMError, RequestError

INTERRUPTED, PIPE_CLOSED = 130, 141

app = typer.Typer(
    name="deepvm",
    cls=LazyGroup,
    no_args_is_help=True,
    # Plain help: rich's boxes are unreadable in a pipe, and loading them takes longer than everything else.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which cluster of spot and on-demand VMs trains my model fastest for this much money an hour?",
    epilog="Exit codes: 0 done, 1 unforeseen, 2 wrong usage, 3 nothing feasible, 4 data missing or unreadable, "
    "5 cloud or network, 130 interrupted, 141 the reader of a pipe went away.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from deepvm import __version__

        typer.echo(f"deepvm {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when something fails; works anywhere.")
    ] = False,
) -> None:
    """Options that stand before the command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Taken out by hand, so that it also works behind the command, where people add it after a failure.
    debug = "--debug" in words
    words = [w for w in words if w != "--debug"]
    if sys.stdout is None or sys.stderr is None:  # closed by whoever started this
        if sys.stderr is not None:
            sys.stderr.write("Error: standard output is closed; open it, or send it to a file or to /dev/null\n")
        sys.exit(1)
    try:
        code = _run(words)
    except KeyboardInterrupt:
        code = _interrupted()
    except BrokenPipeError:
        code = PIPE_CLOSED
    except DeepVMError as error:
        if debug:
            raise
        # Notes are from deepvm.cli.configured: who set the value that was refused.
        code = _fail("\n".join([_message(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except OSError as error:
        if debug:
            raise
        code = _fail(f"{error.filename or 'standard output'}: {error.strerror or error}", 1)
    except Exception as error:
        if debug:
            raise
        code = _fail(
            f"internal error: {type(error).__name__}: {error}\n"
            "This is a bug. Run the command again with --debug and report what it prints.",
            1,
        )
    _leave(code)


def _run(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(words, prog_name="deepvm", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return _interrupted()
    except SystemExit as end:
        # The option parser leaves by itself after shell completion, and when the reader of a pipe went away; then it
        # has put a wrapper of that name in the place of stdout.
        return PIPE_CLOSED if type(sys.stdout).__name__ == "PacifyFlushWrapper" else int(end.code or 0)
    except Exception as error:
        # Usage errors of the option parser; its classes moved between releases of typer, their shape did not.
        show, exit_code = getattr(error, "show", None), getattr(error, "exit_code", None)
        if show is None or not isinstance(exit_code, int):
            raise
        show(sys.stderr)
        return exit_code
    if code == INTERRUPTED:  # so ends a command that was interrupted; nothing has been said yet
        return _interrupted()
    return code if isinstance(code, int) else 0


def _message(error: DeepVMError) -> str:
    """The text for a person; arguments are called by their option's name."""
    if not isinstance(error, RequestError):
        return str(error)
    # A name in capitals is an argument, as it stands in the usage line, or a variable of the environment.
    name = error.option if error.option.isupper() else f"--{option_name(error.option)}"
    return error.about(name)


def _interrupted() -> int:
    # Who holds the keys down has been heard; the interpreter, on its way out, would show where it is.
    with suppress(ValueError):  # only the main thread may say what signals do
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _fail("interrupted", INTERRUPTED)


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"Error: {message}\n")
    return code


def _leave(code: int) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        # What could not be written once must not be tried again by the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or PIPE_CLOSED
    sys.exit(code)


if __name__ == "__main__":
    main()
