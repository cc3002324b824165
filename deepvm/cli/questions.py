"""Questions to the user, on standard error: what costs money or work is never only assumed."""

import sys

import typer

DECLINED = 1  # Exit code when the answer is no


def has_terminal() -> bool:
    """Whether a person can read a question and answer it."""
    # Either stream is None where whoever started this has closed it
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def confirm(question: str) -> None:
    """Ask for yes or no, no being the default; no ends the command."""
    sys.stdout.flush()
    if not typer.confirm(question, default=False, err=True):
        raise typer.Exit(DECLINED)
