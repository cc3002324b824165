"""``deepvm config``: settings from outside the command line, and their sources."""

from __future__ import annotations

import os
from dataclasses import MISSING
from typing import Any

from deepvm.cli.output import Output, print_named, say
from deepvm.cli.parameters import group, typed
from deepvm.cli.settings import SETTABLE, SettableOption, Setting, read_settings
from deepvm.core.spelling import printable
from deepvm.reports.text import print_text

app = group("Show the settings from the environment and from files.")


@app.command()
def show(output: Output = "table") -> None:
    """Show each setting, its value, and where it was set.

    In order of precedence: an option on the command line, a variable such as
    DEEPVM_CHECKPOINT_SIZE, deepvm.toml in the current folder, the user's own file (DEEPVM_CONFIG
    names another one), the default.
    """
    current = read_settings(os.environ)
    settings = [current.by_name.get(name) or _default(each) for name, each in SETTABLE.items()]

    def table() -> None:
        print_text("config", settings=settings)
        files = [
            f"{printable(path)} ({'read' if exists else 'not there'})"
            for path, exists in current.files.items()
        ]
        say(f"Files: {', '.join(files)}")

    print_named(output, table, "config", {"settings": settings, "files": current.files})


def _default(option: SettableOption) -> Setting:
    value: Any = None
    if option.default is not MISSING:
        value = typed(option.default, option.about)
    return Setting(option.key, value, "default", "default")
