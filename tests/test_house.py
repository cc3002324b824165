"""The structure of deepvm: layers, places of third-party libraries, a light public API, and tests
that mirror the packages.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import budget
import pytest
import wording
from support.imports import found_in, loads, parsed, statements

import deepvm
from deepvm.catalog.price_sources import SOURCES
from deepvm.checkpoint import _HOMES as CHECKPOINT_HOMES
from deepvm.checkpoint.tiers.registry import TIERS
from deepvm.cli.app import COMMANDS
from deepvm.cli.help.completion import TABLES as NAME_TABLES
from deepvm.exporters.registry import REGISTRY
from deepvm.jobs.clouds.registry import CLOUDS as JOB_CLOUDS
from deepvm.lab.launchers.launcher_registry import LAUNCHERS
from deepvm.lab.registry import FAULTS, STRATEGIES
from deepvm.reports.reproduction.papers import PAPERS

pytestmark = pytest.mark.xdist_group("house")  # one process reads all files, once
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "deepvm"

LAYERS = {
    "records": 0,
    "errors": 1,
    "core": 2,
    "io": 2,
    "documents": 3,
    "planner": 4,
    "catalog": 4,
    "checkpoint": 4,
    "training": 4,
    "profiling": 5,
    "simulator": 5,
    "jobs": 6,
    "lab": 7,
    "services": 8,
    "reports": 9,
    "exporters": 9,
    "cli": 10,
    "__main__": 11,
}
PLACES = {
    # library: the only places (files or folders below deepvm/) that may import it; each of them
    # does
    "pulp": ["planner/search/ilp.py"],
    "highspy": ["planner/search/ilp.py"],
    "boto3": ["catalog/clouds/aws/", "checkpoint/tiers/s3.py"],
    "botocore": ["catalog/clouds/aws/", "checkpoint/tiers/s3.py"],
    "jmespath": ["catalog/clouds/aws/"],
    "fsspec": ["checkpoint/tiers/cloud.py"],
    "torch": ["checkpoint/", "jobs/agent/warm.py", "lab/", "profiling/"],
    "jinja2": [
        "checkpoint/node/server.py",
        "exporters/base.py",
        "reports/compiled_templates.py",
        "reports/pages.py",
    ],
    "markupsafe": ["reports/pages.py"],
    "isal": ["checkpoint/format/"],
    "safetensors": ["checkpoint/files/export.py", "lab/certify/attempt.py"],
    "torchsnapshot": ["profiling/checkpoint/bench.py"],
    "accelerate": ["checkpoint/integrations/accelerate.py", "checkpoint/integrations/session.py"],
    "lightning": ["checkpoint/integrations/lightning.py"],
    "transformers": ["checkpoint/integrations/huggingface.py"],
    "mpi4py": ["profiling/saturation/", "checkpoint/network/mpi_streams.py"],
    "typer": ["cli/"],
    "rich": ["reports/", "cli/"],
    "pandas": ["reports/forms.py", "core/answer.py"],
    "pydantic": [
        "documents/",
        "catalog/public/offers.py",
        "jobs/controller/messages.py",
        "jobs/jobfile.py",
        "lab/matrix.py",
        "lab/records.py",
    ],
    "scipy": ["core/", "profiling/fit/", "simulator/traces/"],
    "numpy": [
        "core/",
        "services/open_catalogs.py",
        "planner/",
        "catalog/",
        "profiling/",
        "simulator/",
        "lab/",
        "reports/",
    ],
    "matplotlib": ["reports/"],
    "sqlalchemy": ["jobs/history/history.py"],
    "starlette": ["jobs/controller/api.py", "reports/web/"],
    "uvicorn": ["jobs/controller/api.py", "reports/web/site.py"],
    "yaml": ["exporters/base.py", "reports/", "documents/formats/yaml.py"],
    "distributed": ["simulator/monte_carlo.py"],
    "platformdirs": ["io/"],
    "tomli": ["cli/settings.py"],
    "tomllib": ["cli/settings.py"],  # of the standard library from 3.11 on
}
REGISTRIES = {
    # module below deepvm/: what it loads by names that it keeps in a table
    "__init__.py": set(deepvm._HOMES.values()),
    "cli/app.py": {f"deepvm.cli.{entry.module}" for entry in COMMANDS},
    "cli/help/completion.py": {
        place.partition(":")[0]
        for places in NAME_TABLES.values()
        for place in places
        if ":" in place
    },
    "catalog/public/public_market.py": {f"deepvm.catalog.public.{name}" for name in SOURCES},
    "checkpoint/__init__.py": set(CHECKPOINT_HOMES.values()),
    "checkpoint/tiers/registry.py": {home.partition(":")[0] for home in TIERS.values()},
    "exporters/registry.py": {
        home.partition(":")[0] for tool in REGISTRY.values() for home in tool.exporters
    },
    "reports/reproduction/papers.py": {
        f"deepvm.reports.reproduction.{name}_figures" for name in PAPERS
    },
    "jobs/clouds/registry.py": {home.partition(":")[0] for home in JOB_CLOUDS.values()},
    "lab/registry.py": {
        home.partition(":")[0] for homes in (FAULTS, STRATEGIES) for home in homes.values()
    },
    "lab/launchers/launcher_registry.py": {home.partition(":")[0] for home in LAUNCHERS.values()},
}
USERS_OWN = {"profiling/workload/models.py"}
"""Modules that load what the user names: a model as ``module:function``."""
# pydantic.main, not pydantic: typer imports the empty front of it, which costs nothing.
SLOW_LIBRARIES = {
    "numpy",
    "pandas",
    "scipy",
    "pulp",
    "highspy",
    "boto3",
    "torch",
    "pydantic.main",
    "matplotlib",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def below(path: Path) -> str:
    """A module's path below deepvm/."""
    return path.relative_to(PACKAGE).as_posix()


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether it stands at the top of the module) of every import, and of all that is
    loaded by name.
    """
    written, loaded = found_in(path)
    yield from written
    yield from ((name, False) for name in (*loaded, *REGISTRIES.get(below(path), ())) if name)


def package_of(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def arrow_is_wrong(source: Path, name: str) -> bool:
    """Whether an import of one of our modules does not run downward, given the importing file below
    deepvm/.
    """
    parts = name.split(".")
    here = package_of(source.parts)
    if parts[0] != "deepvm" or len(parts) == 1 or here == "__init__":
        # The public API may name everything, because it imports a name when it is first used
        return False
    there = parts[1]
    if there not in LAYERS:
        return there in deepvm._HOMES  # a public name is a way up from any layer
    return here != there and LAYERS[there] >= LAYERS[here]


def place_is_wrong(source: Path, name: str) -> bool:
    """Whether a third-party library is imported outside its place."""
    library = name.split(".")[0]
    if library in sys.stdlib_module_names or library in ("deepvm", "__future__"):
        return False
    return not any(source.as_posix().startswith(place) for place in PLACES.get(library, []))


def wrong_arrows() -> list[tuple[str, str]]:
    """(module, what it imports) of every import that does not run downward."""
    return [
        (below(p), n)
        for p in modules()
        for n, _ in imports(p)
        if arrow_is_wrong(p.relative_to(PACKAGE), n)
    ]


def wrong_places() -> list[tuple[str, str]]:
    """(module, what it imports) of every third-party library outside its place."""
    return [
        (below(p), n)
        for p in modules()
        for n, _ in imports(p)
        if place_is_wrong(p.relative_to(PACKAGE), n)
    ]


def unused(places: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """(library, place) of every place that does not import its library."""
    used = {(n.split(".")[0], below(p)) for p in modules() for n, _ in imports(p)}
    return [
        (library, place)
        for library, allowed in places.items()
        for place in allowed
        if not any(name == library and path.startswith(place) for name, path in used)
    ]


def test_every_package_has_a_layer() -> None:
    packages = {package_of(p.relative_to(PACKAGE).parts) for p in modules()} - {"__init__"}
    assert packages <= set(LAYERS)


def test_the_public_api_imports_nothing_by_itself() -> None:
    """Until the command line hears Ctrl-C, it is a traceback."""
    first = [PACKAGE / "__init__.py", PACKAGE / "cli" / "__init__.py", PACKAGE / "cli" / "main.py"]
    found = {n for p in first for n, at_top in imports(p) if at_top}
    assert found <= {"__future__.annotations", "atexit", "gc", "os", "sys"}


def test_classes_are_made_by_the_faster_decorator() -> None:
    name = "dataclasses.dataclass"
    users = {p.name for p in modules() if any(imported == name for imported, _ in imports(p))}
    assert users == {"records.py"}


def test_imports_run_downward() -> None:
    assert not wrong_arrows()


def test_third_party_libraries_stay_in_their_places() -> None:
    assert not wrong_places()


def test_each_place_is_used() -> None:
    assert not unused(PLACES)


def test_a_place_that_is_not_used_is_seen() -> None:
    places = {
        "pandas": ["reports/", "catalog/"],
        "requests": ["io/"],
        "torchsnapshot": ["profiling/"],
    }
    assert unused(places) == [("pandas", "catalog/"), ("requests", "io/")]


def test_what_is_loaded_by_a_computed_name_stands_in_a_table() -> None:
    assert {below(p) for p in modules() if "" in found_in(p)[1]} == {*REGISTRIES, *USERS_OWN}


def test_tables_name_modules_that_exist() -> None:
    assert not set().union(*REGISTRIES.values()) - {dotted(p) for p in modules()}


def test_a_load_by_name_is_seen() -> None:
    for code, found in [
        ("import_module('pandas')", ["pandas"]),
        (
            "def f():\n    return importlib.import_module('deepvm.cli.main').main",
            ["deepvm.cli.main"],
        ),
        ("__import__('torch')", ["torch"]),
        ("pkgutil.resolve_name('deepvm.io.user_dirs:read_data')", ["deepvm.io.user_dirs"]),
        ("import_module(HOMES[name])", [""]),
        ("import_module(f'deepvm.{name}')", [""]),
        ("importlib.util.find_spec('torch')", []),
    ]:
        assert list(loads(ast.parse(code))) == found


def test_a_wrong_entry_of_a_table_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    table = "checkpoint/tiers/registry.py"
    monkeypatch.setitem(
        REGISTRIES, table, {*REGISTRIES[table], "deepvm.reports.terminal", "requests"}
    )
    assert wrong_arrows() == [(table, "deepvm.reports.terminal")] and wrong_places() == [
        (table, "requests")
    ]


def test_a_cycle_through_a_table_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "deepvm.exporters.skypilot" in arrows()["deepvm.exporters.registry"]
    monkeypatch.setitem(REGISTRIES, "exporters/options.py", {"deepvm.exporters.base"})
    monkeypatch.setitem(REGISTRIES, "exporters/base.py", {"deepvm.exporters.options"})
    assert cycles(arrows()) == [{"deepvm.exporters.options", "deepvm.exporters.base"}]


def test_a_wrong_arrow_is_seen() -> None:
    for source, name in [
        ("core/units.py", "deepvm.planner.request"),
        ("core/units.py", "deepvm.io.user_dirs"),
        ("planner/search/ilp.py", "deepvm.catalog.store"),
        ("catalog/store.py", "deepvm.planner.request"),
        ("planner/request.py", "deepvm.cli.main"),
        ("errors.py", "deepvm.core.units"),
        ("core/units.py", "deepvm.recommend"),
    ]:
        assert arrow_is_wrong(Path(source), name)


def test_a_library_outside_its_place_is_seen() -> None:
    for source, name in [
        ("planner/search/enumeration.py", "pulp"),
        ("core/units.py", "pydantic"),
        ("cli/main.py", "boto3"),
        ("core/units.py", "requests"),
        ("planner/request.py", "pandas"),
        ("cli/main.py", "pydantic"),
        ("profiling/checkpoint/node_bench.py", "torchsnapshot"),
    ]:
        assert place_is_wrong(Path(source), name)


def test_the_core_keeps_scipy_inside_functions() -> None:
    assert not [
        (str(p), n)
        for p in (PACKAGE / "core").rglob("*.py")
        for n, top in imports(p)
        if top and "scipy" in n
    ]


def test_the_core_has_no_clock_no_environment_no_files() -> None:
    impure = {"os", "time", "random", "socket", "subprocess", "pathlib", "io", "logging", "sys"}
    found = [
        (str(p), n)
        for p in (PACKAGE / "core").rglob("*.py")
        for n, _ in imports(p)
        if n.split(".")[0] in impure
    ]
    assert not found
    clocks = [
        str(p)
        for p in (PACKAGE / "core").rglob("*.py")
        if ".today(" in p.read_text() or ".now(" in p.read_text()
    ]
    assert not clocks


def loaded(code: str) -> set[str]:
    """Modules in memory after running ``code`` in a fresh interpreter."""
    script = f"import sys, json\ntry:\n    {code}\nexcept SystemExit:\n    pass\n"
    script += "print(); print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(out.stdout.splitlines()[-1]))


def test_help_loads_nothing_slow() -> None:
    for words in [
        ["--help"],
        ["recommend", "--help"],
        ["sweep", "--help"],
        ["catalog", "--help"],
        ["--version"],
    ]:
        assert (
            loaded(f"from deepvm.cli.main import main; main({words!r})") & SLOW_LIBRARIES == set()
        )


def test_importing_the_package_loads_nothing_slow() -> None:
    assert loaded("import deepvm") & (SLOW_LIBRARIES | {"typer", "rich"}) == set()


def test_an_embedded_recommendation_loads_only_what_it_needs() -> None:
    unneeded = {"pandas", "scipy", "boto3", "torch", "pydantic.main", "matplotlib", "yaml"}
    assert (
        loaded("from deepvm.cli.main import main; main(['recommend', '--pw', '3'])") & unneeded
        == set()
    )


def test_public_names_are_sorted_lazy_and_real() -> None:
    assert deepvm.__all__ == sorted(deepvm.__all__)
    assert set(deepvm.__all__) == set(deepvm._HOMES)
    for name in deepvm.__all__:
        assert getattr(deepvm, name).__doc__
    with pytest.raises(AttributeError):
        _ = deepvm.no_such_name
    assert dir(deepvm) == deepvm.__all__


def test_each_package_stays_within_its_budget() -> None:
    assert not budget.problems(budget.measured(), budget.ceilings())


def test_a_package_beyond_its_budget_is_reported(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "module.py").write_text("a = 1\n" * 1000)
    nodes = budget.measured(tmp_path)
    (over,) = budget.problems(nodes, {"large": 1000})
    (loose,) = budget.problems(nodes, {"large": 100_000})
    (unknown,) = budget.problems(nodes, {})
    assert "large" in over and "above" in over
    assert "lower" in loose and "no ceiling" in unknown
    assert not budget.problems(nodes, {"large": nodes["large"]})


def test_banned_words_are_found() -> None:
    for line, words in [
        ("    it was Told anew", ["told", "anew"]),  # wording: allowed
        ("    begun_s = told_by", ["begun", "told"]),  # wording: allowed
        ("    untold, besides, silently", []),
        ('    x = "told"  # wording: allowed', []),  # wording: allowed
    ]:
        assert wording.banned_words(line) == words


def test_words_that_were_removed_do_not_return() -> None:
    found = wording.words_of_the_product()
    most = {word: wording.CEILINGS.get(word, 0) for word in found}
    assert not {word: (n, most[word]) for word, n in found.items() if n > most[word]}
    assert not set(wording.CEILINGS) - set(found)


NO_PACKAGES = {"docs", "golden", "recorded", "support"}
"""Folders of tests that mirror no folder of the package."""


def unmirrored(tests: Path) -> set[str]:
    """Folders that have tests of no folder of the package."""
    folders = {p.parent.relative_to(tests) for p in tests.rglob("*.py")} - {Path()}
    return {str(f) for f in folders if f.parts[0] not in NO_PACKAGES and not (PACKAGE / f).is_dir()}


def test_tests_mirror_the_package() -> None:
    assert not unmirrored(ROOT / "tests")


def test_tests_of_a_folder_that_is_gone_are_seen(tmp_path: Path) -> None:
    for name in ("core/cluster", "core/clusters", "support/anything"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "test_it.py").touch()
    assert unmirrored(tmp_path) == {"core/clusters"}


def test_folders_stay_small() -> None:
    counts = Counter(p.parent for p in modules() if p.name != "__init__.py")
    assert not {str(folder): n for folder, n in counts.items() if n > 15}


def test_no_two_modules_of_a_package_have_one_name() -> None:
    names = Counter(
        (package_of(p.relative_to(PACKAGE).parts), p.stem)
        for p in modules()
        if p.name != "__init__.py"
    )
    assert not [pair for pair, n in names.items() if n > 1]


def dotted(path: Path) -> str:
    """A module's name."""
    return ".".join(("deepvm", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def arrows() -> dict[str, set[str]]:
    """Which of our modules each one imports.

    At the top, in functions, for types alone, and by name.
    """
    known = {dotted(p) for p in modules()}
    found: dict[str, set[str]] = {}
    for path in modules():
        source = dotted(path)
        names = {n for n, _ in imports(path) if n.startswith("deepvm.")}
        found[source] = {n if n in known else n.rpartition(".")[0] for n in names} & known - {
            source,
            "deepvm",
        }
    # The public API, and that of checkpointing, name what they offer and load it on first use.
    return {
        source: targets
        for source, targets in found.items()
        if source not in ("deepvm", "deepvm.checkpoint")
    }


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of nodes that reach one another (the standard library's topological sort finds one such
    set only).
    """
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set[str](), list(graph[start])
        while left:
            node = left.pop()
            if node not in seen:
                seen.add(node)
                left += graph.get(node, ())
        reach[start] = seen
    found = {
        frozenset(m for m in reach[n] if n in reach.get(m, ())) for n in reach if n in reach[n]
    }
    return [set(cycle) for cycle in found]


def test_no_import_cycles() -> None:
    assert not cycles(arrows())


def test_a_cycle_is_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_the_folders_of_a_package_have_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for source, targets in arrows().items():
        folder = _folder(source)
        graph.setdefault(folder, set()).update(
            _folder(t)
            for t in targets
            if t.split(".")[1] == source.split(".")[1] and _folder(t) != folder
        )
    # What stands at the top of a package is its API or its base: it counts by module, above.
    packages = {f"deepvm.{r}" for r in LAYERS}
    assert not cycles({f: ts - packages for f, ts in graph.items() if f not in packages})


Arrows = set[tuple[str, str]]


def drawn(text: str) -> dict[str, Arrows]:
    """The arrows between the parts of each package in a picture: its name, then chains ``a, b ->
    c -> d``.
    """
    found: dict[str, Arrows] = {}
    name = ""
    for line in text.splitlines():
        head, _, rest = line.partition(" ")
        name = head or name
        for chain in re.split(r"\s{2,}", rest.strip()):
            steps = [step.split(", ") for step in chain.split(" -> ")]
            found.setdefault(name, set()).update(
                p for a, b in itertools.pairwise(steps) for p in itertools.product(a, b)
            )
    return found


def picture() -> dict[str, Arrows]:
    """What docs/internals/architecture.md draws of the directions inside packages."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    return drawn(
        page.partition("Subpackages also import in one direction")[2]
        .split("```")[1]
        .removeprefix("text\n")
    )


def inside(name: str) -> Arrows:
    """The imports between the parts of a package: its folders, and its modules outside them.

    Its `__init__` has no name.
    """

    def part(module: str) -> str:
        return f"{module}.".split(".")[2]

    found = {
        (s, t)
        for s, targets in arrows().items()
        for t in targets
        if {s.split(".")[1], t.split(".")[1]} == {name}
    }
    return {(part(s), part(t)) for s, t in found if part(s) != part(t)}


def downstream(pairs: Arrows) -> Arrows:
    """From each part to all that the arrows lead to."""
    found = set(pairs)
    while more := {(a, d) for a, b in found for c, d in pairs if b == c} - found:
        found |= more
    return found


@pytest.mark.parametrize("name", ["checkpoint", "catalog"])
def test_subpackages_import_as_the_page_draws(name: str) -> None:
    lines = picture()[name]
    assert not inside(name) - downstream(lines), (
        "imports that docs/internals/architecture.md does not draw"
    )
    assert not lines - inside(name), (
        "arrows of docs/internals/architecture.md that no import follows"
    )


def test_the_page_draws_no_cycle_and_no_other_package() -> None:
    assert set(picture()) == {"checkpoint", "catalog"}
    assert not [(a, b) for lines in picture().values() for a, b in downstream(lines) if a == b]


def test_an_import_against_the_picture_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        REGISTRIES, "checkpoint/tiers/base.py", {"deepvm.checkpoint.training.hooks"}
    )
    assert inside("checkpoint") - downstream(picture()["checkpoint"]) == {("tiers", "training")}


def test_a_picture_is_read() -> None:
    lines = drawn("ab   c, d -> e -> f, g\n     h -> c      i -> h")
    assert lines == {"ab": {tuple(pair) for pair in ("ce", "de", "ef", "eg", "hc", "ih")}}
    assert ("i", "g") in downstream(lines["ab"]) and ("e", "c") not in downstream(lines["ab"])


def _folder(module: str) -> str:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return module if path.is_dir() else module.rpartition(".")[0]


OF_NAMED_TUPLES = {"_asdict", "_replace", "_fields", "_make"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in OF_NAMED_TUPLES


def bound(tree: ast.Module) -> dict[str, str]:
    """What each name that a module imports stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            found |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return found


def meaning(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full name of what an expression reads, such as ``deepvm.io.user_dirs.read_data``.

    Empty if not imported.
    """
    if isinstance(node, ast.Attribute):
        owner = meaning(node.value, names)
        return owner and f"{owner}.{node.attr}"
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def private_uses(source: Path, tree: ast.Module) -> set[str]:
    """Private names of other packages that a module (its path below deepvm/) imports, or reads from
    what it imports.
    """
    names = bound(tree)
    used = {n for n, _ in statements(tree)} | {
        meaning(n, names) for n in ast.walk(tree) if isinstance(n, ast.Attribute)
    }
    parts = [(name, name.split(".")) for name in used if name.startswith("deepvm.")]
    return {
        name
        for name, (_, there, *rest) in parts
        if there != package_of(source.parts) and any(map(is_private, rest))
    }


def test_private_names_stay_in_their_package() -> None:
    found = {below(p): private_uses(p.relative_to(PACKAGE), parsed(p)) for p in modules()}
    assert not {name: uses for name, uses in found.items() if uses}


def test_private_access_to_another_package_is_seen() -> None:
    for code, seen in [
        ("from deepvm.io.files import _now", "deepvm.io.files._now"),
        ("from deepvm.io import files\nfiles._now()", "deepvm.io.files._now"),
        ("def f():\n    import deepvm.io.files as t\n    return t._ZONE", "deepvm.io.files._ZONE"),
        ("import deepvm.io.files\nx = deepvm.io.files._ZONE.name", "deepvm.io.files._ZONE.name"),
        (
            "from deepvm.io.file_lock import FileLock\nFileLock._path",
            "deepvm.io.file_lock.FileLock._path",
        ),
        ("from deepvm.core import units\nunits._table", ""),
        ("from deepvm.io.files import Span\nSpan._make(x)\nSpan.__name__", ""),
    ]:
        found = private_uses(Path("core/units.py"), ast.parse(code))
        assert seen in found if seen else not found


def test_every_package_has_tests() -> None:
    packages = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert not {r for r in packages if not list((ROOT / "tests" / r).rglob("test_*.py"))}


def test_there_is_one_way_up() -> None:
    """Answers show themselves.

    Only the layer of reports can write them, and the public API knows it.
    """
    assert {below(p) for p in modules() if "deepvm.forms_of" in p.read_text()} == {"core/answer.py"}


def test_only_the_command_line_prints() -> None:
    """Errors are printed by cli/main.py alone; reports write the answers."""
    allowed = {"cli", "reports"}
    writers = [
        p
        for p in modules()
        if "sys.std" in p.read_text() and package_of(p.relative_to(PACKAGE).parts) not in allowed
    ]
    assert not writers


def test_top_level_is_the_plan() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in tracked.stdout.splitlines()}
    assert top <= {
        ".ci",
        ".dockerignore",
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "Dockerfile",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "data",
        "deepvm",
        "docs",
        "mkdocs.yml",
        "notebooks",
        "pyproject.toml",
        "scripts",
        "tests",
    }
