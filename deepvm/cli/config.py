"""``deepvm config``: what is set outside the command line, and where."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import typer

from deepvm.cli import settings
from deepvm.cli.output import TableJson, note, print_document, say

SCHEMA_VERSION = "deepvm.config/1"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show the settings from the environment and from files.",
)


@app.callback()
def _group() -> None:
    """Without a callback, a group of one command would be that command."""


@app.command()
def show(
    output: TableJson = "table",
) -> None:
    """Show each setting, its value, and who set it.

    The strongest first: an option on the command line, a variable such as DEEPVM_CHECKPOINT_SIZE, deepvm.toml in the
    current folder, the user's own file (DEEPVM_CONFIG names another one), the default.
    """
    from deepvm.catalog.clouds import REGISTRY

    found = settings.read_settings(os.environ)
    secrets = [s for cloud in REGISTRY.values() for s in cloud.secrets_of(os.environ)]
    rows = [_row(name, found.by_name.get(name), secrets) for name in settings.names()]
    files = [{"path": p.path, "found": p.found} for p in found.places]
    for variable, meant in found.misspelt.items():
        note(f"the environment variable {variable} has no effect; did you mean {meant}?")
    if output == "json":
        print_document({"schema_version": SCHEMA_VERSION, "settings": rows, "files": files})
        return
    from deepvm.reports.tables import Column, print_table

    columns = [Column("setting"), Column("value"), Column("set by", drop=1)]
    print_table(columns, [[r["key"], _cell(r["value"]), _plain(r["source"])] for r in rows], also="-o json")
    looked = ", ".join(f"{_plain(p.path)} ({'read' if p.found else 'not there'})" for p in found.places)
    say(f"Files: {looked}")


def _row(name: str, setting: settings.Setting | None, secrets: Iterable[str]) -> dict[str, Any]:
    value = settings.default_of(name) if setting is None else setting.value
    return {
        "key": settings.key_of(name),
        "value": [_safe(v, secrets) for v in value] if isinstance(value, list) else _safe(value, secrets),
        "kind": "default" if setting is None else setting.kind,
        "source": "default" if setting is None else setting.source,
    }


def _safe(value: str | bool | None, secrets: Iterable[str]) -> str | bool | None:
    """The value, masked if it contains a secret from the environment."""
    return "***" if isinstance(value, str) and any(len(s) >= 4 and s in value for s in secrets) else value


def _cell(value: settings.Value | None) -> str:
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return _plain(value if isinstance(value, str) else ", ".join(value))


def _plain(text: str) -> str:
    """The text with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
