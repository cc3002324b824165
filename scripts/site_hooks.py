"""MkDocs hooks: README, CONTRIBUTING and CHANGELOG are pages of the site, and links to them work there."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ABOVE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that stand above docs/, and what they are called on the site."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand above docs/."""
    for name, target in ABOVE.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the pages of the site, and leave one word behind each fence."""
    up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)
    for name, target in ABOVE.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{name}", f"]({up}{target}", markdown)
    return re.sub(r"^```(\w+) \w+$", r"```\1", markdown, flags=re.MULTILINE)
