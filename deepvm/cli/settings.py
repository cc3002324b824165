"""Settings: options from the environment and from files.

In order of precedence: the command line, ``DEEPVM_*`` variables, ``deepvm.toml`` in the current folder, the user's own
file, the default. Commands get them through :mod:`deepvm.cli.configured`.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin

from deepvm.cli.plan.options import PlanFlags, RankFlags, SweepFlags
from deepvm.core.spelling import did_you_mean, nearest
from deepvm.errors import DataError, RequestError
from deepvm.io.user_dirs import user_folder

FOLDER_FILE = "deepvm.toml"
CONFIG_VARIABLE = "DEEPVM_CONFIG"
NO_FILE = "none"
"""The value of ``DEEPVM_CONFIG`` for no file of the user's own."""

OTHER_VARIABLES = frozenset(
    {
        *(CONFIG_VARIABLE, "DEEPVM_CACHE_DIR", "DEEPVM_DATA_DIR", "DEEPVM_ADVISOR_URL"),
        # of training jobs and memory nodes, which import the checkpointing alone
        *("DEEPVM_JOB", "DEEPVM_MTBF", "DEEPVM_TOKEN_FILE", "DEEPVM_ALLOW_WEAK_TOKEN", "DEEPVM_TLS_CA"),
        "DEEPVM_CHECKPOINT_KILL_AT",
    }
)
"""Variables of other parts, which are no options."""

MAX_BYTES = 2**20
"""Larger files are refused: they cannot be a file of settings."""

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_FILES = frozenset({"catalog", "quota", "tables", "job_file"})
_SECRET = re.compile(r"secret|token|passw|credential|session|(access|private|api)[_-]?key", re.IGNORECASE)
_A_FILE = 'a text file with settings, such as: region = ["us-east-1"]'
_FORMS = {list: "text in quotes, or a list of texts", bool: "true or false", str: "text in quotes, or a number"}

Value = str | bool | list[str]
"""What a setting may be; numbers are kept as text, because the planner reads them."""


@dataclass(frozen=True)
class Setting:
    """A value that was set outside the command line.

    Attributes:
        name: of the field of :class:`~deepvm.cli.plan.options.PlanFlags`. value: as given.
        kind: ``environment`` or ``file``. source: the variable, or the path of the file.
    """

    name: str
    value: Value
    kind: str
    source: str

    def refused(self, allowed: str) -> RequestError | DataError:
        """The error for a value that cannot be used."""
        shown = shortened(self.value)
        if self.kind == "environment":
            return RequestError(self.source, shown, allowed)
        return DataError(f"{self.source}: {key_of(self.name)}: {shown!r} cannot be used; allowed: {allowed}")


@dataclass(frozen=True)
class Place:
    """A file that was looked for: its path, and whether it is there."""

    path: str
    found: bool


@dataclass(frozen=True)
class Settings:
    """Everything that is set outside the command line.

    Attributes:
        by_name: the strongest setting of each option that has one.
        places: the files that were looked for, the strongest first.
        misspelt: unknown variables that are close to a known one, with that one's name.
    """

    by_name: Mapping[str, Setting]
    places: tuple[Place, ...]
    misspelt: Mapping[str, str]


def names() -> tuple[str, ...]:
    """The options that may be set, as fields of :class:`~deepvm.cli.plan.options.RankFlags`, which has all of them."""
    return tuple(f.name for f in fields(RankFlags))


def key_of(name: str) -> str:
    """What files call an option: its long name, ``checkpoint-size``."""
    return name.replace("_", "-")


def variable_of(name: str) -> str:
    """What the environment calls an option: ``DEEPVM_CHECKPOINT_SIZE``."""
    return f"DEEPVM_{name.upper()}"


def forms_of(name: str) -> Collection[type]:
    """What the option takes, in one command or another: text, a list, or true and false."""
    return {_form(f.type) for flags in (RankFlags, SweepFlags) for f in fields(flags) if f.name == name}


def _form(annotation: Any) -> type:
    kind = get_args(annotation)[0]
    return list if get_origin(kind) is list else bool if kind is bool else str


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the environment, ``deepvm.toml`` in the current folder, and the user's own file.

    Raises:
        DataError: a file that is there cannot be read, is no TOML, or has an unknown key or a value of a wrong type.
        RequestError: a variable has a value of a wrong type, or ``DEEPVM_CONFIG`` names no file.
    """
    found = {s.name: s for n in names() if (s := _of_variable(n, environ)) is not None}
    places = []
    for path in (Path(FOLDER_FILE), _user_file(environ)):
        if path is None:
            continue
        text = _read(path)
        places.append(Place(str(path), text is not None))
        for setting in () if text is None else _of_file(path, text):
            found.setdefault(setting.name, setting)
    return Settings(found, tuple(places), _misspelt(environ))


def shortened(value: Value) -> Value:
    """A value for a message: nothing longer than a line."""
    return value if len(str(value)) <= 80 else f"{str(value)[:76]} ..."


def _of_variable(name: str, environ: Mapping[str, str]) -> Setting | None:
    variable = variable_of(name)
    text = environ.get(variable, "").strip()
    if not text:  # set to nothing, as `DEEPVM_REGION= deepvm ...` does, is not set
        return None
    forms = forms_of(name)
    value: Value = text
    if bool in forms:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise RequestError(variable, shortened(text), "true or false")
        value = text.lower() in _TRUE
    elif list in forms:
        value = [word.strip() for word in text.split(",") if word.strip()]
    return Setting(name, value, "environment", variable)


def _user_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(CONFIG_VARIABLE, "")
    if named == NO_FILE:
        return None
    if named:
        path = Path(os.path.expanduser(named))
        if not os.path.lexists(path):
            raise RequestError(CONFIG_VARIABLE, named, f"a TOML file that exists, or {NO_FILE} for none")
        return path
    folder = user_folder("config", environ)
    return folder and folder / "config.toml"


def _read(path: Path) -> str | None:
    """The text of a file; None when there is no such file."""
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer, for ever if there is none.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise DataError(f"{path}: is a link to a file that does not exist; correct or remove it") from None
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}; allowed: {_A_FILE}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DataError(f"{path}: is a folder, pipe or device; allowed: {_A_FILE}")
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; allowed: {_A_FILE}") from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise DataError(f"{path}: has more than {MAX_BYTES // 2**20} MiB; allowed: {_A_FILE}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"byte {error.start}: 0x{error.object[error.start]:02x} is not UTF-8"
        raise DataError(f"{path}: {place}; save the file again as text in UTF-8") from None


def _of_file(path: Path, text: str) -> list[Setting]:
    found: dict[str, Setting] = {}
    for key, value in _parsed(path, text).items():
        name = key.replace("-", "_")
        _refuse_secrets(path, key, value)
        if name not in names():
            raise DataError(f"{path}: {_unknown(key, value, text)}")
        if name in found:
            raise DataError(f"{path}: {key!r}{_line(text, key)}: stands there twice, with - and with _; remove one")
        try:
            taken = _taken(value, forms_of(name))
        except ValueError:
            allowed = next(text for form, text in _FORMS.items() if form in forms_of(name))
            place = f"{path}: {key}{_line(text, key)}"
            raise DataError(f"{place}: {_shown(value)} cannot be used; allowed: {allowed}") from None
        found[name] = Setting(name, _placed(taken, path) if name in _FILES else taken, "file", str(path))
    return list(found.values())


_MOST_DOTS = 200


def _parsed(path: Path, text: str) -> Mapping[str, Any]:
    loads = _parser()
    try:
        # Settings are short lines; the parser takes minutes over a key of many thousands of dots.
        if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
            raise RecursionError
        return loads(text)
    except RecursionError:
        raise DataError(f'{path}: is nested too deeply; settings are single lines such as: prices = "live"') from None
    except ValueError as error:
        # Texts of TOML errors name places and keys, never values.
        raise DataError(
            f'{path}: is not valid TOML: {error}; each line is like: prices = "live", with texts in quotes'
        ) from None


def _parser() -> Callable[[str], Mapping[str, Any]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads


def _refuse_secrets(path: Path, key: str, value: Any) -> None:
    if _SECRET.search(key):
        raise DataError(
            f"{path}: {shortened(key)!r}: credentials do not belong here, and deepvm reads none from this file; remove "
            'them, keep them in an AWS profile, and name that one: profile = "..."'
        )
    if isinstance(value, Mapping):
        for inner, below in value.items():
            _refuse_secrets(path, inner, below)


def _unknown(key: str, value: Any, text: str) -> str:
    keys = [key_of(n) for n in names()]
    hint = did_you_mean(key.replace("_", "-"), keys) or f"allowed: {', '.join(keys)}"
    if isinstance(value, Mapping):
        hint = "there are no sections: write the settings one below the other, without [...] lines and dots"
    return f"{shortened(key)!r}{_line(text, key)} is not a setting; {hint}"


def _line(text: str, key: str) -> str:
    start = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    number = next((i for i, line in enumerate(text.split("\n"), 1) if start.match(line)), None)
    return "" if number is None else f" (line {number})"


def _taken(value: Any, forms: Collection[type]) -> Value:
    """The value in the form that the option takes.

    Raises:
        ValueError: it has another one.
    """
    if bool in forms:
        if not isinstance(value, bool):
            raise ValueError
        return value
    if isinstance(value, list) and list in forms:
        return [_text(v) for v in value]
    # A single word is a list of one, unless the option also takes single words.
    return _text(value) if str in forms else [_text(value)]


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    return str(value)


def _placed(value: Value, path: Path) -> Value:
    """Resolve a path relative to the settings file that names it, not to the working folder."""
    if not isinstance(value, str) or not value.lower().endswith((".json", ".csv", ".yaml", ".yml")):
        return value
    return str(path.parent / os.path.expanduser(value))


def _shown(value: Any) -> str:
    """A value of a wrong type, for a message."""
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    return repr(shortened(str(value)))


def _misspelt(environ: Mapping[str, str]) -> Mapping[str, str]:
    known = {variable_of(n) for n in names()} | OTHER_VARIABLES
    unknown = [v for v in environ if v.startswith("DEEPVM_") and v not in known]
    if not unknown:
        return {}
    # All begin alike, and others may have variables that begin so, too.
    near = {v: nearest(v, known, share=0.15) for v in sorted(unknown)}
    return {v: matches[0] for v, matches in near.items() if matches}


def value_for(setting: Setting, *, several: bool) -> Value:
    """The value as one command takes it.

    Args:
        setting: what was set.
        several: whether the option may be repeated there.

    Raises:
        DataError, RequestError: a list of several where the command takes one.
    """
    if isinstance(setting.value, bool) or isinstance(setting.value, list) == several:
        return setting.value
    if isinstance(setting.value, str):
        return [setting.value]
    if len(setting.value) == 1:
        return setting.value[0]
    raise setting.refused("a single value; only 'sweep' takes several")


def default_of(name: str) -> Value | None:
    """The default of an option; None where the catalog decides, or where a value is required."""
    return getattr(_NOBODY, name) if name != "pw" else None


_NOBODY: PlanFlags = RankFlags(pw="")
