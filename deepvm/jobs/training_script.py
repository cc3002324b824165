"""What the command of a job runs: whether it resumes, and whether it forms a process group.

The command and the files that it names are read, and never run. Where they cannot be followed, the
answer is unknown, with the reason.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby
from pathlib import Path

from deepvm.core.spelling import joined
from deepvm.jobs.python_sources import PythonSources, is_file, read_source

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_SHELLS = {"bash", "dash", "ksh", "sh", "zsh"}
# Programs whose first Python file, or ``-m MODULE``, is what trains; some are modules, too
_LAUNCHERS = {
    "accelerate",
    "accelerate.commands.launch",
    "coverage",
    "deepspeed",
    "lightning",
    "torch.distributed.launch",
    "torch.distributed.run",
    "torchrun",
}
# What may precede a command of a shell
_PREFIX = re.compile(r"\w+=.*|!|\{|command|do|else|env|exec|if|nohup|sudo|then|time", re.DOTALL)
_ENDS = frozenset(";&|()")  # of a command of a shell
_MOST_DEPTH = 4  # of shell scripts that start others


@dataclass(frozen=True)
class ScriptFacts:
    """What can be seen of a job's command without running it."""

    name: str  # the script, as people call it
    files: int  # Python files that were read
    resumes: bool
    forms_group: bool
    unknown: str  # why either may be wrong where it is False; empty: all was read
    names: frozenset[str]  # identifiers in the files
    digest: str  # of the files; empty without any


def script_facts(train: str, folder: Path | None, env: Mapping[str, str]) -> ScriptFacts:
    """The facts of a command that runs in ``folder``; None: the code is not on this computer."""
    if folder is None:
        reason = "the code is not on this computer"
        return ScriptFacts(train.split()[0], 0, False, False, reason, frozenset(), "")
    return _CommandReader(folder, env).facts(train)


class _CommandReader:
    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        paths = [folder / path for path in env.get("PYTHONPATH", "").split(":") if path]
        self._sources = PythonSources([folder, folder / "src", *paths])
        self._scripts: list[str] = []
        self._unread: list[str] = []

    def facts(self, train: str) -> ScriptFacts:
        self._follow(train, self._folder, 0)
        sources = self._sources
        name = repr(train[:60])
        if self._scripts:
            name = joined(dict.fromkeys(self._scripts))
        reasons = [*self._unread, *sources.unread]
        if not (sources.names or sources.files or reasons):
            reasons = [f"{name} is no Python or shell script of the code"]
        return ScriptFacts(
            name,
            len(sources.files),
            sources.resumes,
            sources.forms_group,
            next(iter(reasons), ""),
            frozenset(sources.names),
            sources.digest,
        )

    def _follow(self, text: str, folder: Path, depth: int) -> None:
        """Follow the commands of a shell's text."""
        if depth > _MOST_DEPTH:
            self._unread.append("shell scripts start one another")
            return
        try:
            commands = list(_commands(text))
        except ValueError:
            self._unread.append("a quote of a shell has no end")
            return
        for words in commands:
            if words[0] == "cd" and len(words) > 1:
                folder = folder / words[1]
            else:
                self._follow_words(words, folder, depth)

    def _follow_words(self, words: Sequence[str], folder: Path, depth: int) -> None:
        """Find the script among the words of one command; later words are its arguments."""
        if is_file(folder / words[0]):
            self._follow_file(folder / words[0], depth)
            return
        program = ""
        for word, after in zip(words, [*words[1:], ""], strict=True):
            name = Path(word).name
            if program in _SHELLS and word == "-c":
                self._follow(after, folder, depth + 1)
            elif program and word == "-c":
                self._scripts.append("the program of python -c")
                self._sources.add_text(after)
            elif program and word in ("-m", "--module") and after not in _LAUNCHERS:
                self._follow_module(after)
            elif word.endswith(".py") or (program and is_file(folder / word)):
                self._follow_file(folder / word, depth)
            else:
                if _PYTHON.fullmatch(name) or name in _SHELLS or name in _LAUNCHERS:
                    program = name
                continue
            return
        if program or "/" in words[0] or "$" in words[0]:
            self._unread.append(f"{shlex.join(words)} names no script that is known here")

    def _follow_module(self, module: str) -> None:
        self._scripts.append(module)
        if not self._sources.add_module(module):
            self._unread.append(f"the module {module} is not in the code folder")

    def _follow_file(self, path: Path, depth: int) -> None:
        name = path.name
        if not is_file(path):
            self._unread.append(f"{name} is not in the code folder")
            return
        text = (read_source(path) or b"").decode(errors="replace")
        interpreter = ""
        if text.startswith("#!"):
            interpreter = Path(text.partition("\n")[0].split()[-1]).name
        if path.suffix == ".py" or _PYTHON.fullmatch(interpreter):
            self._scripts.append(name)
            self._sources.add(path)
        elif path.suffix in (".sh", ".bash") or interpreter in _SHELLS:
            self._scripts.append(name)
            self._follow(text, self._folder, depth + 1)
        else:
            self._unread.append(f"{name} is no Python or shell script")


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell's text. Raises ValueError for quotes without an end."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#"):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters = ""
        lexer.whitespace_split = True
        for is_end, words in groupby(lexer, lambda word: _ENDS.issuperset(word)):
            left = list(dropwhile(_PREFIX.fullmatch, words))
            if left and not is_end:
                yield left
