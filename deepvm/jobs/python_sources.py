"""Python files of a job's code, read and never run: what they import, and which names they use."""

import ast
import hashlib
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

MOST_FILES = 500
_MOST_BYTES = 2_000_000  # Of one file; what is larger is data
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
# Functions that import a module by name, and those that start another program
_IMPORTS = {"import_module", "__import__"}
_STARTS = {
    "Popen",
    "call",
    "check_call",
    "check_output",
    "execv",
    "execvp",
    "run",
    "run_path",
    "system",
}


class PythonSources:
    """Scripts and the modules of a folder that they import, directly or through one another."""

    def __init__(self, roots: Iterable[Path]) -> None:
        """``roots``: where modules are, besides the folder of the script itself."""
        self._roots = [*roots]
        self._waiting: list[tuple[Path, Sequence[Path]]] = []
        self.files: dict[Path, bytes] = {}
        self.modules: set[str] = set()
        self.names: set[str] = set()
        self.unread: list[str] = []  # why something that may count was not read

    def add(self, path: Path) -> None:
        """Read a script and what it imports."""
        self._waiting.append((path, (path.parent, *self._roots)))
        self._read_waiting()

    def add_text(self, source: str) -> None:
        """Read a program that has no file, as of ``python -c``."""
        self._look_into(source.encode(), None, self._roots)
        self._read_waiting()

    def add_module(self, name: str) -> bool:
        """Read a module as ``python -m`` runs it; False: none of the folders has it."""
        self._find(f"{name}.__main__", self._roots, self._roots)
        found = bool(self._waiting)
        self._read_waiting()
        return found

    def _read_waiting(self) -> None:
        while self._waiting:
            path, roots = self._waiting.pop()
            if path in self.files:
                continue
            if len(self.files) >= MOST_FILES:
                self._waiting.clear()
                self.unread.append(f"more than {MOST_FILES} files are imported")
                return
            source = read_source(path)
            if source is None:
                self.unread.append(f"{path.name} cannot be read")
                source = bytes(path)
            else:
                self._look_into(source, path, roots)
            self.files[path] = source

    def _look_into(self, source: bytes, path: Path | None, roots: Sequence[Path]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own mistakes, such as "\d"
            try:
                tree = ast.parse(source)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                name = "the command" if path is None else path.name
                self.unread.append(f"{name} is not Python that can be read here")
                return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._imports([alias.name for alias in node.names], roots, roots)
            elif isinstance(node, ast.ImportFrom):
                self._imports_from(node, path, roots)
            elif isinstance(node, ast.Call):
                self._calls(node, roots)
            elif isinstance(node, ast.Name):
                self.names.add(node.id)
            elif isinstance(node, ast.Attribute):
                self.names.add(node.attr)

    def _imports(
        self, modules: Iterable[str], folders: Sequence[Path], roots: Sequence[Path]
    ) -> None:
        for module in modules:
            self.modules.add(module)
            self._find(module, folders, roots)

    def _imports_from(self, node: ast.ImportFrom, path: Path | None, roots: Sequence[Path]) -> None:
        """``from a import b`` may mean the module ``a.b``."""
        names = [alias.name for alias in node.names]
        self.names.update(names)
        modules = [f"{node.module}.{name}" if node.module else name for name in names]
        folders = roots
        if node.level and path is not None:
            folders = [*path.parents][node.level - 1 : node.level]
        self._imports([*filter(None, [node.module]), *modules], folders, roots)

    def _calls(self, node: ast.Call, roots: Sequence[Path]) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _IMPORTS and node.args:
            module = getattr(node.args[0], "value", None)
            if isinstance(module, str):
                self._imports([module], roots, roots)
            else:
                self.unread.append("a module is imported whose name is not in the code")
        elif name in _STARTS:
            texts = [getattr(part, "value", None) for part in ast.walk(node)]
            words = [word for text in texts if isinstance(text, str) for word in text.split()]
            scripts = [root / word for word in words if word.endswith(".py") for root in roots]
            self._waiting += [(script, roots) for script in scripts if is_file(script)]

    def _find(self, module: str, folders: Sequence[Path], roots: Sequence[Path]) -> None:
        """Have the files of a module, and of the packages that it is in, read."""
        parts = module.split(".")
        if parts[0] == _OWN:
            return
        for folder in folders:
            home = folder
            found = []
            for part in parts:
                home = home / part
                files = [home.with_name(f"{part}.py"), home / "__init__.py"]
                found += [(file, roots) for file in files if is_file(file)]
            self._waiting += found
            if found:
                return

    @property
    def resumes(self) -> bool:
        """Whether something saves and restores through deepvm."""
        saves = any(f"{name}.".startswith(f"{_CHECKPOINT}.") for name in self.modules)
        # Without latest() a script says where it is, and starts again at its beginning
        return saves or (_TRAINING in self.modules and "latest" in self.names)

    @property
    def forms_group(self) -> bool:
        """Whether something starts a process group, or leaves that to a trainer."""
        named = any(name in _GROUP_NAMES or name.endswith(_GROUP_SUFFIX) for name in self.names)
        packages = {name.partition(".")[0] for name in self.modules}
        return named or not packages.isdisjoint(_GROUP_PACKAGES)

    @property
    def digest(self) -> str:
        """The same for the same files, wherever they are."""
        digests = sorted(hashlib.sha256(source).digest() for source in self.files.values())
        return hashlib.sha256(b"".join(digests)).hexdigest()


def is_file(path: Path) -> bool:
    """Whether there is such a file; False for a name that no file can have."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def read_source(path: Path) -> bytes | None:
    """A file of code; None: it is too large for one, or cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        source = file.read(_MOST_BYTES + 1)
        if len(source) <= _MOST_BYTES:
            return source
    return None
