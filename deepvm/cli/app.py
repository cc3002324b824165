"""The commands of ``deepvm`` as the option parser sees them."""

from __future__ import annotations

from typing import Annotated

import typer

from deepvm.cli.lazy_group import LazyGroup

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
