"""Settings: options from the environment and from files.

In order of precedence: the command line, ``DEEPVM_*`` variables, ``deepvm.toml`` in the current
folder, the user's own file, the default. A :class:`ConfiguredCommand` has them as its defaults.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from typer.core import TyperCommand

from deepvm.catalog.price_sources import ADDRESS_VARIABLES
from deepvm.cli.output import note
from deepvm.cli.parameters import field_name
from deepvm.cli.plan.help_groups import grouped
from deepvm.cli.plan.options import RankFlags, SweepFlags
from deepvm.core.spelling import did_you_mean, listed, nearest
from deepvm.errors import CatalogFormatError, DataError, DeepVMError, RequestError
from deepvm.io.safe_read import read_text
from deepvm.io.user_dirs import user_folder

FOLDER_FILE = "deepvm.toml"
ALL_OPTIONS = "deepvm.all-options"
"""Key of a context's ``meta``: whether help shows all options."""
CONFIG_VARIABLE = "DEEPVM_CONFIG"
NO_FILE = "none"  # DEEPVM_CONFIG for no file of the user's own

OTHER_VARIABLES = {
    *(
        CONFIG_VARIABLE,
        "DEEPVM_CACHE_DIR",
        "DEEPVM_DATA_DIR",
        "DEEPVM_ADVISOR_URL",
        "DEEPVM_CHECKPOINT_KILL_AT",
    ),
    *ADDRESS_VARIABLES,
    *("DEEPVM_JOB", "DEEPVM_MTBF", "DEEPVM_TOKEN_FILE", "DEEPVM_ALLOW_WEAK_TOKEN", "DEEPVM_TLS_CA"),
    *("DEEPVM_AUDIT_DIR", "DEEPVM_AUDIT_KILL", "DEEPVM_AUDIT_LOG"),
    *(
        "DEEPVM_AGENT",
        "DEEPVM_CONTROLLER_HOST",
        "DEEPVM_CONTROLLER_PORT",
        "DEEPVM_DATA",
        "DEEPVM_EPOCH",
    ),
    "DEEPVM_INDEPENDENT",
    *(
        "DEEPVM_AWS_AMI",
        "DEEPVM_AWS_ANCHOR_AMI",
        "DEEPVM_AWS_BUCKET",
        "DEEPVM_AWS_INSTALL",
        "DEEPVM_AWS_PYTHON",
    ),
    *("DEEPVM_AWS_HEAD_PROFILE", "DEEPVM_AWS_HEAD_TYPE", "DEEPVM_AWS_INSTANCE_PROFILE"),
    *("DEEPVM_AWS_SECURITY_GROUP", "DEEPVM_AWS_SUBNETS"),
    *("DEEPVM_HISTORY", "DEEPVM_KEEP", "DEEPVM_KILL_POINTS", "DEEPVM_SAVE_EVERY", "DEEPVM_TIERS"),
    "DEEPVM_TOKEN",
}
"""Variables that set no option."""

NAMES = tuple(f.name for f in fields(RankFlags))
"""The options that may be set, as fields of :class:`~deepvm.cli.plan.options.RankFlags`, which has all of them."""

_MAX_BYTES = 2**20
_AMOUNT = re.compile(r"\$?\s*\.?[0-9].*")  # also with a unit, so that the error is about the unit
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_FILES = frozenset({"catalog", "quota", "tables", "job_file"})
_FOLDERS = frozenset({"price_history"})
_SECRET = re.compile(
    r"secret|token|passw|credential|session|(access|private|api)[_-]?key", re.IGNORECASE
)
_FORMS = {
    list: "text in quotes, or a list of texts",
    bool: "true or false",
    str: "text in quotes, or a number",
}

Value = str | bool | list[str]  # of a setting; numbers stay text, because the planner reads them


@dataclass(frozen=True)
class Setting:
    """A value from the environment or a file (``kind``); ``source`` is the variable or the file's path."""

    name: str
    value: Value
    kind: str
    source: str

    def __str__(self) -> str:
        """Who set the option."""
        return f"--{key_of(self.name)} was set by {self.source}."

    def value_for(self, *, several: bool) -> Value:
        """The value for a command.

        DataError or RequestError for a list where the option is not repeatable.
        """
        if isinstance(self.value, bool) or isinstance(self.value, list) == several:
            return self.value
        if isinstance(self.value, str):
            return [self.value]
        if len(self.value) == 1:
            return self.value[0]
        shown, allowed = _shortened(self.value), "a single value; only 'sweep' takes several"
        if self.kind == "environment":
            raise RequestError(self.source, shown, allowed)
        raise DataError(
            f"{self.source}: {key_of(self.name)}: {shown!r} cannot be used; allowed: {allowed}"
        )


class Settings(NamedTuple):
    """Each option's setting by precedence, and for each file that may hold some whether it exists."""

    by_name: Mapping[str, Setting]
    files: Mapping[str, bool]


_used: dict[str, Setting] = {}  # by the running command; only tests run several in a process


class _Defaults(dict[str, Any]):
    """Settings as defaults of a command's options, read when the first option is missing on the command line."""

    def __init__(self, command: TyperCommand) -> None:
        super().__init__()
        _used.clear()
        self._several = {
            str(p.name): bool(getattr(p, "multiple", False))
            for p in command.params
            if p.name in NAMES
        }
        self._settings: Settings | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """The value that is set for an option."""
        if name not in self._several:
            return default
        self._settings = self._settings or read_settings(os.environ)
        setting = self._settings.by_name.get(name)
        if setting is None:
            return default
        value = setting.value_for(several=self._several[name])
        _used[name] = setting
        return value


class ConfiguredCommand(TyperCommand):
    """A command that reads options missing on the command line from the environment and from files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; an error about a value names where it was set."""
        # The shell asks for completions: a broken file must not disturb it
        if not ctx.resilient_parsing:
            ctx.default_map = _Defaults(self)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Usage errors of the option parser; its classes moved between releases of typer, their
            # shape did not.
            setting = _used.get(str(getattr(getattr(error, "param", None), "name", "")))
            if setting is not None and hasattr(error, "message"):
                error.message = f"{error.message} {setting}"
            raise

    def make_parser(self, ctx: Any) -> Any:
        """The option parser; what it finds is looked at before values are converted."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            given, words, order = parse(args=args)
            if not ctx.resilient_parsing:  # the shell does not ask for completions
                self._refuse_empty(given)
                self._take_budget(ctx, given, words)
            return given, words, order

        parser.parse_args = parse_args
        return parser

    def _refuse_empty(self, given: Mapping[str, Any]) -> None:
        """Raise a RequestError for an empty value that would count as not given."""
        for parameter in self.params:
            values = given.get(str(parameter.name))
            if not parameter.required and "" in (values if isinstance(values, list) else [values]):
                allowed = f"{parameter.metavar or 'a value'}; leave the option out for its default"
                raise RequestError(str(parameter.name), "", allowed)

    def _take_budget(self, ctx: Any, given: dict[str, Any], words: list[str]) -> None:
        """Take a budget without its option: ``deepvm recommend --model vit-b 3``.

        Other words stay errors.
        """
        names = {p.name: p.param_type_name for p in self.params}
        if not words or "pw" not in names:
            return
        argument = next((name for name, kind in names.items() if kind == "argument"), "")
        if argument and _AMOUNT.fullmatch(str(given[argument])) and not _AMOUNT.fullmatch(words[0]):
            given[argument], words[0] = words[0], given[argument]  # deepvm explain 3 g5.xlarge
        amounts = [w for w in words if _AMOUNT.fullmatch(w)]
        if len(amounts) + ("pw" in given) > 1:
            ctx.fail(f"budget given twice: {' and '.join([*amounts, '--pw'][:2])}")
        # What is not a number is refused as one
        if not amounts and not argument and "pw" not in given:
            from deepvm.catalog.published.models import presets  # only for an error
            from deepvm.core.meanings import meant_model

            word = words[0]
            if model := word if word in presets() else meant_model(word, presets()):
                advice = f"try: {ctx.command_path} 3 --model {model}"
                ctx.fail(f"{word} is not a budget in $/h; {advice}")
            amounts = words[:1]
        if amounts:
            given["pw"] = amounts[0]
            words.remove(amounts[0])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error names the settings that were used."""
        try:
            return super().invoke(ctx)
        except DeepVMError as error:
            name = field_name(error.option) if isinstance(error, RequestError) else ""
            given = ", ".join(f"{key_of(s.name)} ({s.source})" for s in _used.values())
            # What BaseException.add_note does, which Python 3.10 lacks.
            if name in _used:
                text = str(_used[name])
            elif _used and not name:
                text = f"Not from the command line: {given}; see 'deepvm config show'."
            else:
                raise
            error.__notes__ = [*getattr(error, "__notes__", ()), text]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options in groups; the rare ones only for ``deepvm help COMMAND --all``."""
        records = {str(p.name): p.get_help_record(ctx) for p in self.get_params(ctx)}
        for title, names in grouped([n for n, record in records.items() if record]).items():
            rows = [records[name] for name in names]
            if title or ctx.find_root().meta.get(ALL_OPTIONS):
                with formatter.section(title or "More"):
                    formatter.write_dl(rows)
            elif rows:
                formatter.write_paragraph()
                command = ctx.command_path.partition(" ")[2]
                formatter.write_text(f"{len(rows)} more options: deepvm help {command} --all")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help with the built-in defaults: the same everywhere, even with a broken settings file."""
        ctx.default_map = None
        super().format_help(ctx, formatter)


def set_elsewhere(name: str) -> str:
    """Which file or variable set an option of the running command.

    Empty for the command line and for defaults.
    """
    return _used[name].source if name in _used else ""


def key_of(name: str) -> str:
    """An option's name in files: ``checkpoint-size``."""
    return name.replace("_", "-")


def variable_of(name: str) -> str:
    """An option's variable in the environment: ``DEEPVM_CHECKPOINT_SIZE``."""
    return f"DEEPVM_{name.upper()}"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the environment, ``deepvm.toml`` in the current folder, and the user's own file.

    Note misspelt variables.

    Raises DataError about a file, RequestError about a variable.
    """
    found = {s.name: s for s in _of_environment(environ)}
    files = {}
    for path in filter(None, (Path(FOLDER_FILE), _user_file(environ))):
        text = _read(path)
        files[str(path)] = text is not None
        found = {s.name: s for s in (_of_file(path, text) if text else ())} | found
    known = {variable_of(n) for n in NAMES} | OTHER_VARIABLES
    for variable in sorted(v for v in environ if v.startswith("DEEPVM_") and v not in known):
        # Other programs may use this prefix: only near misses are reported.
        for meant in nearest(variable, known, share=0.15)[:1]:
            note(f"the environment variable {variable} has no effect; did you mean {meant}?")
    return Settings(found, files)


def _forms_of(name: str) -> Collection[type]:
    """What the option takes, in one command or another: text, a list, or true and false."""
    kinds = [
        get_args(f.type)[0]
        for flags in (RankFlags, SweepFlags)
        for f in fields(flags)
        if f.name == name
    ]
    truths = [kind is bool or bool in get_args(kind) for kind in kinds]
    return {
        list if get_origin(kind) is list else bool if truth else str
        for kind, truth in zip(kinds, truths, strict=True)
    }


def _of_environment(environ: Mapping[str, str]) -> Iterator[Setting]:
    for name in NAMES:
        variable = variable_of(name)
        text = environ.get(variable, "").strip()
        if not text:  # set to nothing, as `DEEPVM_REGION= deepvm ...` does, is not set
            continue
        forms = _forms_of(name)
        value: Value = text
        if bool in forms:
            if text.lower() not in (*_TRUE, *_FALSE):
                raise RequestError(variable, _shortened(text), "true or false")
            value = text.lower() in _TRUE
        elif list in forms:
            value = [word.strip() for word in text.split(",") if word.strip()]
        yield Setting(name, value, "environment", variable)


def _user_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(CONFIG_VARIABLE, "")
    if not named:
        folder = user_folder("config", environ)
        return folder and folder / "config.toml"
    path = Path(os.path.expanduser(named))
    if named != NO_FILE and not os.path.lexists(path):
        raise RequestError(
            CONFIG_VARIABLE, named, f"a TOML file that exists, or {NO_FILE} for none"
        )
    return None if named == NO_FILE else path


def _read(path: Path) -> str | None:
    """The text of a file; None when there is no such file."""
    if not os.path.lexists(path):
        return None
    try:
        return read_text(
            path, 'a text file with settings, such as: region = ["us-east-1"]', _MAX_BYTES
        )
    except FileNotFoundError:
        raise DataError(
            f"{path}: is a link to a file that does not exist; correct or remove it"
        ) from None
    except CatalogFormatError as error:
        if str(error.problems[0]).startswith("is empty"):
            return ""
        raise


def _of_file(path: Path, text: str) -> Iterator[Setting]:
    seen = set[str]()
    for key, value in _parsed(path, text).items():
        name = key.replace("-", "_")
        _refuse_secrets(path, key, value)
        if name not in NAMES:
            keys = [key_of(n) for n in NAMES]
            some = f"allowed: {listed(keys, 8)}, which 'deepvm config show' lists"
            hint = did_you_mean(key.replace("_", "-"), keys) or some
            if isinstance(value, Mapping):
                hint = (
                    "there are no sections: write one setting per line, without [...] headers and"
                    " dots"
                )
            raise DataError(
                f"{path}: {_shortened(key)!r}{_line(text, key)} is not a setting; {hint}"
            )
        if name in seen:
            raise DataError(
                f"{path}: {key!r}{_line(text, key)}: given twice, with - and with _; remove one"
            )
        seen.add(name)
        forms = _forms_of(name)
        try:
            taken = _taken(value, forms)
        except ValueError:
            allowed = next(text for form, text in _FORMS.items() if form in forms)
            place = f"{path}: {key}{_line(text, key)}"
            raise DataError(
                f"{place}: {_shown(value)} cannot be used; allowed: {allowed}"
            ) from None
        is_file = isinstance(taken, str) and taken.lower().endswith(
            (".json", ".csv", ".yaml", ".yml")
        )
        if isinstance(taken, str) and taken and (name in _FOLDERS or (name in _FILES and is_file)):
            # Relative to the settings file that names it, not to the working folder.
            taken = str(path.parent / os.path.expanduser(taken))
        yield Setting(name, taken, "file", str(path))


def _parsed(path: Path, text: str) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DataError(
            f'{path}: is nested too deeply; settings are single lines such as: prices = "live"'
        ) from None
    except ValueError as error:
        # Texts of TOML errors name places and keys, never values.
        advice = 'each line is like: prices = "live", with texts in quotes'
        raise DataError(f"{path}: is not valid TOML: {error}; {advice}") from None


def _refuse_secrets(path: Path, key: str, value: Any) -> None:
    if _SECRET.search(key) and key.replace("-", "_") not in NAMES:
        raise DataError(
            f"{path}: {_shortened(key)!r}: credentials do not belong here, and deepvm reads none"
            " from this file; remove them, keep them in an AWS profile, and name that one: profile"
            ' = "..."'
        )
    if isinstance(value, Mapping):
        for inner, below in value.items():
            _refuse_secrets(path, inner, below)


def _line(text: str, key: str) -> str:
    start = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    number = next((i for i, line in enumerate(text.split("\n"), 1) if start.match(line)), None)
    return "" if number is None else f" (line {number})"


def _taken(value: Any, forms: Collection[type]) -> Value:
    """The value in the form that the option takes.

    Raises ValueError: another form, or too long an integer.
    """
    if bool in forms and isinstance(value, bool):
        return value
    words = value if isinstance(value, list) and list in forms else [value]
    if bool in forms or not all(
        isinstance(w, str | int | float) and not isinstance(w, bool) for w in words
    ):
        raise ValueError
    # A single word is a list of one, unless the option also takes single words.
    return str(value) if words is not value and str in forms else [str(w) for w in words]


def _shown(value: Any) -> str:
    """A value of a wrong type, for a message."""
    if isinstance(value, Mapping | list):
        return "a list" if isinstance(value, list) else "a section"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    return repr(_shortened(str(value)))


def _shortened(value: Any) -> Any:
    """A value for a message, cut to a line."""
    return value if len(str(value)) <= 80 else f"{str(value)[:76]} ..."
