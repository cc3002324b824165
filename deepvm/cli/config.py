"""``deepvm config``: what is set outside the command line, and where."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.cli import settings
from deepvm.cli.output import Output, print_as, say
from deepvm.cli.parameters import group
from deepvm.cli.plan.options import RankFlags
from deepvm.core.spelling import printable

app = group("Show the settings from the environment and from files.")


@app.command()
def show(output: Output = "table") -> None:
    """Show each setting, its value, and where it was set.

    In order of precedence: an option on the command line, a variable such as
    DEEPVM_CHECKPOINT_SIZE, deepvm.toml in the current folder, the user's own file (DEEPVM_CONFIG
    names another one), the default.
    """
    from deepvm.catalog.signals.redaction import secrets_of

    found = settings.read_settings(os.environ)
    secrets = secrets_of(os.environ)

    def masked(value: Any) -> Any:
        if isinstance(value, list):
            return [masked(v) for v in value]
        return "***" if isinstance(value, str) and any(s in value for s in secrets) else value

    defaults = RankFlags(pw=None)  # type: ignore[arg-type]  # the one option without a default
    rows: list[dict[str, Any]] = []
    for name in settings.NAMES:
        default = settings.Setting(name, getattr(defaults, name), "default", "default")
        setting = found.by_name.get(name, default)
        key, value = settings.key_of(name), masked(setting.value)
        rows.append({"key": key, "value": value, "kind": setting.kind, "source": setting.source})
    files = [{"path": path, "found": there} for path, there in found.files.items()]
    document = {"schema_version": "deepvm.config/1", "settings": rows, "files": files}
    print_as(output, lambda: _print_settings(rows, found.files), lambda: document)


def _print_settings(rows: Sequence[Mapping[str, Any]], files: Mapping[str, bool]) -> None:
    from deepvm.reports.tables import Column, print_table

    columns = [Column("setting"), Column("value"), Column("set by", drop=1)]
    cells = [[r["key"], _plain(r["value"]) or "-", _plain(r["source"])] for r in rows]
    print_table(columns, cells, also="-o json")
    looked = ", ".join(
        f"{_plain(path)} ({'read' if there else 'not there'})" for path, there in files.items()
    )
    say(f"Files: {looked}")


def _plain(value: settings.Value | None) -> str:
    """A value as text, with control characters escaped."""
    if isinstance(value, bool):
        value = str(value).lower()
    text = ", ".join(value) if isinstance(value, list) else value or ""
    return printable(text)
