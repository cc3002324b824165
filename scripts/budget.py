"""Print the size of each package in syntax nodes next to its ceiling; exit 1 if one is exceeded.

A syntax node is a node of Python's ``ast``: unlike lines, their number does not fall when code is
packed. Ceilings are in ``pyproject.toml`` under ``tool.deepvm.syntax-nodes``. They only fall: a
package that has become smaller than its ceiling by more than 1 % gets a lower one, with
``python scripts/budget.py --lower``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
SLACK = 1.01


def measured(folder: Path = ROOT / "deepvm") -> Counter[str]:
    """Syntax nodes of each package in ``folder``; modules outside packages count as ``root``."""
    nodes: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        package = parts[0] if len(parts) > 1 else "root"
        nodes[package] += sum(1 for _ in ast.walk(ast.parse(path.read_text())))
    return nodes


def ceilings() -> dict[str, int]:
    """The most syntax nodes that each package may have."""
    table: dict[str, int] = tomllib.loads(PROJECT.read_text())["tool"]["deepvm"]["syntax-nodes"]
    return table


def problems(nodes: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """Packages above their ceiling, far below it, or without one."""
    found = []
    for package, count in sorted(nodes.items()):
        limit = limits.get(package)
        if limit is None:
            found.append(f"{package}: no ceiling in pyproject.toml for its {count} nodes")
        elif count > limit:
            found.append(f"{package}: {count} nodes, {count - limit} above its ceiling")
        elif count * SLACK < limit:
            found.append(f"{package}: {count} nodes: lower its ceiling of {limit}")
    found += [f"{package}: has a ceiling, but no code" for package in set(limits) - set(nodes)]
    return found


def lower(nodes: Mapping[str, int], limits: Mapping[str, int]) -> None:
    """Lower the ceilings in ``pyproject.toml`` to what was measured; none is raised."""
    text = PROJECT.read_text()
    for package, limit in limits.items():
        count = min(nodes.get(package, 0), limit)
        line = f"{package} = {count}\n" if count else ""
        text = re.sub(rf"^{package} = {limit}\n", line, text, flags=re.MULTILINE)
    PROJECT.write_text(text)


def main() -> None:
    """Print the table."""
    nodes = measured()
    if "--lower" in sys.argv[1:]:
        lower(nodes, ceilings())
    limits = ceilings()
    for package, count in nodes.most_common():
        print(f"{package:12} {count:8,} of {limits.get(package, 0):8,} syntax nodes")
    print(f"{'in all':12} {nodes.total():8,} of {sum(limits.values()):8,}")
    found = problems(nodes, limits)
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
