"""Questions to the user, on standard error: what costs money or work is never only assumed."""

import sys
from collections.abc import Sequence

import typer

DECLINED = 1  # Exit code when the answer is no


def has_terminal() -> bool:
    """Whether a person can read a question and answer it."""
    # Either stream is None where anyone who started this has closed it
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def chosen(question: str, answers: Sequence[str]) -> str:
    """One of some words, of which a person types enough to tell; the last is the default."""
    sys.stdout.flush()
    text = f"{question} [{'/'.join(answers[:-1])}/{answers[-1].upper()}]"
    while True:
        typed = typer.prompt(text, default=answers[-1], show_default=False, err=True)
        meant = [answer for answer in answers if answer.startswith(str(typed).strip().lower())]
        if len(meant) == 1:
            return meant[0]


def confirm(question: str) -> None:
    """Ask for yes or no, no being the default; no ends the command."""
    sys.stdout.flush()
    if not typer.confirm(question, default=False, err=True):
        raise typer.Exit(DECLINED)
