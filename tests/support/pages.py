"""The pages of the project, and the blocks in them."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from deepvm.cli.app import COMMANDS, load
from deepvm.cli.main import main
from support.places import ROOT

PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        *sorted(ROOT.glob("docs/**/*.md")),
    )
}


def text_of(page: str) -> str:
    return PAGES[page].read_text()


def blocks(page: str, info: str) -> list[str]:
    """What stands in the fences of a page behind which exactly this is written, such as ``python
    training``.
    """
    return re.findall(rf"^```{info}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def pages_with(*infos: str) -> list[str]:
    return [page for page in PAGES if any(blocks(page, info) for info in infos)]


def commands(page: str, info: str) -> list[str]:
    """The commands ``deepvm ...`` of the shell blocks, in the order of the page, without their
    comments; lines that end with a backslash are joined.
    """
    lines = [
        line.split("  #")[0].strip()
        for block in blocks(page, info)
        for line in re.sub(r"\\\n\s*", "", block).splitlines()
    ]
    return [line for line in lines if line.startswith("deepvm ")]


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command)[1:])
    out, _ = capsys.readouterr()
    assert end.value.code == 0, command
    return out


def options_of(line: str) -> tuple[set[str], list[str]]:
    """The options that the command of a line knows, and those that the line gives."""
    name, *words = shlex.split(line.partition(" -- ")[0])[1:]  # what follows is another command
    command: Any = load(next(entry for entry in COMMANDS if entry.name == name))
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", None), f"{line}: no such command"
    known = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return known, [word.partition("=")[0] for word in words if word.startswith("-")]
