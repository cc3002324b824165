"""What commands print: answers on stdout, messages for people on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer

_OUTPUT = typer.Option("--output", "-o", help="Output format.")
TableJson = Annotated[Literal["table", "json"], _OUTPUT]
TableJsonCsv = Annotated[Literal["table", "json", "csv"], _OUTPUT]
TableJsonYaml = Annotated[Literal["table", "json", "yaml"], _OUTPUT]
TableJsonYamlCsv = Annotated[Literal["table", "json", "yaml", "csv"], _OUTPUT]
EveryForm = Annotated[Literal["table", "wide", "json", "yaml", "csv"], _OUTPUT]


def say(text: str) -> None:
    """Print a message, after what was already written to stdout."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def note(text: str) -> None:
    """Print something worth knowing."""
    say(f"Note: {text}")


def print_document(document: Any, output: str = "json") -> None:
    """Print a document as ``json`` or ``yaml``."""
    from deepvm.reports import documents

    sys.stdout.write(documents.to_yaml(document) if output == "yaml" else documents.to_json(document))


def print_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as CSV."""
    from deepvm.reports.documents import to_csv

    sys.stdout.write(to_csv(header, rows))


def print_as(
    output: str,
    table: Callable[[], None],
    document: Callable[[], Any],
    csv: Callable[[], tuple[Sequence[str], Sequence[Sequence[Any]]]] | None = None,
) -> None:
    """Print an answer in the form that ``--output`` names; ``csv`` makes header and rows."""
    if output == "table":
        table()
    elif output == "csv" and csv is not None:
        print_csv(*csv())
    else:
        print_document(document(), output)


def check_plot(path: str) -> None:
    """Refuse a picture that cannot be drawn, before any work is done; an empty path is no picture.

    Raises:
        RequestError: neither .png nor .svg, or no such folder. MissingExtraError: matplotlib is not installed.
    """
    from pathlib import Path

    if path:
        from deepvm.reports.pictures import check_picture

        check_picture(Path(path))
