"""Python files of a job's code, read and never run: what they import, and which names they use."""

import ast
import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 500
# Modules whose callers save and restore through deepvm
_OWN = "deepvm"
_CHECKPOINT = f"{_OWN}.checkpoint"
_TRAINING = f"{_OWN}.training"
# What starts a process group: names, ends of names, and packages
_GROUP_NAMES = {"init_process_group", "init_device_mesh", "Accelerator", "Fabric"}
_GROUP_SUFFIX = "Trainer"
_GROUP_PACKAGES = {
    "accelerate",
    "colossalai",
    "composer",
    "deepspeed",
    "horovod",
    "lightning",
    "megatron",
    "mpi4py",
    "pytorch_lightning",
}
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
# What starts another program
_STARTS = re.compile(r"(subprocess|sp)\.(\w*call|check_output|run|Popen)|os\.(exec|spawn|system).*")
_UNSEEN = "$"  # A word that only the running script knows
_DYNAMIC_IMPORTS = {"import_module", "__import__"}


class Launcher(NamedTuple):
    """A program of the command that starts the ranks of a training."""

    name: str
    direct: str  # The command of one rank, without its arguments
    several: bool  # Whether its options name other machines


class PythonSources:
    """Scripts and the modules of a folder that they import, directly or through one another."""

    def __init__(self, roots: Iterable[Path], name: str) -> None:
        """``roots``: where modules are, besides the folders of the scripts; ``name``: of these."""
        self._roots = [*roots]
        self.name = name
        self.files: dict[Path, bytes] = {}
        self.modules: set[str] = set()
        self.names: set[str] = set()
        self.unread: list[str] = []  # why something that may count was not read
        self.commands: list[str] = []  # that the files start, for a shell
        self.scripts: list[str] = []  # as the commands name them
        self.launcher: Launcher | None = None  # the first that a command names

    def add(self, script: Path) -> None:
        """Read a script and what it imports."""
        self._roots.insert(0, script.parent)
        self._read([script])

    def add_text(self, source: str) -> None:
        """Read a program that has no file, as of ``python -c``."""
        self._read(self._imported(source.encode(), None))

    def add_module(self, name: str) -> None:
        """Read a module as ``python -m`` runs it."""
        paths = _paths(f"{name}.__main__", self._roots)
        if not paths:
            self.unread.append(f"the module {name} is not in the code folder")
        self._read(paths)

    def _read(self, waiting: list[Path]) -> None:
        while waiting:
            path = waiting.pop()
            if path in self.files:
                continue
            if len(self.files) >= MOST_FILES:
                self.unread.append(f"more than {MOST_FILES} files are imported")
                return
            self.files[path] = b""
            try:
                self.files[path] = path.read_bytes()
            except FileNotFoundError:
                self.unread.append(f"{path.name} is not in the code folder")
            except OSError:
                self.unread.append(f"{path.name} cannot be read")
            waiting += self._imported(self.files[path], path)

    def _imported(self, source: bytes, path: Path | None) -> list[Path]:
        """The files that a source imports, as far as they are here."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the script's own mistakes, such as "\d"
                tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            name = "the command" if path is None else path.name
            self.unread.append(f"{name} is not Python that can be read here")
            return []
        paths = []
        values: dict[str, ast.expr] = {}
        calls = []
        for node in ast.walk(tree):
            folders = self._roots
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names]
                self.names.update(names)
                modules = [".".join(filter(None, (node.module, name))) for name in names]
                if node.level and path is not None:
                    folders = [*path.parents][node.level - 1 : node.level]
            elif isinstance(node, ast.Name):
                self.names.add(node.id)
            elif isinstance(node, ast.Attribute):
                self.names.add(node.attr)
            elif isinstance(node, ast.Constant) and node.value in _RANK_VARIABLES:
                self.names.add(node.value)
            elif isinstance(node, ast.Assign):
                values |= {ast.unparse(target): node.value for target in node.targets}
            elif isinstance(node, ast.Call):
                calls.append(node)
            self.modules.update(modules)
            for module in modules:
                paths += _paths(module, folders)
        for call in calls:
            self._started(call, values)
        return paths

    def _started(self, call: ast.Call, values: Mapping[str, ast.expr]) -> None:
        """Note the command of a call that starts a program."""
        name = ast.unparse(call.func)
        if f"subprocess.{name}" in self.modules:
            name = f"subprocess.{name}"
        if not _STARTS.fullmatch(name):
            return
        arguments = [values.get(ast.unparse(argument), argument) for argument in call.args]
        words = [word for argument in arguments for word in _words(argument)]
        if words and words[0] != _UNSEEN:
            self.commands.append(" ".join(words))
        else:
            self.unread.append(f"{name}() starts a program whose name is not seen here")

    @property
    def resumes(self) -> bool:
        """Whether something saves and restores through deepvm."""
        # Without latest() a script says where it is, and starts again at its beginning
        return self._uses(_CHECKPOINT) or (self._uses(_TRAINING) and "latest" in self.names)

    def _uses(self, module: str) -> bool:
        return any(f"{name}.".startswith(f"{module}.") for name in self.modules)

    @property
    def forms_group(self) -> bool:
        """Whether something starts a process group, or leaves that to a trainer."""
        return any(map(self._uses, _GROUP_PACKAGES)) or any(
            name in _GROUP_NAMES or name.endswith(_GROUP_SUFFIX) for name in self.names
        )

    @property
    def asks_for_ranks(self) -> bool:
        """Whether it is written for several processes, of one group or not."""
        return self.forms_group or not self.names.isdisjoint(_RANK_VARIABLES)

    @property
    def unknown(self) -> str:
        """Why something that counts may not have been seen; empty: all was read."""
        if not _DYNAMIC_IMPORTS.isdisjoint(self.names):
            return "modules are imported by names that are not seen here"
        return next(iter(self.unread), "")

    @property
    def digest(self) -> str:
        """The same for the same files, wherever they are."""
        return hashlib.sha256(
            b"".join(sorted(hashlib.sha256(source).digest() for source in self.files.values()))
        ).hexdigest()


def _words(value: ast.expr) -> Iterator[str]:
    """The words of a command, as far as they are in a source."""
    for part in ast.walk(value):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif ast.unparse(part) == "sys.executable":
            yield "python"
        elif isinstance(part, ast.Name):
            yield _UNSEEN


def _paths(module: str, folders: Iterable[Path]) -> list[Path]:
    """The files of a module and of the packages that it is in, of the first folder with any."""
    names = module.split(".")
    if names[0] == _OWN:
        return []
    for folder in folders:
        homes = [folder.joinpath(*names[:count]) for count in range(1, len(names) + 1)]
        files = [(home.with_name(f"{home.name}.py"), home / "__init__.py") for home in homes]
        if paths := [path for pair in files for path in pair if os.path.isfile(path)]:
            return paths
    return []
