"""What the command of a job runs: whether it resumes, and whether it forms a process group.

The command and the files that it names are read, and never run. Where they cannot be followed, the
answer is unknown, with the reason.
"""

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import dropwhile, groupby, pairwise
from pathlib import Path

from deepvm.core.spelling import joined
from deepvm.jobs.python_sources import Launcher, PythonSources

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_SHELLS = {"bash", "dash", "ksh", "sh", "zsh"}
_SUFFIXES = {".py": "python", ".sh": "sh", ".bash": "bash"}
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
# Those that start the processes of a group, on this machine unless an option has others
_GROUP_LAUNCHERS = (_LAUNCHERS - {"coverage", "lightning"}) | {"mpiexec", "mpirun"}
_OTHER_MACHINES = re.compile(
    r" --?(nnodes|num[-_](machines|nodes)|(default-)?hostfile|machinefile|hosts?|H)[= ]"
    r"(?!(1|1:1|localhost)( |$))"
)
# What may precede a command of a shell
_PREFIX = re.compile(r"\w+=.*|!|\{|command|do|else|env|exec|if|nohup|sudo|then|time", re.DOTALL)
_ENDS = frozenset(";&|()")  # of a command of a shell
_LINE_BYTES = 200


def script_facts(train: str, folder: Path | None, env: Mapping[str, str]) -> PythonSources:
    """What a command runs in ``folder``; None: the code is not on this computer."""
    if folder is None:
        unknown = PythonSources([], train.split()[0])
        unknown.unread.append("the code is not on this computer")
        return unknown
    paths = ["", "src", *env.get("PYTHONPATH", "").split(":")]
    sources = _CommandSources([folder / path for path in paths], repr(train[:60]))
    sources.follow(train, folder)
    while sources.commands:
        sources.starters = {*sources.files}
        sources.follow(sources.commands.pop(), folder)
    if sources.scripts:
        sources.name = joined(dict.fromkeys(Path(script).name for script in sources.scripts))
    if not (sources.files or sources.names or sources.unknown):
        sources.note_no_script(sources.name)
    return sources


class _CommandSources(PythonSources):
    """What the commands of a shell run, too."""

    starters: Collection[Path] = ()  # one of these files starts what is followed; none: the user

    def follow(self, text: str, folder: Path) -> None:
        """Follow the commands of a shell's text, which starts in ``folder``."""
        try:
            commands = list(_commands(text))
        except ValueError:
            self.unread.append("a quote of a shell has no end")
            return
        for words in commands:
            if words[0] == "cd" and len(words) > 1:
                folder = folder / words[1]
            else:
                self._follow_words(words, folder)

    def _follow_words(self, words: Sequence[str], folder: Path) -> None:
        """Find the script among the words of one command; later words are its arguments."""
        program = launcher = ""
        for number, (word, after) in enumerate(pairwise([*words, ""])):
            name = Path(word).name
            path = folder / word
            if program in _SHELLS and word == "-c":
                self.follow(after, folder)
            elif program and word == "-c":
                self.scripts.append("the program of python -c")
                self.add_text(after)
            elif program and word in ("-m", "--module") and after not in _LAUNCHERS:
                self._note_launcher(launcher, words[:number], f"python -m {after}")
                self.scripts.append(after)
                self.add_module(after)
            elif interpreter := _interpreter_of(path):
                if path not in self.starters:  # one that starts itself as ranks is one of them here
                    self._note_launcher(launcher, words[:number], f"python {word}")
                self.scripts.append(str(path))
                self._follow_file(path, interpreter, folder)
            else:
                if _PYTHON.fullmatch(name) or name in _SHELLS or name in _LAUNCHERS:
                    program = name
                if name in _GROUP_LAUNCHERS and (name != "accelerate" or after == "launch"):
                    launcher = name
                continue
            return
        if launcher == Path(words[0]).name and not self.starters:
            self._note_launcher(launcher, words, "python SCRIPT")
        if program or "/" in words[0] or "$" in words[0]:
            self.note_no_script(shlex.join(words))

    def _note_launcher(self, name: str, words: Sequence[str], direct: str) -> None:
        if name and not self.launcher:
            self.launcher = Launcher(
                name, direct, several=bool(_OTHER_MACHINES.search(f"{' '.join(words)} "))
            )

    def note_no_script(self, command: str) -> None:
        self.unread.append(f"{command} names no script that is known here")

    def _follow_file(self, path: Path, interpreter: str, folder: Path) -> None:
        if interpreter not in _SHELLS:
            self.add(path)
        elif self.scripts.count(str(path)) < 2:  # it may start itself
            try:
                self.follow(path.read_text(errors="replace"), folder)
            except OSError:
                self.unread.append(f"{path.name} is not in the code folder")


def _interpreter_of(path: Path) -> str:
    """What runs a file, by its suffix or its first line; empty: it is neither Python nor shell."""
    if path.suffix in _SUFFIXES:
        return _SUFFIXES[path.suffix]
    if not os.path.isfile(path):  # reading a pipe could take forever
        return ""
    try:
        with path.open("rb") as file:
            first = file.readline(_LINE_BYTES).decode(errors="replace")
    except OSError:
        return ""
    if first.startswith("#!"):
        name = Path(first.split()[-1]).name
        if _PYTHON.fullmatch(name) or name in _SHELLS:
            return name
    return ""


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
