"""Change the product at random places, and see which ring of the tests notices.

    python scripts/mutants.py core planner --count 20 --seed 1

Each mutant is one change of one expression in ``deepvm/PACKAGE``: a comparison, an operator, a
condition, a number or a returned value. The tests that name the mutated module run on it, ring by
ring, until one fails. Prints a table, and the share that ring 1 kills.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RINGS = {
    "ring 1": "not system and not slow and not gpu",
    "ring 2": "system and not slow and not gpu",
    "ring 3": "slow and not gpu and not alone",
}
_NO_TESTS = 5  # pytest's exit code
_OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    path: Path  # relative to the repository
    line: int
    before: str
    after: str
    text: str  # of the whole mutated module

    @property
    def title(self) -> str:
        return f"{self.path}:{self.line}  {self.before[:44]} -> {self.after[:44]}"


def changed(node: ast.AST) -> ast.AST | None:
    """A copy with one change; None where there is nothing to change."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _OPERATORS:
        new.ops[0] = _OPERATORS[type(new.ops[0])]()
    elif isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in _OPERATORS:
        new.op = _OPERATORS[type(new.op)]()
    elif isinstance(new, ast.Constant) and type(new.value) in (int, float):
        new.value += 1
    elif isinstance(new, ast.If | ast.IfExp | ast.While):
        new.test = ast.UnaryOp(ast.Not(), new.test)
    elif isinstance(new, ast.Return) and not _is_none(new.value):
        new.value = ast.Constant(None)
    else:
        return None
    return new


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else super().visit(node)


def candidates(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes inside of functions that can be changed; no annotations, no defaults."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                yield from (n for n in ast.walk(statement) if changed(n) is not None)


def mutants(packages: list[str], count: int, seed: int) -> list[Mutant]:
    """Of each package ``count``, each module as probable as it is long."""
    chance, sample = random.Random(seed), []
    for package in packages:
        modules = [(path, ast.parse(path.read_text())) for path in _modules(package)]
        every = [(path, tree, node) for path, tree in modules for node in candidates(tree)]
        for path, tree, node in chance.sample(every, min(count, len(every))):
            new = changed(node)
            assert new is not None
            ast.copy_location(new, node)
            text = ast.unparse(ast.fix_missing_locations(_Replace(node, new).visit(tree)))
            _Replace(new, node).visit(tree)
            words = ast.unparse(node).splitlines()[0], ast.unparse(new).splitlines()[0]
            sample.append(Mutant(path.relative_to(ROOT), getattr(node, "lineno", 0), *words, text))
    return sample


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / "deepvm" / package).rglob("*.py"))


def tests_of(module: Path) -> list[str]:
    """Test files that name the module, and those of the folder that mirrors its own."""
    dotted = ".".join(module.with_suffix("").parts)
    words = (dotted, f"from {dotted.rpartition('.')[0]} import {module.stem}")
    mirror = Path("tests", *module.parts[1:-1])
    files = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(word in path.read_text() for word in words)
    ]
    files += [
        path.relative_to(ROOT)
        for path in sorted((ROOT / mirror).glob("test_*.py"))
        if module.stem in path.stem
    ]
    return [str(path) for path in dict.fromkeys(files)] or [str(mirror)]


def killer(copied: Path, mutant: Mutant, rings: list[str], timeout_s: float) -> str:
    """The first ring of which a test fails, or ``""``."""
    module = copied / mutant.path
    original = module.read_text()
    module.write_text(mutant.text)
    try:
        for ring in rings:
            if fails(copied, tests_of(mutant.path), RINGS[ring], timeout_s):
                return ring
        return ""
    finally:
        module.write_text(original)


def fails(copied: Path, tests: list[str], marks: str, timeout_s: float) -> bool:
    """Whether one of these tests fails, or never ends."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks]
    environ = os.environ | {"PYTHONPATH": str(copied), "OMP_NUM_THREADS": "1", "CI": "true"}
    try:
        ended = subprocess.run(
            [*command, *tests],
            cwd=copied,
            env=environ,
            timeout=timeout_s,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode not in (0, _NO_TESTS)


def copy_of_the_repository(to: Path) -> None:
    """All tracked files, as they are in the working tree."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def main() -> int:
    """Print a row for each mutant, and the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--count", type=int, default=10, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rings", default="1,2", help="such as 1,2,3")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a ring")
    given = parser.parse_args()
    rings = [f"ring {number}" for number in given.rings.split(",")]
    with tempfile.TemporaryDirectory(prefix="deepvm-mutants-") as folder:
        copied = Path(folder)
        copy_of_the_repository(copied)
        killed = Counter[str]()
        for mutant in mutants(given.packages, given.count, given.seed):
            ring = killer(copied, mutant, rings, given.timeout)
            killed[ring] += 1
            print(f"{ring or 'survives':<9} {mutant.title}", flush=True)
    total = sum(killed.values())
    caught = total - killed[""]
    print(f"{total} mutants: {dict(killed)}")
    print(f"ring 1 kills {killed['ring 1']} of the {caught} that are killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
