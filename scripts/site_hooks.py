"""MkDocs hooks: README, CONTRIBUTING, CHANGELOG and linked modules are part of the site."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ABOVE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Pages that stand above docs/, and what they are called on the site."""
MODULE = re.compile(r"\]\(\.\./\.\./(deepvm/[\w/]+\.py)\)")
"""A link from docs/internals/ to a module, which the site serves as a text file."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand above docs/, and the modules that pages link."""
    for name, target in ABOVE.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, target, content=text))
    for name in {
        name
        for page in (ROOT / "docs" / "internals").glob("*.md")
        for name in MODULE.findall(page.read_text())
    }:
        files.append(File.generated(config, f"{name}.txt", content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the pages of the site, and leave one word behind each fence."""
    up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)
    for name, target in ABOVE.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{name}", f"]({up}{target}", markdown)
    markdown = MODULE.sub(r"](../\1.txt)", markdown)
    return re.sub(r"^```(\w+) .+$", r"```\1", markdown, flags=re.MULTILINE)
