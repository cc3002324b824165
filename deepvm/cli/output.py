"""What commands print: answers on stdout, messages for people on stderr."""

import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from deepvm.cli.parameters import opt
from deepvm.core.options import OUTPUT

_output = partial(typer.Option, "--output", "-o", metavar="FORM", rich_help_panel=OUTPUT)
Output = Annotated[
    Literal["table", "json", "yaml", "csv"], _output(help="table, json, yaml or csv.")
]
OutputOrWide = Annotated[
    Literal["table", "wide", "json", "yaml", "csv"], _output(help="table, wide, json, yaml or csv.")
]
OutputOrPage = Annotated[
    Literal["table", "wide", "json", "yaml", "csv", "html"],
    _output(help="table, wide, json, yaml, csv, or html: a page."),
]
OutputOrJobPage = Annotated[
    Literal["table", "json", "yaml", "csv", "html"],
    _output(help="table, json, yaml, csv, or html: a page."),
]

Rows = tuple[Sequence[str], Sequence[Sequence[Any]]]  # A header and rows of a CSV


def utc_now() -> datetime:
    """The moment from which a command counts ages."""
    return datetime.now(timezone.utc)


def say(text: str) -> None:
    """Print a message on stderr, wrapped to the terminal; flushes stdout first, for the order."""
    from deepvm.reports.terminal import fitted

    sys.stdout.flush()
    sys.stderr.write(f"{fitted(text, sys.stderr)}\n")


def warn(text: str) -> None:
    """Print a warning on stderr; in color on a terminal."""
    from deepvm.reports.terminal import WARNING, fitted, paint

    sys.stdout.flush()
    sys.stderr.write(f"{paint(fitted(f'warning: {text}', sys.stderr), WARNING, sys.stderr)}\n")


def note(text: str) -> None:
    """Print a message that starts with ``Note:``."""
    say(f"Note: {text}")


def print_document(document: Any, output: str = "json") -> None:
    """Print a document as ``json`` or ``yaml``, or a header and rows as ``csv``."""
    from deepvm.reports import documents

    if output == "csv":
        text = documents.to_csv(*document)
    elif output == "yaml":
        text = documents.to_yaml(document)
    else:
        text = documents.to_json(document)
    sys.stdout.write(text)


def print_as(
    output: str,
    table: Callable[[], None],
    document: Callable[[], Any],
    csv: Callable[[], Rows] | None = None,
    *,
    name: str = "",
) -> None:
    """Print an answer in the form that ``--output`` names."""
    if output == "table":
        table()
    elif csv and output == "csv":
        print_document(csv(), "csv")
    elif output == "csv":
        from deepvm.services.schemas import rows_of

        print_document(rows_of(document(), name), "csv")
    else:
        print_document(document(), output)


def print_named(
    output: str,
    table: Callable[[], None],
    name: str,
    values: Any,
    csv: Callable[[], Rows] | None = None,
) -> None:
    """As :func:`print_as`, with the document of a name, made of objects with its values."""

    def document() -> Any:
        from deepvm.documents.build import document_of
        from deepvm.services.schemas import described

        return document_of(described(name).kind, values)

    print_as(output, table, document, csv, name=name)


def text(template: str, **data: Any) -> Callable[[], None]:
    """A function that prints ``reports/templates/TEMPLATE.txt.j2``."""

    def table() -> None:
        from deepvm.reports.text import print_text

        print_text(template, **data)

    return table


def plot_of(subject: str) -> Any:
    """The option ``--plot``; a picture that cannot be drawn is refused before any work is done."""
    help = f"Also draw {subject}, as .png or .svg."
    return opt("", help, "FILE", callback=_checked, rich_help_panel=OUTPUT)


def _checked(plot: str) -> str:
    if plot:
        from deepvm.reports.pictures import check_picture

        check_picture(Path(plot))
    return plot


def draw(plot: str, figure: Callable[[], Any]) -> None:
    """Write the picture that ``--plot`` names, if any; ``figure`` makes a matplotlib figure."""
    if plot:
        from deepvm.reports.pictures import save_picture

        save_picture(figure(), Path(plot))
