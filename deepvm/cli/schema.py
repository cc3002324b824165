"""``deepvm schema``: JSON Schemas of the documents that commands print, and of files."""

from __future__ import annotations

from deepvm.cli.output import print_document
from deepvm.cli.parameters import arg


def schema(
    name: str = arg(
        "[NAME]",
        "Such as recommend; without one, all are listed.",
        "",
        complete="complete_document",
    ),
) -> None:
    """Print the JSON Schema of a document that a command prints, or of a file.

    Each value with its unit.

    NAME is what stands in the document's schema_version: deepvm.NAME/1. YAML holds the same.

    Example: deepvm schema recommend
    """
    from deepvm.services.schemas import DOCUMENTS, described

    if name:
        print_document(described(name).schema(name))
        return
    from deepvm.reports.text import print_text

    print_text("schemas", documents=DOCUMENTS)
