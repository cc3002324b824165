"""Every error that deepvm raises on purpose.

::

    DeepVMError                    exit code 1
    ├── RequestError (ValueError)  2  an invalid value: names it, and what is expected
    │   ├── OptionMismatchError    2  options that do not fit together: the reason, what to try
    │   └── MissingExtraError      2  an optional library is missing: names the extra
    ├── FileFormatError            1  a file is invalid: lists every problem with its line
    │   └── JobFormatError         2  a job file: names keys, lines and what is allowed
    ├── DataError                  4  data is missing or unreadable
    │   ├── CatalogNotFoundError   4  no embedded catalog and no file has this name
    │   ├── CatalogFormatError     4  an invalid catalog, also a FileFormatError
    │   └── MissingDataError       4  a valid catalog lacks what the request needs
    ├── CloudError                 5  the cloud or the network failed: names the call and what to do
    ├── CheckpointError            1  a checkpoint could not be saved, sent or read
    │   ├── RequestRefused (protocol)  1  a memory node refuses: ``code`` says why
    │   ├── TierBusyError          1  a tier has no space now: this version is skipped
    │   ├── VersionGoneError       1  a memory node lost, or gave up, what it had of a version
    │   ├── MemoryOnlyError        1  a memory node has a version, and no disk to write it to
    │   └── DamagedError           1  a checkpoint does not match its manifest
    ├── MeasurementError           1  a machine could not be measured: says what failed there
    ├── SimulationError            3  a simulated job makes no progress: says how far it got
    ├── WorkerLostError            1  a worker process was ended from outside: says what to do
    └── SolverError                1  no integer-program solver can run on this machine

A budget for which nothing is feasible, or a solver that ran out of time, is a *result* (see
:class:`deepvm.planner.recommend.Recommendations`), not an error. Only ``deepvm.cli.main`` prints
errors.
"""

import shlex
import sys
from collections.abc import Sequence

# typeshed lacks it; pickle finds it by name.
from copyreg import __newobj__  # type: ignore[attr-defined]
from pathlib import Path

from deepvm.records import dataclass


class DeepVMError(Exception):
    """Base of all errors of this package; ``exit_code`` is what the command line returns for it."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Restore the attributes without ``__init__``: errors cross processes and machines."""
        return __newobj__, (type(self), *self.args), self.__dict__


class RequestError(DeepVMError, ValueError):
    """An invalid value: the argument's name in Python, the value, and what is expected."""

    exit_code = 2

    def __init__(self, option: str, value: object, allowed: str) -> None:
        self.option = option
        self.value = value
        self.allowed = allowed
        super().__init__(f"invalid value for {option}: {self.shown} (expected {allowed})")

    def about(self, name: str) -> str:
        """The message for a person who knows the option as ``name``; guesses can be copied."""
        expected = f"(expected {self._allowed_for(name)})"
        # No value that could be shown
        if self.value is None or self.value is False:
            return f"{name}: not given {expected}"
        if self.value == "":
            return f"{name}: not given or empty {expected}"
        return f"invalid value for {name}: {self.shown} {expected}"

    def _allowed_for(self, name: str) -> str:
        before, meant, rest = self.allowed.partition("did you mean ")
        if not meant or not name.startswith("--") or rest.startswith("--"):
            return self.allowed
        names, mark, behind = rest.partition("?")
        return f"{before}{meant}{name} {names.replace(' or ', f' or {name} ')}{mark}{behind}"

    @property
    def shown(self) -> str:
        try:
            text = repr(self.value)
        except ValueError:  # the interpreter writes no integers of more than 4300 digits
            text = "a huge integer"
        if len(text) <= 100:
            return text
        return f"{text[:96]} ..."


class OptionMismatchError(RequestError):
    """A value that would do, but not with what else is given: the reason, and what to try."""

    cure = ""

    def __init__(self, option: str, value: object, reason: str, cure: str = "") -> None:
        """``reason`` continues the name: ``does not fit resnet50, which trains on images``."""
        self.cure = cure
        super().__init__(option, value, reason)

    @classmethod
    def with_other(cls, option: str, value: object, other: str) -> "OptionMismatchError":
        return cls(option, value, f"does not go with {other}: give one of them")

    def __str__(self) -> str:
        return self.about(self.option)

    def about(self, name: str) -> str:
        if self.cure:
            return f"{name} {self.allowed} (try: {self.cure})"
        return f"{name} {self.allowed}"


# What pip installs for an extra: changes with a release
EXTRA_SOURCE = "'.[{}]' in a clone of deepvm"


class MissingExtraError(RequestError):
    """The request needs a library that the base install leaves out."""

    def __init__(self, option: str, library: str, extra: str) -> None:
        """``option`` is empty if the command itself needs the library."""
        self.library = library
        self.extra = extra
        # Of this Python, perhaps not that on PATH
        pip = f"{shlex.quote(sys.executable or 'python')} -m pip install"
        cure = f"install it with: {pip} {EXTRA_SOURCE.format(extra)}"
        super().__init__(option, library, cure)

    def __str__(self) -> str:
        return self.about(self.option)

    def about(self, name: str) -> str:
        return (
            f"{name if self.option else 'this'} needs {self.library}, which is not installed;"
            f" {self.allowed}"
        )


# Optional libraries, and the extras that bring them
EXTRAS = {
    "matplotlib": "plot",
    "pandas": "pandas",
    "psycopg": "postgres",
    "scipy": "fit",
    "sklearn": "lab",
    "sqlalchemy": "run",
    "starlette": "run",
    "torch": "train",
    "uvicorn": "run",
}


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error for an optional library that is not installed, None for other modules."""
    library = (error.name or "").partition(".")[0]
    if library in EXTRAS:
        return MissingExtraError("", library, EXTRAS[library])
    return None


@dataclass(frozen=True)
class Issue:
    """What is wrong in a file: the message, its line (0 if it has none) and its key."""

    message: str
    line: int = 0
    key: str = ""

    def __str__(self) -> str:
        return self.message


class FileFormatError(DeepVMError):
    """A file is invalid; the message lists ``FILE:LINE: message`` of the first ten problems."""

    def __init__(self, path: Path | str, problems: Sequence[Issue]) -> None:
        self.path = str(path)
        self.problems = tuple(problems)
        shown = 10
        lines = []
        for problem in problems[:shown]:
            place = f"{path}:{problem.line}" if problem.line else path
            lines.append(f"{place}: {problem}")
        if len(problems) > shown:
            lines.append(f"... and {len(problems) - shown} more problems in {path}")
        super().__init__("\n".join(lines))


class JobFormatError(FileFormatError):
    """A job file or a matrix file is invalid."""

    exit_code = 2


class DataError(DeepVMError):
    """Data is missing or unreadable."""

    exit_code = 4


class CatalogNotFoundError(DataError):
    """Neither an embedded catalog nor a readable file."""

    def __init__(self, name: str, why: str, embedded: Sequence[str]) -> None:
        self.name = name
        self.why = why
        self.embedded = tuple(embedded)
        super().__init__(
            f"catalog {name!r}: {why}; embedded catalogs: {', '.join(embedded)}; "
            "a file of your own must end in .json or .csv"
        )


class CatalogFormatError(FileFormatError, DataError):
    """A file of data is invalid: a catalog, a plan, a trace, a model."""


class MissingDataError(DataError):
    """The catalog is valid but lacks something that the request needs."""


class CloudError(DeepVMError):
    """The cloud or the network failed: names the call and what to do."""

    exit_code = 5

    def __init__(self, what: str, why: str, detail: str, advice: str) -> None:
        self.what = what  # such as ``ec2 DescribeInstanceTypes in us-east-1``
        # credentials, expired, permission, region, clock, throttled, timeout, network or reply
        self.why = why
        self.detail = detail  # the same for people, without secrets
        self.advice = advice
        super().__init__(f"{what}: {detail}; {advice}")


class CheckpointError(DeepVMError):
    """A checkpoint could not be saved, sent or read."""


class TierBusyError(CheckpointError):
    """A tier has no space for a version now."""


class VersionGoneError(CheckpointError):
    """A memory node has lost, or given up, what it had of a version."""


class MemoryOnlyError(CheckpointError):
    """A memory node has a version, and no disk to write it to."""


class DamagedError(CheckpointError):
    """A version does not match its manifest."""


class MeasurementError(DeepVMError):
    """A machine could not be measured; the message says what failed where, and the next step."""


class SimulationError(DeepVMError):
    """A simulated job loses more to preemptions than it gains."""

    exit_code = 3


class WorkerLostError(DeepVMError):
    """A worker process was ended from outside; the message says what to do."""


class SolverError(DeepVMError):
    """No solver for integer programs can run here."""
