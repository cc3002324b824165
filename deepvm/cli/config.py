"""``deepvm config``: settings from outside the command line, and their sources."""

import os
from dataclasses import MISSING

from deepvm.cli.output import Output, print_named, say, text
from deepvm.cli.parameters import group, typed
from deepvm.cli.settings import SETTABLE, Setting, read_settings
from deepvm.core.spelling import printable

app = group("Show the settings from the environment and from files.")


@app.command()
def show(output: Output = "table") -> None:
    """Show each setting, its value, and where it was set.

    In order of precedence: an option on the command line, a variable such as
    DEEPVM_CHECKPOINT_SIZE, deepvm.toml in the current folder, the user's own file (DEEPVM_CONFIG
    names another one), the default.
    """
    current = read_settings(os.environ)
    settings = []
    for name, (about, key, _, default) in SETTABLE.items():
        value = None
        if default is not MISSING:
            value = typed(default, about)
        settings.append(current.by_name.get(name) or Setting(key, value, "default", "default"))

    def table() -> None:
        text("config", settings=settings)()
        files = [
            f"{printable(path)} ({'read' if exists else 'not there'})"
            for path, exists in current.files.items()
        ]
        say(f"Files: {', '.join(files)}")

    print_named(output, table, "config", {"settings": settings, "files": current.files})
