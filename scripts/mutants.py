"""Change the product at random places, and see which ring of the tests notices.

    python scripts/mutants.py core planner --count 20 --seed 1

Each mutant is one change of one expression in ``deepvm/PACKAGE``: a comparison, an operator, a
condition, a number or a returned value. The tests that run the changed line, and those that name
its module, run on it, ring by ring, until one fails that passes without the change. Which tests run
which line is measured once, in a run of the rings with coverage (``build/mutants/``; ``--fresh``
measures again). Prints a table, and the share that ring 1 kills.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "build" / "mutants"
SURVIVES, NOT_REACHED = "survives", "no test"
RINGS = {
    "ring 1": "not system and not slow and not gpu",
    "ring 2": "system and not slow and not gpu",
    "ring 3": "slow and not gpu and not alone",
}
_NO_TESTS = 5  # pytest's exit code
_PHASE = re.compile(r"\|(setup|run|teardown)$| \((setup|call|teardown)\)$")
_GROUP = re.compile(r"@[^\]@]*$")  # pytest-xdist's, behind the name of a test
_COVERAGE = """[run]
source = {root}/deepvm
parallel = true
patch = _exit
context = ${{PYTEST_CURRENT_TEST-}}
data_file = {data}
disable_warnings = no-data-collected, module-not-measured, couldnt-parse
"""
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
    lines: range  # of the statement, as far as it was changed
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


def lines_of(tree: ast.Module, node: Any) -> range:
    """From the beginning of the innermost statement around a node to the end of the node."""
    around = [
        statement.lineno
        for statement in ast.walk(tree)
        if isinstance(statement, ast.stmt)
        and statement.lineno <= node.lineno
        and (statement.end_lineno or 0) >= node.end_lineno
    ]
    last = node.test if isinstance(node, ast.If | ast.While) else node
    return range(max(around), last.end_lineno + 1)


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
            lines = lines_of(tree, node)
            text = ast.unparse(ast.fix_missing_locations(_Replace(node, new).visit(tree)))
            _Replace(new, node).visit(tree)
            words = ast.unparse(node).splitlines()[0], ast.unparse(new).splitlines()[0]
            relative = path.relative_to(ROOT)
            sample.append(Mutant(relative, getattr(node, "lineno", 0), lines, *words, text))
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


class Reach:
    """Which tests of a ring run which line, and how long each takes, measured once in a copy.

    Tests that fail there without any change are left out.
    """

    def __init__(self, ring: str, folder: Path) -> None:
        from coverage import CoverageData

        self.ring = ring
        self.seconds: dict[str, float] = {}
        failed = set()
        for line in (folder / "tests.jsonl").read_text().splitlines():
            found = json.loads(line)
            name = plain(found["test"])
            self.seconds[name] = self.seconds.get(name, 0.0) + found["s"]
            if found["failed"]:
                failed.add(name)
        for name in failed:
            del self.seconds[name]
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()

    def tests(self, mutant: Mutant, limit_s: float) -> list[str]:
        """Those that name the module, then those that run the changed lines, the shortest first.

        Of the latter as many as take ``limit_s``.
        """
        files = set(tests_of(mutant.path))
        by_name = {name for name in self.seconds if name.partition("::")[0] in files}
        found = sorted(by_name, key=self.seconds.__getitem__)
        spent_s = 0.0
        for name in sorted(self._running(mutant) - by_name, key=self.seconds.__getitem__):
            spent_s += self.seconds[name]
            if spent_s <= limit_s:
                found.append(name)
        return found

    def _running(self, mutant: Mutant) -> set[str]:
        measured = self._data.measured_files()
        file = next((f for f in measured if f.endswith(f"/{mutant.path}")), None)
        contexts = self._data.contexts_by_lineno(file) if file else {}
        tests = {test_of(c) for line in mutant.lines for c in contexts.get(line, ())}
        return tests & self.seconds.keys()


def plain(name: str) -> str:
    """The name of a test without its group."""
    return _GROUP.sub("", name)


def test_of(context: str) -> str:
    """The test that a context of coverage names, in its process or in one that it starts."""
    return plain(_PHASE.sub("", context))


def measured(ring: str, folder: Path, copied: Path, workers: int) -> Reach:
    """Run a ring with coverage, if that was not done before."""
    if not (folder / "tests.jsonl").exists():
        print(f"{ring}: measuring which tests run which lines, in {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config, data = folder / "coveragerc", folder / "coverage"
        config.write_text(_COVERAGE.format(root=copied, data=data))
        words = [f"--cov-config={config}", "--cov=deepvm", "--cov-context=test", "--cov-report="]
        words += ["-n", str(workers), "--dist", "loadgroup", "-p", "mutants"]
        record = folder / "tests.partial"
        more = {"MUTANTS_RECORD": str(record), "COVERAGE_FILE": str(data)}
        code, out = run_tests(copied, words, ring, None, more)
        if code not in (0, 1):
            sys.exit(out[-2000:])
        record.rename(folder / "tests.jsonl")
    return Reach(ring, folder)


def pytest_configure() -> None:
    """As a plugin of pytest: processes that tests start count too, under the test's name."""
    if "PYTEST_XDIST_WORKER" in os.environ and "MUTANTS_RECORD" in os.environ:
        config = Path(os.environ["MUTANTS_RECORD"]).with_name("coveragerc")
        os.environ["COVERAGE_PROCESS_START"] = str(config)


def pytest_runtest_logreport(report: Any) -> None:
    """As a plugin of pytest: write down how long each test took, and whether it failed."""
    if "PYTEST_XDIST_WORKER" not in os.environ and "MUTANTS_RECORD" in os.environ:
        line = {"test": report.nodeid, "s": report.duration, "failed": report.failed}
        with open(os.environ["MUTANTS_RECORD"], "a") as file:
            file.write(json.dumps(line) + "\n")


@dataclass
class Judge:
    """``copies``: of the repository, one for each mutant that is looked at at a time."""

    copies: queue.Queue[Path]
    reaches: list[Reach]
    timeout_s: float
    limit_s: float

    def __call__(self, mutant: Mutant) -> tuple[str, str]:
        """The ring that kills a mutant and the test; else whether any test runs the line."""
        copied = self.copies.get()
        try:
            return self._verdict(copied, mutant)
        finally:
            self.copies.put(copied)

    def _verdict(self, copied: Path, mutant: Mutant) -> tuple[str, str]:
        module = copied / mutant.path
        original = module.read_text()
        count = 0
        for reach in self.reaches:
            names = reach.tests(mutant, self.limit_s)
            count += len(names)
            module.write_text(mutant.text)
            try:
                failing = self._failing(copied, names, reach)
            except subprocess.TimeoutExpired:
                return reach.ring, "never ends"
            finally:
                module.write_text(original)
            # A test that fails without the change, too, has seen nothing
            if failing and not self._failing(copied, failing, reach):
                return reach.ring, failing[0]
        if count:
            return SURVIVES, f"{count} tests"
        return NOT_REACHED, ""

    def _failing(self, copied: Path, names: list[str], reach: Reach) -> list[str]:
        """The first of these tests that fails; several if it is not known which."""
        for start in range(0, len(names), 500):  # as many as a command line takes
            some = names[start : start + 500]
            limit_s = min(self.timeout_s, 120 + 5 * sum(reach.seconds[name] for name in some))
            code, out = run_tests(copied, ["-x", "-rfE", *some], reach.ring, limit_s, {})
            if code not in (0, _NO_TESTS):
                said = re.findall(r"^(?:FAILED|ERROR) (.+)$", out, re.MULTILINE)
                return [name for name in some if said and said[0].startswith(name)] or some
        return []


def run_tests(
    copied: Path, words: list[str], ring: str, timeout_s: float | None, more: Mapping[str, str]
) -> tuple[int, str]:
    """Pytest's exit code in a copy of the repository, and what it prints."""
    path = os.pathsep.join([str(copied), str(copied / "scripts")])
    environ = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | more
    temporary = copied.with_name("tmp")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", RINGS[ring]]
    # The same examples in each run. Not by the variable CI, for which pytest shows all differences
    # of long values, and takes minutes to find them.
    command.append("--hypothesis-seed=0")
    ended = subprocess.run(
        [*command, f"--basetemp={temporary}", *words],
        cwd=copied,
        env=environ,
        timeout=timeout_s,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return ended.returncode, ended.stdout


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
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of tests for a mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--fresh", action="store_true", help="measure anew which tests run what")
    given = parser.parse_args()
    if given.fresh:
        shutil.rmtree(MEASURED, ignore_errors=True)
    sample = mutants(given.packages, given.count, given.seed)
    rings = [f"ring {number}" for number in given.rings.split(",")]
    killed: dict[str, Counter[str]] = {package: Counter() for package in given.packages}
    with ExitStack() as stack:
        judge = Judge(queue.Queue(), [], given.timeout, given.limit)
        for _ in range(given.jobs):
            folder = tempfile.TemporaryDirectory(prefix="deepvm-mutants-")
            copied = Path(stack.enter_context(folder)) / "copy"
            copy_of_the_repository(copied)
            judge.copies.put(copied)
        for ring in rings:
            place = MEASURED / digest() / ring.replace(" ", "-")
            judge.reaches.append(measured(ring, place, copied, given.jobs + 1))
        verdicts = stack.enter_context(ThreadPoolExecutor(given.jobs)).map(judge, sample)
        for mutant, (result, test) in zip(sample, verdicts, strict=True):
            killed[mutant.path.parts[1]][result] += 1
            print(f"{result:<9} {mutant.title}  {test}", flush=True)
    columns = [*rings, SURVIVES, NOT_REACHED]
    print("".join(f"{word:<14}" for word in ["package", *columns]))
    for package, counts in killed.items():
        print("".join(f"{word!s:<14}" for word in [package, *(counts[c] for c in columns)]))
    total = sum(killed.values(), Counter[str]())
    caught = sum(total[ring] for ring in rings)
    print(f"{sum(total.values())} mutants: {dict(total)}")
    print(f"ring 1 kills {total['ring 1']} of the {caught} that are killed")
    return 0


def digest() -> str:
    """Of the product: where its lines change, what was measured counts no more."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "deepvm").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
