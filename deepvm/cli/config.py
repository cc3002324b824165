"""``deepvm config``: what is set outside the command line, and where."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from deepvm.cli import settings
from deepvm.cli.output import Output, print_as, say
from deepvm.cli.parameters import group, typed
from deepvm.core.spelling import printable

app = group("Show the settings from the environment and from files.")


@app.command()
def show(output: Output = "table") -> None:
    """Show each setting, its value, and where it was set.

    In order of precedence: an option on the command line, a variable such as
    DEEPVM_CHECKPOINT_SIZE, deepvm.toml in the current folder, the user's own file (DEEPVM_CONFIG
    names another one), the default.
    """
    found = settings.read_settings(os.environ)
    rows: list[dict[str, Any]] = []
    for name, each in settings.SETTABLE.items():
        default: Any = None
        if each.default is not MISSING:
            default = typed(each.default, each.about)
        setting = found.by_name.get(name, settings.Setting(name, default, "default", "default"))
        row = {"key": setting.key, "value": setting.value, "kind": setting.kind}
        rows.append({**row, "source": setting.source})
    files = [{"path": path, "found": there} for path, there in found.files.items()]
    document = {"schema_version": "deepvm.config/1", "settings": rows, "files": files}
    print_as(output, lambda: _print_settings(rows, found.files), lambda: document)


def _print_settings(rows: Sequence[Mapping[str, Any]], files: Mapping[str, bool]) -> None:
    from deepvm.reports.text import print_text

    print_text("config", settings=rows)
    looked = [
        f"{printable(path)} ({'read' if there else 'not there'})" for path, there in files.items()
    ]
    say(f"Files: {', '.join(looked)}")
